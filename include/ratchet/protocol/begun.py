"""What a begin gives its run: a transaction with all its slices, or why there is nothing for it to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from sqlalchemy import Connection, select

from ratchet.ledger.rows import Line
from ratchet.ledger.schema import slices
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Claim, counted
from ratchet.protocol.plan import Slice, read_ranges
from ratchet.protocol.turns import waits_for
from ratchet.spec.pipeline import Pipeline

How = Literal["resumed", "revised", "adopted", "replayed", "allocated"]


@dataclass(frozen=True)
class Begun:
    """A transaction for this run: its claim, all its slices in order, and the line for the task's log."""

    claim: Claim
    slices: tuple[Slice, ...]
    how: How
    message: str


class Skip(StrEnum):
    """Why there is nothing for a run to do."""

    MAX_IN_FLIGHT = "max_in_flight"
    """As many transactions as the spec allows are unfinished, and none of them is abandoned."""
    PAUSED = "paused"
    """A person has paused the line behind its last transaction."""
    NO_RECORDS = "no_records"
    """No records wait, or none of the run's data interval."""
    NO_INTERVAL = "no_interval"
    """The pipeline plans by data intervals, and this run has none."""
    VOIDED = "voided"
    """The run's own transaction is voided."""
    ADOPTED = "adopted"
    """Another run has adopted its transaction, and works on it."""
    COMMITTED_BY_ANOTHER = "committed_by_another"
    """Another run has adopted its transaction and committed it."""
    REPLAY_WAITS = "replay_waits"
    """The revision that its clear asks for waits until the one that is going on has ended."""
    COMMITTED_BEFORE = "committed_before"
    """The run's own is committed already, as where a run is deleted and made again under its id."""
    PRUNED = "pruned"
    """The run's own is so old that the ledger has nothing of it any more but that this run had it."""


@dataclass(frozen=True)
class Skipped:
    """There is nothing for this run to do; the message says why, with txids and runs."""

    reason: Skip
    message: str


def given(conn: Connection, spec: Pipeline, claim: Claim, how: How, why: str) -> Begun:
    """What a run is given that holds this claim; `how` it came to it, and `why`."""
    line = read_line(conn, spec.name)
    assert line is not None, "a foreign key holds each transaction to its pipeline"
    cut_ = _cut(conn, line, claim)
    waits = None if claim.revision else waits_for(conn, line, claim.txid)
    place = "it waits for no turn" if claim.revision else "it is next in line"
    message = (
        f"{claim}: {why}; {counted(len(cut_), 'slice')}, {counted(sum(map(len, cut_)), 'offset')}; "
        f"epoch {claim.epoch}, claim {claim.number}; {waits or place}"
    )
    return Begun(claim, cut_, how, message)


def _cut(conn: Connection, line: Line, claim: Claim) -> tuple[Slice, ...]:
    """All slices of a claim's epoch, in order."""
    rows = conn.execute(
        select(slices.c.slice, slices.c.ranges)
        .where(slices.c.pipeline == line.pipeline, slices.c.txid == claim.txid, slices.c.epoch == claim.epoch)
        .order_by(slices.c.slice)
    ).all()
    return tuple(Slice(row.slice, read_ranges(line.topics, row.ranges)) for row in rows)
