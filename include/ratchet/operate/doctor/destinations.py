"""Checks of destinations: each is looked at where it stands, and its mark is held against the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from ratchet.destinations.port import Undecided
from ratchet.errors import RatchetError, SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.operate.doctor.finding import Check, Finding, Severity, ok, warning
from ratchet.operate.snapshot.status import Reached, status
from ratchet.operate.snapshot.words import destination_of
from ratchet.protocol.follow import Open, look
from ratchet.spec.pipeline import Pipeline

CODE = "destination"


def checks(ledger: Ledger, specs: Iterable[Pipeline], opener: Callable[[Pipeline], Open]) -> Iterator[Check]:
    """One for each destination of each pipeline, and one for those that only the ledger knows."""
    needs = frozenset({"ledger", "ledger-schema"})
    for spec in specs:
        declared = [each.address for sink in spec.sinks for each in sink.destinations]
        for address in declared:
            yield Check(CODE, partial(_destination, ledger, spec, address, opener(spec)), spec.name, needs)
        yield Check(CODE, partial(_undeclared, ledger, spec, declared), spec.name, needs)


def _destination(ledger: Ledger, spec: Pipeline, address: str, opens: Open) -> Iterator[Finding]:
    with ledger.begin() as conn:
        known = steps.destination(conn, spec.name, address)
    of = next((each for each in status(ledger, spec.name).destinations if each.destination == address), None)
    if known is None or of is None:
        # What the ledger does not know is made known as tables are, and their check says so.
        return
    if of.detached_at is not None:
        # Whether its server is there is nothing that the line waits for.
        yield warning(CODE, destination_of(spec.name, of), "Attach it when it may get rows again.")
        return
    try:
        mark = look(ledger, spec, opens, known)
    except Undecided:
        yield _lacks(spec, of) or ok(CODE, f"{address}: somebody sends just now")
    except SettingsError as error:
        yield warning(CODE, f"{address}: not checked: {error}", "Set it, and examine again.")
    except RatchetError as error:
        said = (
            f"`ratchet explain {error.code}` says what to do; `ratchet detach {spec.name} {address} --reason …` lets "
        )
        yield Finding(CODE, Severity.FAULT, str(error), f"{said}the line go on without it.", error=error.code)
    else:
        # What it took since the ledger was asked is noted by whoever sends.
        at = mark.step if mark else of.step
        yield (_lacks(spec, of) if at < of.last else None) or ok(CODE, _fine(of, at))


def _fine(of: Reached, at: int) -> str:
    return f"{of.destination}, of {of.sink}, answers, and {f'has all, step {at}' if at else 'has nothing yet'}"


def _lacks(spec: Pipeline, of: Reached) -> Finding | None:
    if of.step >= of.last:
        return None
    remedy = (
        "A commit of a run, or the maintenance within a minute, sends it the rest; where that is not so the log of the "
        "maintenance's last run says why."
    )
    return warning(CODE, destination_of(spec.name, of), remedy)


def _undeclared(ledger: Ledger, spec: Pipeline, declared: list[str]) -> Iterator[Finding]:
    for of in status(ledger, spec.name).destinations:
        if of.destination not in declared and of.detached_at is None:
            said = f"the ledger knows {of.destination} as a destination of {of.sink}, and the spec does not"
            remedy = (
                f"Deploy the spec that declares it, or `ratchet detach {spec.name} {of.destination} --reason …`: else "
                "the next commit is the last one."
            )
            yield Finding(CODE, Severity.FAULT, said, remedy)
