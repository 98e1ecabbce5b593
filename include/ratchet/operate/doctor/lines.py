"""Checks of each pipeline's line in the ledger: tables, halt, pause, maintenance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import utc
from ratchet.operate.doctor.finding import Check, Finding, Severity, ok, warning
from ratchet.operate.snapshot.status import status
from ratchet.protocol import halts
from ratchet.protocol.halt import why_halted
from ratchet.protocol.pause import why_paused
from ratchet.sinks import layout
from ratchet.spec.pipeline import Pipeline


def checks(ledger: Ledger, specs: Iterable[Pipeline]) -> Iterator[Check]:
    """Those of every pipeline's line."""
    needs = frozenset({"ledger", "ledger-schema"})
    for spec in specs:
        yield Check("tables", partial(_tables, ledger, spec), spec.name, needs)
        yield Check("halt", partial(_halt, ledger, spec), spec.name, needs)
        yield Check("pause", partial(_pause, ledger, spec), spec.name, needs)
        yield Check("maintenance", partial(_maintenance, ledger, spec), spec.name, needs)


def _tables(ledger: Ledger, spec: Pipeline) -> Iterator[Finding]:
    with ledger.begin() as conn:
        misfit = layout.misfit(conn, spec)
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
        yield Finding("halt", Severity.FAULT, why_halted(found), remedy, error="RAT-405")
    else:
        yield ok("halt", "the line is not halted")


def _pause(ledger: Ledger, spec: Pipeline) -> Iterator[Finding]:
    pause = status(ledger, spec.name).pause
    if pause:
        remedy = f"`ratchet resume {spec.name} --reason …` when it may go on; until then Kafka has to keep its records."
        yield warning("pause", why_paused(spec.name, pause), remedy)
    else:
        yield ok("pause", "the line is not paused")


def _maintenance(ledger: Ledger, spec: Pipeline) -> Iterator[Finding]:
    found = status(ledger, spec.name)
    last = f"maintenance was here last at {utc(found.maintained_at)}" if found.maintained_at else "it was never here"
    if found.topic is None:
        yield ok("maintenance", "the line has not begun")
    elif found.unattended:
        why = f"{last}: lost work waits for the next run, and nothing is cleaned"
        yield warning("maintenance", why, "Unpause the DAG maintenance, and look into the log of its last run.")
    else:
        yield ok("maintenance", last)
