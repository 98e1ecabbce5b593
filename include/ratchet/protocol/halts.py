"""Halts: where a line stands still until a person decides, and what there is to decide."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection, select

from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_unfinished
from ratchet.ledger.work import utc
from ratchet.protocol.failures import is_refused, met_outages_alone
from ratchet.spec.pipeline import Pipeline


class Stopped(Protocol):
    """What is told of a transaction that is halted."""

    @property
    def pipeline(self) -> str: ...
    @property
    def txid(self) -> int: ...
    @property
    def run_id(self) -> str: ...
    @property
    def failures(self) -> int: ...
    @property
    def halted_at(self) -> datetime | None: ...
    @property
    def reason(self) -> str | None: ...


LIFTED = {"failures": 0, "halted_at": None}
"""The columns of a transaction that a person wants tried again: earlier failures are forgotten."""


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
    blame; or if it is PREPARED, and PostgreSQL refuses to commit it.
    """
    unfinished = row.state in (State.OPEN, State.ABORTED)
    failed = unfinished and not met_outages_alone(conn, row)
    failed = failed or (row.state == State.PREPARED and is_refused(conn, row))
    failures = row.failures + failed
    return failures, failed and failures >= spec.max_failures


def why_halted(row: Stopped) -> str:
    """Which transaction, since when, why, and the ways out, in a line."""
    return (
        f"{row.pipeline} is halted at transaction {row.txid} since {utc(row.halted_at)}, "
        f"after {row.failures} failures: {row.reason}; correct the cause and clear run {row.run_id}, "
        f"or `ratchet retry {row.pipeline} {row.txid}`, "
        f"or give its records up with `ratchet void {row.pipeline} {row.txid} --reason …`"
    )


def why_stopped(row: Transaction) -> str:
    """Why a transaction is halted, or a revision given up, in a line."""
    if row.revision:
        return f"{row} is given up: {row.reason}; the old result stays"
    return why_halted(row)
