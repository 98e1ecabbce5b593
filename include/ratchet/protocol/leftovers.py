"""Leftovers: rows that no vote names, found by their writers' registrations and removed writer by writer.

Rows above the head are seen by nobody, so leftovers of an epoch that is over may wait; but none may stand under a txid
that the head passes. The ledger knows without a look at rows whether there are any, and normally there are none.
"""

from __future__ import annotations

from itertools import groupby

from psycopg.errors import UndefinedTable
from sqlalchemy import Connection, exists, select, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from ratchet.ledger import writers
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Transaction, WriterRow
from ratchet.ledger.schema import STAGE_SCHEMA, stages, transactions
from ratchet.ledger.schema import writers as table
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_row
from ratchet.ledger.work import Relation
from ratchet.sinks import delta, stage

Found = tuple[WriterRow, ...]
"""Writers whose rows count for nothing, whatever becomes of their transaction."""

# In one question, as every commit asks it twice. A stage is seen by nobody, and goes as a whole.
_UNDER = text("""
    select w.* from ratchet.writers w
    where w.pipeline = :pipeline and w.txid = :txid and w.revision = :revision and w.schema <> 'ratchet_stage'
    and w.writer not in (
        select named::bigint
        from ratchet.slices s, jsonb_each(s.sinks) as part (sink, said),
            jsonb_array_elements_text(said->'writers') named
        where s.pipeline = :pipeline and s.txid = :txid and s.epoch = cast(:epoch as int) and s.voted_at is not null
    )
    order by w.writer
""")


def under(conn: Connection, row: Transaction) -> Found:
    """The leftovers that would be seen if the head moved over a PREPARED or VOIDED transaction.

    Who decides by it holds the row's lock and asks in a statement of its own: a statement sees what was committed
    before it began, and not what it has waited for.
    """
    kept = row.epoch if row.state == State.PREPARED else None
    of = {"pipeline": row.pipeline, "txid": row.txid, "revision": row.revision, "epoch": kept}
    left = WriterRow.all(conn.execute(_UNDER, of))
    return tuple(left)


def over(conn: Connection, pipeline: str) -> Found:
    """The writers of epochs that are over: aborted, superseded, voided, committed without them."""
    found = conn.execute(
        select(table)
        .join(
            transactions,
            (table.c.pipeline == transactions.c.pipeline)
            & (table.c.txid == transactions.c.txid)
            & (table.c.revision == transactions.c.revision),
        )
        .where(
            table.c.pipeline == pipeline,
            (table.c.epoch < transactions.c.epoch)
            | transactions.c.state.in_([State.ABORTED, State.VOIDED, State.COMMITTED]),
        )
        .order_by(table.c.txid, table.c.writer)
    )
    return tuple(WriterRow.all(found))


def clear(ledger: Ledger, row: Transaction) -> None:
    """Remove what stands under a transaction that is PREPARED or VOIDED and no vote names; locks nothing but rows.

    State, votes and writers are read in one snapshot: of an epoch that began meanwhile the writers would be taken for
    those of the one before.
    """
    with ledger.snapshot() as conn:
        now = Transaction.one(conn.execute(select(transactions).where(is_row(row))))
        left = under(conn, now) if now.state in (State.PREPARED, State.VOIDED) else ()
    remove(ledger, left)


def remove(ledger: Ledger, found: Found) -> int:
    """Remove these very writers and their rows, a transaction at a time; returns how many.

    Rows and registrations go together, since rows without a registration would be known to nobody. Since they were
    found, their transaction may have begun another epoch, whose writers are others.
    """
    for _, of_one in groupby(found, key=lambda w: w.txid):
        with ledger.begin() as conn:
            remove_within(conn, tuple(of_one))
    return len(found)


def remove_within(conn: Connection, found: Found) -> None:
    """Remove these very writers and their rows, which are of one transaction, unless somebody else has done so.

    Who else is at it waits at the writers, and not in the midst of rows that each of them has locked some of.
    """
    there = writers.held(conn, [w.writer for w in found])
    left = [w for w in found if w.writer in there]
    for relation, of_table in groupby(sorted(left, key=_relation), key=_relation):
        numbers = [w.writer for w in of_table]
        # A stage goes as a whole.
        if relation[0] != STAGE_SCHEMA:
            try:
                with conn.begin_nested():
                    delta.discard(conn, relation, found[0].txid, numbers)
            except ProgrammingError as error:
                # Of a sink that the spec has no more, a person may have dropped the table.
                if not isinstance(error.orig, UndefinedTable):
                    raise
        writers.forget(conn, numbers)


def discard_finished(ledger: Ledger, pipeline: str) -> int:
    """Discard what is left of epochs that are over: stages, and writers with their rows; returns how many.

    Chosen by state alone. Outside the commit lock; a stage that somebody still holds is left for the next time.
    """
    is_needed = exists().where(
        transactions.c.pipeline == stages.c.pipeline,
        transactions.c.txid == stages.c.txid,
        transactions.c.epoch == stages.c.epoch,
        transactions.c.state.in_([State.OPEN, State.PREPARED]),
    )
    with ledger.begin() as conn:
        names = conn.execute(select(stages.c.relation).where(stages.c.pipeline == pipeline, ~is_needed)).scalars()
        dropped = 0
        for relation in names.all():
            try:
                with conn.begin_nested():
                    conn.execute(text("set local lock_timeout = '200ms'"))
                    stage.drop(conn, relation)
                dropped += 1
            except (OperationalError, ProgrammingError):
                # Held by somebody, or another role's, which the maintenance drops.
                continue
        left = over(conn, pipeline)
    return dropped + remove(ledger, left)


def _relation(writer: WriterRow) -> Relation:
    return writer.schema, writer.relation
