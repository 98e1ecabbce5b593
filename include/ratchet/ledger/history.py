"""The append-only history of every move; each row hashes the one before it in its transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    RowMapping,
    Select,
    bindparam,
    func,
    insert,
    literal_column,
    or_,
    select,
    true,
)

from ratchet.ledger.connection import Ledger
from ratchet.ledger.faults import Faults
from ratchet.ledger.rows import Event, Transaction
from ratchet.ledger.schema import events
from ratchet.ledger.work import name_of

IS_COMMIT = events.c.move == literal_column("'COMMITTED'")
"""The condition of an event's index: part of the statement, as a plan for any parameters could not use it."""
MIGRATED = "MIGRATED"
"""The move of an event that is of a line's tables, and of no transaction; its txid is 0."""
_AT_A_TIME = 2_000
"""So many events are in memory when all are read."""
_TOLD_EVERY = 10_000


def record(conn: Connection, row: Transaction, *, who: str, move: str, detail: dict[str, Any]) -> str:
    """Append one event of the transaction's `row` and return its hash; the caller holds that row's lock.

    A COMMITTED event also names the hash of the pipeline's commit before it, so that commits are a chain of their own.
    """
    return _append(conn, row.pipeline, row.txid, row.revision, row.epoch, who=who, move=move, detail=detail)


def record_migration(conn: Connection, pipeline: str, *, who: str, detail: dict[str, Any]) -> str:
    """Append the event of a change of the pipeline's tables and return its hash; one migration at a time does so."""
    return _append(conn, pipeline, 0, 0, 0, who=who, move=MIGRATED, detail=detail)


def _append(
    conn: Connection,
    pipeline: str,
    txid: int,
    revision: int,
    epoch: int,
    *,
    who: str,
    move: str,
    detail: dict[str, Any],
) -> str:
    before = _before(conn, pipeline, txid, revision)
    if move == "COMMITTED":
        detail = {**detail, "previous_commit": before.commit or ""}
    event: dict[str, Any] = {
        "pipeline": pipeline,
        "txid": txid,
        "revision": revision,
        "seq": (before.seq or 0) + 1,
        "at": before.at,
        "who": who,
        "move": move,
        "epoch": epoch,
        "detail": detail,
        "previous_hash": before.hash or "",
    }
    event["hash"] = hash_of(event)
    conn.execute(insert(events).values(event))
    return event["hash"]


def last_commit(conn: Connection, pipeline: str) -> Event | None:
    """The event of the pipeline's latest commit, whose hash stands for all before it."""
    commits = select(events).where(events.c.pipeline == pipeline, IS_COMMIT).order_by(events.c.id.desc())
    return Event.one_or_none(conn.execute(commits.limit(1)))


def first_commit(conn: Connection, pipeline: str, since: int) -> Event | None:
    """The event of the first commit of a transaction from `since` on, or of a revision of one."""
    c = events.c
    mine = (c.pipeline == pipeline, IS_COMMIT, c.txid >= since)
    # Transactions commit in order, so nothing of a later one is committed before it; looked for by id, all that came
    # before `since` would be passed.
    first = select(c.txid).where(*mine, c.revision == 0).order_by(c.txid).limit(1)
    last = conn.execute(first).scalar_one_or_none()
    found = Event.all(conn.execute(select(events).where(*mine, c.txid <= last if last is not None else true())))
    return min(found, key=lambda event: event.id, default=None)


def hash_before(conn: Connection, pipeline: str, since: int) -> str:
    """The hash of the last commit before the first one of a transaction from `since` on; empty where there is none."""
    first = first_commit(conn, pipeline, since)
    mine = (events.c.pipeline == pipeline, IS_COMMIT, events.c.id < first.id if first else true())
    before = select(events.c.hash).where(*mine).order_by(events.c.id.desc()).limit(1)
    return conn.execute(before).scalar_one_or_none() or ""


def count(conn: Connection, pipeline: str, since: int) -> int:
    """How many events there are of the transactions from `since` on, and of the tables."""
    mine = select(func.count()).where(events.c.pipeline == pipeline, _since(since))
    return conn.execute(mine).scalar_one()


def read(
    conn: Connection, pipeline: str, txid: int | None = None, *, after: int = 0, most: int | None = None
) -> list[Event]:
    """The pipeline's events, or those of one transaction, in the order in which they were written.

    Those behind the event `after`, and at most so many of them.
    """
    query = select(events).where(events.c.pipeline == pipeline, events.c.id > after).order_by(events.c.id).limit(most)
    return Event.all(conn.execute(query if txid is None else query.where(events.c.txid == txid)))


