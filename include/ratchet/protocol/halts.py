"""Halts: where a line stands still until a person decides, and what there is to decide."""

from __future__ import annotations

from sqlalchemy import Connection, select

from ratchet.errors import GONE, Halted
from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_unfinished
from ratchet.protocol.failures import is_refused, last_code, met_outages_alone
from ratchet.protocol.halt import Halt, why_halted
from ratchet.spec.pipeline import Pipeline

LIFTED = {"failures": 0, "halted_at": None}
"""The columns of a transaction that a person wants tried again: earlier failures are forgotten."""
_GONE = frozenset(error.code for error in GONE)


def halt(conn: Connection, pipeline: str) -> Transaction | None:
    """The lowest transaction at which the line is halted; None if it is not."""
    found = conn.execute(
        select(transactions)
        .where(
            transactions.c.pipeline == pipeline,
            transactions.c.revision == 0,
            is_unfinished(),
            transactions.c.halted_at.is_not(None),
        )
        .order_by(transactions.c.txid)
        .limit(1)
    )
    return Transaction.one_or_none(found)


def count_failure(conn: Connection, spec: Pipeline, row: Transaction) -> tuple[int, bool]:
    """(the failures of a transaction whose claim ends now, whether this one halts it).

    A claim has failed if its transaction is neither PREPARED nor final, unless only servers that did not answer are to
    blame; or if it is PREPARED, and PostgreSQL refuses to commit it. A revision whose records are gone from Kafka is
    tried no second time: nothing but its own result waits for it.
    """
    unfinished = row.state in (State.OPEN, State.ABORTED)
    failed = unfinished and not met_outages_alone(conn, row)
    failed = failed or (row.state == State.PREPARED and is_refused(conn, row))
    failures = row.failures + failed
    is_gone = failed and row.revision > 0 and last_code(conn, row) in _GONE
    return failures, failed and (is_gone or failures >= spec.max_failures)


def halt_at(conn: Connection, row: Transaction) -> Halt:
    """The halt of a line at this transaction, as a value."""
    assert row.halted_at is not None, "the line is halted at it"
    code = last_code(conn, row) or Halted.code
    return Halt(row.pipeline, row.txid, row.halted_at, row.failures, row.reason or "", code, row.dag_id, row.run_id)


def why_stopped(row: Transaction) -> str:
    """Why a transaction is halted, or a revision given up, in a line."""
    if row.revision:
        return f"{row} is given up: {row.reason}; the old result stays"
    return why_halted(row)
