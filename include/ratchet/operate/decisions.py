"""What decisions of a person have in common: the lock, how the head goes on after one, and what is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from sqlalchemy import Connection, insert, update

from ratchet.errors import IllegalMove, LedgerUnreachable
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, SliceRow, Transaction
from ratchet.ledger.schema import losses, slices
from ratchet.ledger.states import State
from ratchet.ledger.transactions import lock_pipeline
from ratchet.ledger.work import OffsetRange
from ratchet.operate.outcome import Change, Move, Outcome
from ratchet.protocol import leftovers, plan
from ratchet.protocol.commit import advance, move_on
from ratchet.protocol.leftovers import discard_finished
from ratchet.spec.pipeline import Pipeline

Decided = tuple[Outcome, bool]
"""What a move has done, and whether the head has met leftovers, so that it goes on when they are removed."""


def lock(conn: Connection, spec: Pipeline) -> Line:
    """The line, locked; IllegalMove where the ledger has none."""
    line = lock_pipeline(conn, spec.name)
    if line is None:
        raise IllegalMove(f"the ledger has nothing of pipeline {spec.name} yet")
    return line


def finish(ledger: Ledger, spec: Pipeline, decide: Callable[[Connection], Decided], dry_run: bool) -> Outcome:
    """Decide, in one database transaction, and then do what follows from it; a dry run is rolled back."""
    with ledger.begin(dry_run=dry_run) as conn:
        outcome, has_met_leftovers = decide(conn)
    if dry_run:
        return replace(outcome, dry_run=True)
    with suppress(LedgerUnreachable):
        # The move is made by now; what is left to be done after it, whoever comes next does.
        if has_met_leftovers:
            outcome = _went_on(ledger, spec, outcome)
    discard(ledger, spec)
    return outcome


def discard(ledger: Ledger, spec: Pipeline) -> None:
    """The move is made by now: an error would say otherwise, and whoever comes next discards."""
    with suppress(LedgerUnreachable):
        discard_finished(ledger, spec.name)


def advanced(
    conn: Connection, spec: Pipeline, move: Move, changes: list[Change], line: Line, *, dry_run: bool
) -> Decided:
    """Move the head as far as it goes now."""
    done = advance(conn, spec, line, by=None)
    committed = done.committed
    while dry_run and done.leftovers is not None:
        # What else is done outside the lock, and the move goes on after it.
        leftovers.remove_within(conn, leftovers.under(conn, done.leftovers))
        done = advance(conn, spec, lock(conn, spec), by=None)
        committed += done.committed
    now = lock(conn, spec)
    outcome = Outcome(move, spec.name, tuple(changes), now.head, committed, done.failed, done.why, pause=now.pause)
    return outcome, done.leftovers is not None


def changed(
    row: Transaction, from_state: State | None, reason: str | None, ranges: Iterable[OffsetRange] = ()
) -> Change:
    """What has become of a transaction."""
    return Change(row.txid, row.revision, None, from_state, row.state, tuple(r.told for r in ranges), reason)


def take_out(
    conn: Connection, row: Transaction, source: int, part: SliceRow, gone: list[OffsetRange], who: str, reason: str
) -> Change:
    """Take ranges out of a slice that has still to be read; a try that reads the old ones at this moment is fenced."""
    record_losses(conn, row, source, gone, who, reason)
    left = plan.without(part.ranges, [(r.partition, r.from_offset, r.until_offset) for r in gone])
    mine = (slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
    fenced = {"ranges": left, "try_number": slices.c.try_number + 1}
    conn.execute(update(slices).where(*mine, slices.c.slice == part.slice).values(fenced))
    return Change(row.txid, row.revision, part.slice, row.state, row.state, tuple(r.told for r in gone), reason)


def record_losses(
    conn: Connection, row: Transaction, source: int, gone: list[OffsetRange], who: str, reason: str
) -> None:
    """Write down what of a transaction's plan it does not take."""
    said = {"pipeline": row.pipeline, "txid": row.txid, "source": source, "who": who, "reason": reason}
    conn.execute(
        insert(losses),
        [
            {**said, "partition": r.partition, "from_offset": r.from_offset, "until_offset": r.until_offset}
            for r in gone
        ],
    )


def _went_on(ledger: Ledger, spec: Pipeline, tried: Outcome) -> Outcome:
    """The outcome, with what was committed after leftovers were removed that the head had met."""
    done = move_on(ledger, spec)
    with ledger.begin() as conn:
        line = lock(conn, spec)
    if line.head == tried.head:
        return tried
    return replace(
        tried,
        head=line.head,
        committed=(*tried.committed, *done.committed),
        failed=done.failed or tried.failed,
        failed_why=done.why or tried.failed_why,
    )
