"""Halts: where a line stands still until a person decides, and what there is to decide."""

from __future__ import annotations

from datetime import UTC

from sqlalchemy import Connection, select

from ratchet.ledger.schema import LedgerRow, transactions
from ratchet.ledger.states import UNFINISHED, State
from ratchet.ledger.work import name_of
from ratchet.protocol.failures import met_outages_alone
from ratchet.spec.pipeline import Pipeline

LIFTED = {"failures": 0, "halted_at": None}
"""The columns of a transaction that a person wants tried again: earlier failures are forgotten."""


def halt(conn: Connection, pipeline: str) -> LedgerRow | None:
    """The lowest transaction at which the line is halted; None if it is not."""
    return conn.execute(
        select(transactions)
        .where(
            transactions.c.pipeline == pipeline,
            transactions.c.revision == 0,
            transactions.c.state.in_(UNFINISHED),
            transactions.c.halted_at.is_not(None),
        )
        .order_by(transactions.c.txid)
        .limit(1)
    ).one_or_none()


def count_failure(conn: Connection, spec: Pipeline, row: LedgerRow) -> tuple[int, bool]:
    """(the failures of a transaction whose claim ends now, whether this one halts it).

    A claim has failed if its transaction is neither PREPARED nor final, unless only servers that did not answer are to
    blame.
    """
    unfinished = row.state in (State.OPEN, State.ABORTED)
    failed = unfinished and not met_outages_alone(conn, row)
    failures = row.failures + failed
    return failures, failed and failures >= spec.max_failures


def why_halted(row: LedgerRow) -> str:
    """Which transaction, since when, why, and the ways out, in a line."""
    since = f"{row.halted_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"{row.pipeline} is halted at transaction {row.txid} since {since}, after {row.failures} failures: "
        f"{row.reason}; correct the cause and clear run {row.run_id}, or `ratchet retry {row.pipeline} {row.txid}`, "
        f"or give its records up with `ratchet void {row.pipeline} {row.txid} --reason …`"
    )


def why_stopped(row: LedgerRow) -> str:
    """Why a transaction is halted, or a revision given up, in a line."""
    if row.revision:
        return f"{name_of(row.txid, row.revision)} is given up: {row.reason}; the old result stays"
    return why_halted(row)
