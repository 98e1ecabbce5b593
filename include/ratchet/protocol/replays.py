"""Replays: revisions that are asked for and wait, so that one at a time is worked on beside the live transactions."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, delete, exists, func, select
from sqlalchemy.dialects.postgresql import insert

from ratchet.errors import NotRevisable
from ratchet.ledger import history
from ratchet.ledger.rows import Line, Replay
from ratchet.ledger.schema import replays, transactions
from ratchet.ledger.transactions import is_newest, is_unfinished, newest_revision, read_transaction
from ratchet.ledger.work import Claim, Run
from ratchet.protocol.revise import revise
from ratchet.spec.pipeline import Pipeline

ASKED = "replay"
"""The name in the history of what asks for a revision."""


def ask(conn: Connection, pipeline: str, txids: Iterable[int], who: str, why: str) -> list[int]:
    """Ask for a revision of each transaction; those that did not wait already, in order.

    The caller holds the pipeline's lock, and has checked that they can be revised.
    """
    asked: list[int] = []
    for txid in sorted(txids):
        row = {"pipeline": pipeline, "txid": txid, "who": who, "reason": why}
        adding = insert(replays).values(row).on_conflict_do_nothing().returning(replays.c.txid)
        if conn.execute(adding).scalar_one_or_none() is None:
            continue
        asked.append(txid)
        _record(conn, pipeline, txid, who, why)
    return asked


def forget(conn: Connection, pipeline: str, first: int, last: int, who: str, why: str) -> list[int]:
    """Take back what is asked for of transactions `first` to `last` and not begun; their txids, in order."""
    mine = (replays.c.pipeline == pipeline, replays.c.txid.between(first, last))
    gone = sorted(conn.execute(delete(replays).where(*mine).returning(replays.c.txid)).scalars())
    for txid in gone:
        _record(conn, pipeline, txid, who, f"not any more: {why}")
    return gone


def first(conn: Connection, pipeline: str) -> Replay | None:
    """The one that has waited longest."""
    query = select(replays).where(replays.c.pipeline == pipeline).order_by(replays.c.id).limit(1)
    return Replay.one_or_none(conn.execute(query))


def is_asked(conn: Connection, pipeline: str, txid: int) -> bool:
    """Whether a revision of this transaction waits."""
    one = select(replays.c.txid).where(replays.c.pipeline == pipeline, replays.c.txid == txid)
    return conn.execute(select(exists(one))).scalar_one()


def waiting(conn: Connection, pipeline: str) -> int:
    """How many wait."""
    return conn.execute(select(func.count()).where(replays.c.pipeline == pipeline)).scalar_one()


def is_going_on(conn: Connection, pipeline: str, *, besides: int | None = None) -> bool:
    """Whether a revision is worked on or lies abandoned; one of transaction `besides` does not count."""
    one = select(transactions.c.txid).where(
        transactions.c.pipeline == pipeline,
        is_unfinished(),
        transactions.c.revision > 0,
        transactions.c.halted_at.is_(None),
        transactions.c.txid != (besides or 0),
        is_newest(),
    )
    return conn.execute(select(exists(one))).scalar_one()


def is_due(conn: Connection, pipeline: str) -> Replay | None:
    """The one that a run could begin now; None where none waits, or a revision is going on."""
    return None if is_going_on(conn, pipeline) else first(conn, pipeline)


def begin_next(conn: Connection, spec: Pipeline, line: Line, run: Run) -> tuple[Claim, Replay] | None:
    """Begin the revision that is due, for `run`; None where none is. The caller holds the pipeline's lock.

    What cannot be revised any more is taken from those that wait, and its history says why.
    """
    while (wanted := is_due(conn, spec.name)) is not None:
        taken(conn, spec.name, wanted.txid)
        try:
            return revise(conn, spec, line, wanted.txid, run), wanted
        except NotRevisable as error:
            _record(conn, spec.name, wanted.txid, str(run), f"given up: {error}")
    return None


def taken(conn: Connection, pipeline: str, txid: int) -> None:
    """A revision of this transaction is begun: what was asked for is not to be done once more."""
    conn.execute(delete(replays).where(replays.c.pipeline == pipeline, replays.c.txid == txid))


def _record(conn: Connection, pipeline: str, txid: int, who: str, why: str) -> None:
    newest = newest_revision(conn, pipeline, txid)
    row = read_transaction(conn, pipeline, txid, newest.revision, lock=True)
    history.record(conn, row, who=who, move=ASKED, detail={"why": why})
