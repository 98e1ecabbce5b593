"""Checks of destinations: each is looked at where it stands, and its mark is held against the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial

from ratchet.destinations.port import Destination, Mark, Owner, Reach, Undecided
from ratchet.errors import DestinationRefused, DestinationUnreachable, MarkMoved, RatchetError, SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.operate.doctor.finding import Check, Finding, Severity, ok, warning
from ratchet.operate.snapshot.status import Reached, status
from ratchet.operate.snapshot.words import destination_of
from ratchet.protocol.follow import Open, look
from ratchet.spec.pipeline import Pipeline

CODE = "destination"
PATIENCE = timedelta(minutes=5)
"""The maintenance comes every minute; what is still lacking after so long does not come by itself."""


class _Unnamed(Exception):
    """Here is no connection to it, or none that can be used."""


def checks(ledger: Ledger, specs: Iterable[Pipeline], opener: Callable[[Pipeline], Open]) -> Iterator[Check]:
    """One for each destination of each pipeline, and one for those that only the ledger knows."""
    needs = frozenset({"ledger", "ledger-schema"})
    for spec in specs:
        declared = [each.address for sink in spec.sinks for each in sink.destinations]
        for address in declared:
            yield Check(CODE, partial(_destination, ledger, spec, address, opener(spec)), spec.name, needs)
        yield Check(CODE, partial(_undeclared, ledger, spec, declared), spec.name, needs)


def _destination(ledger: Ledger, spec: Pipeline, address: str, opens: Open) -> Iterator[Finding]:
    seen = status(ledger, spec.name)
    of = next((each for each in seen.destinations if each.destination == address), None)
    if of is None:
        # What the ledger does not know is made known as tables are, and their check says so.
        return
    if of.detached_at is not None:
        # Whether its server is there is nothing that the line waits for.
        yield warning(CODE, destination_of(spec.name, of), "Attach it when it may get rows again.")
        return
    late = _late(spec, of, seen.at)
    try:
        mark = _mark(ledger, spec, address, opens)
    except _Unnamed as error:
        yield from late
        yield warning(CODE, f"{address}: not checked: {error}", "Set it, and examine again.")
    except Undecided:
        yield from late or [ok(CODE, f"{address}: somebody sends just now")]
    except RatchetError as error:
        remedy = f"`ratchet explain {error.code}` says what to do."
        if isinstance(error, DestinationUnreachable | DestinationRefused | MarkMoved):
            remedy += f" `ratchet detach {spec.name} {address} --reason …` lets the line go on without it."
        yield Finding(CODE, Severity.FAULT, str(error), remedy, error=error.code)
    else:
        has = f"is at step {mark.step} of {of.last}" if mark else "has nothing yet"
        yield from late or [ok(CODE, f"{address}, of {of.sink}, answers, and {has}")]


def _mark(ledger: Ledger, spec: Pipeline, address: str, opens: Open) -> Mark | None:
    """Its mark, which is looked at once more where somebody has moved it in the ledger meanwhile."""

    def opened(destination: Destination, owner: Owner) -> Reach:
        try:
            return opens(destination, owner)
        except SettingsError as error:
            raise _Unnamed(error) from error

    known = None
    while True:
        with ledger.begin() as conn:
            before, known = known, steps.destination(conn, spec.name, address)
        if known is None:
            return None
        try:
            return look(ledger, spec, opened, known)
        except MarkMoved:
            if known == before:
                raise


def _late(spec: Pipeline, of: Reached, now: datetime) -> list[Finding]:
    """What is said where a step is lacking for too long, as far as the ledger knows: by that no commit is decided."""
    if of.waits_since is None or now - of.waits_since < PATIENCE:
        return []
    remedy = (
        "The log of the maintenance's last run says what it has met; see that its DAG is not paused, and that it has "
        f"the connection. `ratchet detach {spec.name} {of.destination} --reason …` lets the line go on without it."
    )
    return [Finding(CODE, Severity.FAULT, destination_of(spec.name, of), remedy)]


def _undeclared(ledger: Ledger, spec: Pipeline, declared: list[str]) -> Iterator[Finding]:
    for of in status(ledger, spec.name).destinations:
        if of.destination not in declared and of.detached_at is None:
            said = f"the ledger knows {of.destination} as a destination of {of.sink}, and the spec does not"
            remedy = (
                f"Deploy the spec that declares it, or `ratchet detach {spec.name} {of.destination} --reason …`: else "
                "the next commit is the last one."
            )
            yield Finding(CODE, Severity.FAULT, said, remedy)
