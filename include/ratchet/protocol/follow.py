"""follow: destinations get what is committed, a step at a time, each exactly once; whoever comes goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ratchet.destinations.port import Change, Destination, Mark, Outside, Owner, Reach
from ratchet.errors import MarkMoved, SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger, driver_of
from ratchet.ledger.rows import DestinationRow, StepRow
from ratchet.ledger.transactions import read_line, read_transaction
from ratchet.protocol.votes import read_votes, rows_of
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
    3. Take the rows of the next step from the ledger and have the destination apply them, which compares its mark in
       the same change and moves it: of several that do this at once one succeeds, and the others look again.
    4. Note in the ledger how far it has come. Until that is so nothing more is decided, so that the rows that are read
       for a step are still those of the step.

    Raises MarkMoved, DestinationUnreachable, DestinationRefused, and SettingsError where the spec has no such
    destination; what was applied stays, and the next call goes on from there.
    """
    with ledger.begin() as conn:
        line = read_line(conn, spec.name)
        known = [of for of in steps.destinations_of(conn, spec.name) if of.is_attached]
    if line is None:
        return []
    return [said for of in known if of.step < line.step for said in _bring(ledger, spec, opens, of)]


def _bring(ledger: Ledger, spec: Pipeline, opens: Open, of: DestinationRow) -> list[str]:
    declared = {each.address: (sink.name, each) for sink in spec.sinks for each in sink.destinations}
    sink_name, destination = declared.get(of.destination, ("", None))
    if destination is None or sink_name != of.sink:
        raise SettingsError(
            f"{spec.name}: the ledger knows {of.destination} as a destination of {of.sink}, and the spec does not; "
            f"deploy the spec that declares it, or `ratchet detach {spec.name} {of.destination}`"
        )
    sink = sink_of(spec, of.sink)
    owner = Owner(spec.name, sink.name, sink.declared, sink.renamed, spec.private)
    with opens(cast(Destination, destination), owner) as outside:
        at = _mark(ledger, outside, of)
        while True:
            with ledger.begin() as conn:
                steps.reached(conn, of, at.step, at.token)
                step = steps.step_of(conn, of.pipeline, at.step + 1)
                now = steps.destination(conn, of.pipeline, of.destination)
            if step is None or now is None or not now.is_attached:
                break
            applied = _apply(ledger, spec, sink, outside, at, step)
            # Else somebody else was quicker, or has written there.
            at = Mark(step.step, step.token) if applied else _mark(ledger, outside, of)
    return [f"{of.destination} is at step {at.step}, {at.step - of.step} further"] if at.step > of.step else []


def _mark(ledger: Ledger, outside: Outside, of: DestinationRow) -> Mark:
    """Where the destination is; MarkMoved unless that is a step of this ledger that it may be at."""
    start = Mark(of.step, of.token)
    if not of.started:
        outside.start(start)
    mark = outside.mark()
    if mark is not None and (mark == start or (mark.step > of.step and _is_known(ledger, of, mark))):
        if not of.started:
            with ledger.begin() as conn:
                steps.started(conn, of)
        return mark
    where = f"{of.pipeline}: {of.destination}"
    if mark is None:
        found = "its mark is gone"
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


def _apply(ledger: Ledger, spec: Pipeline, sink: Sink, outside: Outside, at: Mark, step: StepRow) -> bool:
    """Whether the destination has taken the step from this call; what its votes say of the rows goes with it."""
    with ledger.snapshot() as conn:
        row = read_transaction(conn, spec.name, step.txid, step.revision)
        votes = read_votes(conn, spec.name, row.txid, row.epoch)
        # One of a spec that did not have the sink has no rows for it.
        of_sink = [vote for vote in votes if sink.name in vote[2]]
        rows = rows_of(of_sink, sink.name, sink.home, row.txid)
        change = Change(
            row.txid,
            row.revision,
            row.revision > 0 and row.releases is None,
            rows.count,
            driver_of(conn),
            rows.relation,
            rows.writers,
        )
        return outside.apply(at, Mark(step.step, step.token), change)