def each(ledger: Ledger, pipeline: str, txid: int | None = None) -> Iterator[Event]:
    """The same, of which some at a time are in memory; whoever reads them slowly holds no snapshot meanwhile."""
    after = 0
    while True:
        with ledger.snapshot() as conn:
            page = read(conn, pipeline, txid, after=after, most=_AT_A_TIME)
        yield from page
        if len(page) < _AT_A_TIME:
            return
        after = page[-1].id


def verify(
    conn: Connection,
    pipeline: str,
    since: int = 1,
    before: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """What is wrong with the pipeline's history, one line a fault; empty when the chain holds.

    With `since` only that of the transactions from it on, of the tables, and of all commits since the first of theirs:
    what is before that one is not looked at, and `before` is its hash. Events are read one after the other, and not
    kept; `say` is told how far.
    """
    faults = Faults()
    of, seq, previous = (0, 0), 0, ""
    mine = select(events).where(events.c.pipeline == pipeline, _since(since))
    for row in _each(conn, mine.order_by(events.c.txid, events.c.revision, events.c.seq)):
        if (row["txid"], row["revision"]) != of:
            of, seq, previous = (row["txid"], row["revision"]), 0, ""
            if not row["txid"] % _TOLD_EVERY:
                say(f"{pipeline}: history, transaction {row['txid']:,}")
        where = f"{name_of(*of) if row['txid'] else 'tables'}, event {row['seq']}"
        if row["seq"] != seq + 1:
            faults.add(f"{where}: an event before it is missing")
        if row["previous_hash"] != previous:
            faults.add(f"{where}: does not follow from the event before it")
        if row["hash"] != hash_of(dict(row)):
            faults.add(f"{where}: was changed after it was written")
        seq, previous = row["seq"], row["hash"]
    _verify_commits(conn, pipeline, since, before, faults)
    return faults.lines


def _verify_commits(conn: Connection, pipeline: str, since: int, commit: str, faults: Faults) -> None:
    """The chain of commits, in the order in which they were made: a revision's stands among those of later txids."""
    first = first_commit(conn, pipeline, since)
    if first is None:
        return
    commits = select(events).where(events.c.pipeline == pipeline, IS_COMMIT, events.c.id >= first.id)
    for row in _each(conn, commits.order_by(events.c.id)):
        where = f"{name_of(row['txid'], row['revision'])}, event {row['seq']}"
        if row["detail"]["previous_commit"] != commit:
            faults.add(f"{where}: does not follow from the commit before it")
        if row["txid"] < since and row["hash"] != hash_of(dict(row)):
            faults.add(f"{where}: was changed after it was written")
        commit = row["hash"]


def _since(txid: int) -> ColumnElement[bool]:
    """The condition for events of transactions from this one on, and for those of the tables."""
    return or_(events.c.txid >= txid, events.c.txid == 0)


def _each(conn: Connection, query: Select[Any]) -> Iterator[RowMapping]:
    """The rows of a query, of which some at a time are in memory."""
    return iter(conn.execute(query, execution_options={"yield_per": _AT_A_TIME}).mappings())


def _follows() -> Select[Any, Any, Any, Any]:
    """Of `pipeline`, `txid` and `revision`: what the next event follows."""
    mine = events.c.pipeline == bindparam("pipeline")
    last = (
        select(events.c.seq, events.c.hash)
        .where(mine, events.c.txid == bindparam("txid"), events.c.revision == bindparam("revision"))
        .order_by(events.c.seq.desc())
        .limit(1)
        .subquery("last")
    )
    commit = select(events.c.hash).where(mine, IS_COMMIT).order_by(events.c.id.desc()).limit(1)
    now = select(func.clock_timestamp().label("at")).subquery("now")
    picked = select(now.c.at, last.c.seq, last.c.hash, commit.scalar_subquery().label("commit"))
    return picked.select_from(now.outerjoin(last, true()))


_FOLLOWS = _follows()
"""Made once: every move asks it, and making it took longer than the answer."""


def _before(conn: Connection, pipeline: str, txid: int, revision: int) -> Row[Any, Any, Any, Any]:
    """What the next event follows: `seq` and `hash` of the transaction's last one, the last `commit`, the time `at`.

    Null where there is none. Commits are serial, so the greatest id is the latest.
    """
    return conn.execute(_FOLLOWS, {"pipeline": pipeline, "txid": txid, "revision": revision}).one()


def hash_of(event: dict[str, Any]) -> str:
    at: datetime = event["at"]
    said = {
        name: event[name]
        for name in ("pipeline", "txid", "revision", "seq", "who", "move", "epoch", "detail", "previous_hash")
    }
    said["at"] = at.astimezone(UTC).isoformat()
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
