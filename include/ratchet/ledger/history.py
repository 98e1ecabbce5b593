"""The append-only history of every move; each row hashes the one before it in its transaction."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, true

from ratchet.ledger.rows import Event, Transaction
from ratchet.ledger.schema import events
from ratchet.ledger.work import name_of


def record(conn: Connection, row: Transaction, *, who: str, move: str, detail: dict[str, Any]) -> str:
    """Append one event of the transaction's `row` and return its hash; the caller holds that row's lock.

    A COMMITTED event also names the hash of the pipeline's commit before it, so that commits are a chain of their own.
    """
    before = _before(conn, row)
    if move == "COMMITTED":
        detail = {**detail, "previous_commit": before.commit or ""}
    event: dict[str, Any] = {
        "pipeline": row.pipeline,
        "txid": row.txid,
        "revision": row.revision,
        "seq": (before.seq or 0) + 1,
        "at": before.at,
        "who": who,
        "move": move,
        "epoch": row.epoch,
        "detail": detail,
        "previous_hash": before.hash or "",
    }
    event["hash"] = _hash(event)
    conn.execute(insert(events).values(event))
    return event["hash"]


def read(conn: Connection, pipeline: str, txid: int | None = None) -> list[Event]:
    """The pipeline's events, or those of one transaction, in the order in which they were written."""
    query = select(events).where(events.c.pipeline == pipeline).order_by(events.c.id)
    return Event.all(conn.execute(query if txid is None else query.where(events.c.txid == txid)))


def verify(conn: Connection, pipeline: str) -> list[str]:
    """What is wrong with the pipeline's history, one line a fault; empty when the chain holds."""
    faults: list[str] = []
    last: dict[tuple[int, int], tuple[int, str]] = {}
    commit = ""
    for row in conn.execute(select(events).where(events.c.pipeline == pipeline).order_by(events.c.id)).mappings():
        of = (row["txid"], row["revision"])
        seq, previous = last.get(of, (0, ""))
        where = f"{name_of(*of)}, event {row['seq']}"
        if row["seq"] != seq + 1:
            faults.append(f"{where}: an event before it is missing")
        if row["previous_hash"] != previous:
            faults.append(f"{where}: does not follow from the event before it")
        if row["hash"] != _hash(dict(row)):
            faults.append(f"{where}: was changed after it was written")
        last[of] = (row["seq"], row["hash"])
        if row["move"] == "COMMITTED":
            if row["detail"]["previous_commit"] != commit:
                faults.append(f"{where}: does not follow from the commit before it")
            commit = row["hash"]
    return faults


def _before(conn: Connection, row: Transaction) -> Row[Any, Any, Any, Any]:
    """What the next event follows: `seq` and `hash` of the row's last one, the pipeline's last `commit`, the time `at`.

    Null where there is none. Commits are serial, so the greatest id is the latest.
    """
    mine = events.c.pipeline == row.pipeline
    last = (
        select(events.c.seq, events.c.hash)
        .where(mine, events.c.txid == row.txid, events.c.revision == row.revision)
        .order_by(events.c.seq.desc())
        .limit(1)
        .subquery("last")
    )
    commit = select(events.c.hash).where(mine, events.c.move == "COMMITTED").order_by(events.c.id.desc()).limit(1)
    now = select(func.clock_timestamp().label("at")).subquery("now")
    picked = select(now.c.at, last.c.seq, last.c.hash, commit.scalar_subquery().label("commit"))
    return conn.execute(picked.select_from(now.outerjoin(last, true()))).one()


def _hash(event: dict[str, Any]) -> str:
    at: datetime = event["at"]
    said = {
        name: event[name]
        for name in ("pipeline", "txid", "revision", "seq", "who", "move", "epoch", "detail", "previous_hash")
    }
    said["at"] = at.astimezone(UTC).isoformat()
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
