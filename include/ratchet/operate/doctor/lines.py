"""Checks of each pipeline's line in the ledger: tables, halt, maintenance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import partial

from sqlalchemy import func, select

from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import utc
from ratchet.operate.doctor.finding import Check, Finding, Severity, ok, warning
from ratchet.protocol import halts
from ratchet.sinks import tables
from ratchet.spec.pipeline import Pipeline

SILENCE = timedelta(minutes=5)
"""The maintenance comes every minute."""


def checks(ledger: Ledger, specs: Iterable[Pipeline]) -> Iterator[Check]:
    """Those of every pipeline's line."""
    needs = frozenset({"ledger", "ledger-schema"})
    for spec in specs:
        yield Check("tables", partial(_tables, ledger, spec), spec.name, needs)
        yield Check("halt", partial(_halt, ledger, spec), spec.name, needs)
        yield Check("maintenance", partial(_maintenance, ledger, spec), spec.name, needs)


def _tables(ledger: Ledger, spec: Pipeline) -> Iterator[Finding]:
    with ledger.begin() as conn:
        misfit = tables.misfit(conn, spec)
    if misfit:
        remedy = (
            f"`ratchet plan {spec.name}` says all that differs; `ratchet migrate {spec.name}` makes what is missing."
        )
        yield Finding("tables", Severity.FAULT, misfit, remedy, error="RAT-204")
    else:
        yield ok("tables", f"the tables of {', '.join(sink.name for sink in spec.sinks)} fit")


def _halt(ledger: Ledger, spec: Pipeline) -> Iterator[Finding]:
    with ledger.snapshot() as conn:
        found = halts.halt(conn, spec.name)
    if found:
        remedy = "Correct the cause, then clear the run or retry; or void the transaction."
        yield Finding("halt", Severity.FAULT, halts.why_halted(found), remedy, error="RAT-405")
    else:
        yield ok("halt", "the line is not halted")


def _maintenance(ledger: Ledger, spec: Pipeline) -> Iterator[Finding]:
    with ledger.snapshot() as conn:
        line = read_line(conn, spec.name)
        now = conn.execute(select(func.clock_timestamp())).scalar_one()
    if line is None:
        yield ok("maintenance", "the line has not begun")
        return
    last = f"maintenance was here last at {utc(line.maintained_at)}" if line.maintained_at else "it was never here"
    if now - (line.maintained_at or line.created_at) > SILENCE:
        why = f"{last}: lost work waits for the next run, and nothing is cleaned"
        yield warning("maintenance", why, "Unpause the DAG maintenance, and look into the log of its last run.")
    else:
        yield ok("maintenance", last)
