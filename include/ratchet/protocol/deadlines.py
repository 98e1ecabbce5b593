"""Deadlines: an epoch that is not prepared in time is aborted, by whoever looks first."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, func, select

from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_in, move
from ratchet.ledger.work import utc
from ratchet.protocol.failures import DEADLINE
from ratchet.spec.pipeline import Pipeline


def deadline(spec: Pipeline) -> ColumnElement[datetime] | None:
    """When an epoch that begins now is aborted if it is still OPEN; None where the spec has no timeout."""
    if spec.timeout_seconds is None:
        return None
    return func.clock_timestamp() + timedelta(seconds=spec.timeout_seconds)


def abort_overdue(conn: Connection, pipeline: str) -> list[Transaction]:
    """Abort every epoch that is still OPEN after its deadline; of a race with its last vote, the row's lock decides."""
    found = conn.execute(
        select(transactions)
        .where(
            transactions.c.pipeline == pipeline,
            is_in(State.OPEN),
            transactions.c.deadline < func.clock_timestamp(),
        )
        .order_by(transactions.c.txid)
        .with_for_update()
    )
    return [_abort(conn, row) for row in Transaction.all(found)]


def abort_if_overdue(conn: Connection, row: Transaction) -> Transaction | None:
    """The row as it is once aborted, if it is OPEN after its deadline; the caller holds its lock."""
    if row.state == State.OPEN and row.deadline and conn.execute(select(_passed(row.deadline))).scalar_one():
        return _abort(conn, row)
    return None


def _abort(conn: Connection, row: Transaction) -> Transaction:
    why = f"epoch {row.epoch} was not prepared by its deadline, {utc(row.deadline)}"
    return move(conn, row, State.ABORTED, who=DEADLINE, why=why, reason=why)


def _passed(moment: datetime) -> ColumnElement[bool]:
    return func.clock_timestamp() > moment
