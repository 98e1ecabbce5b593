"""The append-only history of every move; each row hashes the one before it in its transaction."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

from sqlalchemy import Connection, func, insert, select

from ratchet.schema import events


def record(conn: Connection, pipeline: str, txid: int, *, epoch: int, who: str, move: str, detail: dict) -> str:
    """Append one event and return its hash; the caller holds the lock of the transaction's row.

    A COMMITTED event also names the hash of the commit before it, so that commits are a chain of their own.
    """
    last = conn.execute(
        select(events.c.seq, events.c.hash)
        .where(events.c.pipeline == pipeline, events.c.txid == txid)
        .order_by(events.c.seq.desc())
        .limit(1)
    ).one_or_none()
    if move == "COMMITTED":
        detail = {**detail, "previous_commit": _hash_of_commit(conn, pipeline, txid - 1)}
    event = {
        "pipeline": pipeline,
        "txid": txid,
        "seq": last.seq + 1 if last else 1,
        "at": conn.execute(select(func.clock_timestamp())).scalar_one(),
        "who": who,
        "move": move,
        "epoch": epoch,
        "detail": detail,
        "previous_hash": last.hash if last else "",
    }
    event["hash"] = _hash(event)
    conn.execute(insert(events).values(event))
    return event["hash"]


def verify(conn: Connection, pipeline: str) -> list[str]:
    """What is wrong with the pipeline's history, one line a fault; empty when the chain holds."""
    faults: list[str] = []
    last: dict[int, tuple[int, str]] = {}
    commits: dict[int, str] = {}
    named: dict[int, str] = {}
    query = select(events).where(events.c.pipeline == pipeline).order_by(events.c.txid, events.c.seq)
    for row in conn.execute(query).mappings():
        seq, previous = last.get(row["txid"], (0, ""))
        where = f"transaction {row['txid']}, event {row['seq']}"
        if row["seq"] != seq + 1:
            faults.append(f"{where}: an event before it is missing")
        if row["previous_hash"] != previous:
            faults.append(f"{where}: does not follow from the event before it")
        if row["hash"] != _hash(dict(row)):
            faults.append(f"{where}: was changed after it was written")
        last[row["txid"]] = (row["seq"], row["hash"])
        if row["move"] == "COMMITTED":
            commits[row["txid"]] = row["hash"]
            named[row["txid"]] = row["detail"]["previous_commit"]
    for txid, previous in named.items():
        if previous != commits.get(txid - 1, ""):
            faults.append(f"transaction {txid}: its commit does not follow from that of {txid - 1}")
    return faults


def _hash_of_commit(conn: Connection, pipeline: str, txid: int) -> str:
    found = conn.execute(
        select(events.c.hash).where(events.c.pipeline == pipeline, events.c.txid == txid, events.c.move == "COMMITTED")
    ).scalar_one_or_none()
    return found or ""


def _hash(event: dict) -> str:
    at: datetime = event["at"]
    said = {
        name: event[name] for name in ("pipeline", "txid", "seq", "who", "move", "epoch", "detail", "previous_hash")
    }
    said["at"] = at.astimezone(UTC).isoformat()
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
