"""follow: destinations get what is committed, a step at a time, each exactly once; whoever comes goes on."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal, cast

from ratchet.destinations.port import Destination, Mark, Outside, Owner, Reach
from ratchet.errors import MarkMoved, RatchetError, SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import DestinationRow
from ratchet.ledger.transactions import read_line
from ratchet.protocol import sending
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.port import Sink
from ratchet.spec.pipeline import Pipeline

Open = Callable[[Destination, Owner], Reach]
"""Opens a destination by its connection."""


def nowhere(destination: Destination, owner: Owner) -> Reach:
    """Where no connection is known: SettingsError."""
    raise SettingsError(
        f"{owner}: {destination.address} lacks what was committed before, and no connection to it is known here; a "
        "run, or the maintenance, brings it on; try again after that"
    )


def follow(ledger: Ledger, spec: Pipeline, opens: Open) -> list[str]:
    """Bring every attached destination of a pipeline to the last step that is decided; a line for each that has moved.

    1. Give the destination its first mark, where it has none yet.
    2. Read its mark: it must be a step of this ledger, or its start.
    3. Take the rows of the next step from the ledger, or of keys what all steps have made of them that it lacks, and
       have the destination apply them, which compares its mark in the same change and moves it: of several that do this
       at once one succeeds, and the others look again.
    4. Note in the ledger how far it has come. Until that is so nothing more is decided, so that the rows that are read
       for a step are still those of the step.

    One that fails holds up no other; then the first error is raised: MarkMoved, DestinationUnreachable,
    DestinationRefused, or SettingsError where the spec has no such destination. What was applied stays, and the next
    call goes on from there.
    """
    with ledger.begin() as conn:
        line = read_line(conn, spec.name)
        known = [of for of in steps.destinations_of(conn, spec.name) if of.is_attached]
    if line is None:
        return []
    said: list[str] = []
    failed: RatchetError | None = None
    for of in known:
        if of.step < line.step:
            try:
                said += _bring(ledger, spec, opens, of)
            except RatchetError as error:
                failed = failed or error
    if failed:
        raise failed
    return said


def look(ledger: Ledger, spec: Pipeline, opens: Open, of: DestinationRow) -> Mark | None:
    """Where a destination is by its own mark, which is held against the ledger as in `follow`, and nothing is changed.

    None where it has none yet, as before its first step. Raises MarkMoved, Undecided, and what destinations raise.
    """
    with opened(spec, opens, of) as (_, _, outside):
        mark = outside.look()
    return None if mark is None and not of.started else _checked(ledger, of, outside, mark)


@contextmanager
def opened(spec: Pipeline, opens: Open, of: DestinationRow) -> Generator[tuple[Sink, Destination, Outside]]:
    """A destination that the ledger knows, open, and the sink whose rows it gets; SettingsError where the spec has no
    such.
    """
    declared = {each.address: (sink.name, each) for sink in spec.sinks for each in sink.destinations}
    sink_name, destination = declared.get(of.destination, ("", None))
    if destination is None or sink_name != of.sink:
        raise SettingsError(
            f"{spec.name}: the ledger knows {of.destination} as a destination of {of.sink}, and the spec does not; "
            f"deploy the spec that declares it, or `ratchet detach {spec.name} {of.destination}`"
        )
    sink = sink_of(spec, of.sink)
    found = cast(Destination, destination)
    with opens(found, sending.owner_of(spec, sink)) as outside:
        yield sink, found, outside


def _bring(ledger: Ledger, spec: Pipeline, opens: Open, of: DestinationRow) -> list[str]:
    with opened(spec, opens, of) as (sink, destination, outside):
        at = _mark(ledger, outside, of)
        while True:
            with ledger.begin() as conn:
                steps.reached(conn, of, at.step, at.token)
            taken = _take(ledger, of, sink, destination, outside, at)
            if taken is None:
                break
            # Where it was not taken somebody else was quicker, or has written there.
            at = taken or _mark(ledger, outside, of)
    return [f"{of.destination} is at step {at.step}, {at.step - of.step} further"] if at.step > of.step else []


def _mark(ledger: Ledger, outside: Outside, of: DestinationRow) -> Mark:
    """Where the destination is, which is given its first mark where it has none yet."""
    if of.started:
        return _checked(ledger, of, outside, outside.mark())
    outside.start(Mark(of.step, of.token))
    mark = _checked(ledger, of, outside, outside.mark())
    with ledger.begin() as conn:
        steps.started(conn, of)
    return mark


def _checked(ledger: Ledger, of: DestinationRow, outside: Outside, mark: Mark | None) -> Mark:
    """A mark; MarkMoved unless it is a step of this ledger that the destination may be at."""
    start = Mark(of.step, of.token)
    if mark is not None and (mark == start or (mark.step > of.step and _is_known(ledger, of, mark))):
        return mark
    where = f"{of.pipeline}: {of.destination}"
    if mark is None:
        found = outside.GONE
    elif _is_known(ledger, of, mark):
        found = f"its mark is {mark}, and it was at {start} before: an older copy is in its place"
    else:
        found = f"its mark is {mark}, which is no step of this ledger; the ledger has it at {start}"
    raise MarkMoved(
        f"{where}: {found}; somebody else has written there, or one of the two was restored; nothing was sent; "
        f"`ratchet detach {of.pipeline} {of.destination}` lets the line go on without it"
    )


def _is_known(ledger: Ledger, of: DestinationRow, mark: Mark) -> bool:
    with ledger.begin() as conn:
        step = steps.step_of(conn, of.pipeline, mark.step)
    return step is not None and step.token == mark.token


def _take(
    ledger: Ledger, of: DestinationRow, sink: Sink, destination: Destination, outside: Outside, at: Mark
) -> Mark | Literal[False] | None:
    """Have the destination take what comes after `at`: its mark then; False where its mark is not `at` any more.

    None where nothing comes, or the destination is detached. Whether it is, the steps, and the rows are read in one
    snapshot: else rows of a revision that was decided after a detachment could pass for those of the step.
    """
    with ledger.snapshot() as conn:
        now = steps.destination(conn, of.pipeline, of.destination)
        if now is None or not now.is_attached:
            return None
        following = sending.next_of(conn, of, sink, destination, at)
        if following is None:
            return None
        to, change = following
        return outside.apply(at, to, change) and to
