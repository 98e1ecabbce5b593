"""The rows of transactions: how they are found and locked, and the one guarded way in which one changes its state."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, literal_column, select, text, update

from ratchet.errors import Fenced, IllegalMove
from ratchet.ledger import history
from ratchet.ledger.channel import notify
from ratchet.ledger.rows import Line, Transaction
from ratchet.ledger.schema import heads, pipelines, transactions
from ratchet.ledger.states import UNFINISHED, State, predecessors
from ratchet.ledger.work import name_of, turn_of


def lock_pipeline(conn: Connection, pipeline: str) -> Line | None:
    """The pipeline's row, locked: the commit lock, and what makes txids dense. None before its first run.

    Its head is locked besides: after waiting, PostgreSQL takes only of rows that it locks what they are by then.
    """
    return Line.one_or_none(conn.execute(_line(pipeline).with_for_update()))


def read_line(conn: Connection, pipeline: str) -> Line | None:
    """The pipeline's row as it is at this moment. None before its first run."""
    return Line.one_or_none(conn.execute(_line(pipeline)))


def _line(pipeline: str) -> Select[Any]:
    return (
        select(pipelines, heads.c.txid.label("head"))
        .join(heads, heads.c.pipeline == pipelines.c.pipeline)
        .where(pipelines.c.pipeline == pipeline)
    )


def lock_rows(conn: Connection, pipeline: str) -> None:
    """Wait until nobody else replaces or merges rows below the head, and keep it so until this transaction ends.

    A revision, which copies its rows under this lock, must not hold up commits; a compaction must not merge rows that
    a revision replaces. Taken before the pipeline's lock.
    """
    conn.execute(text("select pg_advisory_xact_lock(hashtext('ratchet rows'), hashtext(:name))"), {"name": pipeline})


def move_head(conn: Connection, pipeline: str, head: int) -> None:
    """Move the head by one: what stands under the next txid is seen from this transaction's COMMIT on.

    Whoever waits in the pipeline is told.
    """
    moved = conn.execute(
        update(heads).where(heads.c.pipeline == pipeline, heads.c.txid == head).values(txid=turn_of(head))
    )
    if moved.rowcount != 1:
        raise Fenced(f"{pipeline}: the head is not {head}; nothing was committed")
    notify(conn, pipeline)


def next_txid(conn: Connection, line: Line) -> int:
    """Lengthen the line by one transaction; the caller holds the pipeline's lock."""
    return conn.execute(
        update(pipelines)
        .where(pipelines.c.pipeline == line.pipeline, pipelines.c.last_txid == line.last_txid)
        .values(last_txid=line.last_txid + 1)
        .returning(pipelines.c.last_txid)
    ).scalar_one()


def read_transaction(
    conn: Connection, pipeline: str, txid: int, revision: int = 0, *, lock: bool = False, share: bool = False
) -> Transaction:
    """The row of a transaction's revision, 0 being the original; Fenced where there is none.

    Locked against every other move when `lock`, and against moves but not against others that share it when `share`.
    """
    query = select(transactions).where(
        transactions.c.pipeline == pipeline, transactions.c.txid == txid, transactions.c.revision == revision
    )
    row = Transaction.one_or_none(conn.execute(query.with_for_update(read=share) if lock or share else query))
    if row is None:
        known = select(pipelines.c.pruned, pipelines.c.last_txid).where(pipelines.c.pipeline == pipeline)
        pruned, last = conn.execute(known).one_or_none() or (0, 0)
        if txid <= pruned:
            raise Fenced(f"{pipeline}: {name_of(txid, revision)} is pruned from the ledger, and done with for ever")
        there = f"the last transaction is {last}" if last else "it has no transaction yet"
        raise Fenced(f"{pipeline}: there is no {name_of(txid, revision)}; {there}")
    return row


def newest_revision(conn: Connection, pipeline: str, txid: int) -> Transaction:
    """The row of a transaction's newest revision; the caller holds the pipeline's lock if it decides by it."""
    newest = select(func.max(transactions.c.revision)).where(
        transactions.c.pipeline == pipeline, transactions.c.txid == txid
    )
    revision = conn.execute(newest).scalar_one()
    return read_transaction(conn, pipeline, txid, revision or 0)


def is_row(row: Transaction) -> ColumnElement[bool]:
    """The condition that picks the row of one transaction's revision."""
    return and_(
        transactions.c.pipeline == row.pipeline,
        transactions.c.txid == row.txid,
        transactions.c.revision == row.revision,
    )


def is_newest() -> ColumnElement[bool]:
    """The condition that no newer revision of the transaction has been begun, looked up for each row by itself."""
    of = transactions.alias("of")
    mine = (of.c.pipeline == transactions.c.pipeline, of.c.txid == transactions.c.txid)
    return transactions.c.revision == select(func.max(of.c.revision)).where(*mine).scalar_subquery()


def is_in(*states: State) -> ColumnElement[bool]:
    """The condition that a transaction is in one of some of the unfinished states, by the index that has no others.

    The states are part of the statement: a plan that is made for any parameters cannot use that index.
    """
    assert set(states) <= set(UNFINISHED), "the index knows no others"
    return transactions.c.state.in_([literal_column(f"'{state}'") for state in states])


def is_unfinished() -> ColumnElement[bool]:
    """The condition that a transaction is neither committed nor voided, by an index that has no others."""
    return is_in(*UNFINISHED)


def instead_of(row: Transaction) -> str:
    """What a person can do about a transaction that is final; of a revision they look at the transaction first."""
    again = f"ratchet replay {row.pipeline} --from {row.txid}"
    if row.state == State.COMMITTED and not row.revision:
        return f"; `{again} --reason …` puts what today's code makes of its records in the place of its rows"
    if row.state == State.VOIDED and not row.revision:
        return f"; `{again} --voided --reason …` processes its records after all"
    return ""


def move(
    conn: Connection,
    row: Transaction,
    to: State,
    *,
    who: str,
    why: str,
    detail: dict[str, Any] | None = None,
    **values: object,
) -> Transaction:
    """Move the transaction of `row` to another state, if it still stands where `row` saw it.

    `values` are further columns to set; the move is written to the history. That what was PREPARED is so no more is
    told to whoever waits with it; of a commit the head tells.
    Raises IllegalMove when no rule allows it from there, Fenced when the row has changed since.
    """
    came_from = row.state
    if came_from not in predecessors(to):
        raise IllegalMove(f"{row.pipeline}: {row} is {came_from}; it cannot become {to}{instead_of(row)}")
    found = conn.execute(
        update(transactions)
        .where(
            is_row(row),
            transactions.c.epoch == row.epoch,
            transactions.c.claim == row.claim,
            transactions.c.state == came_from,
        )
        .values(state=to, **values)
        .returning(transactions)
    )
    moved = Transaction.one_or_none(found)
    if moved is None:
        raise Fenced(f"{row.pipeline}: {row} has moved on since epoch {row.epoch} was {came_from}")
    said = {"from": came_from, "why": why, **(detail or {})}
    history.record(conn, moved, who=who, move=str(to), detail=said)
    if came_from == State.PREPARED and to != State.COMMITTED:
        notify(conn, row.pipeline)
    return moved
