"""Whether one more run is wanted now: for what lies abandoned, for records that are due, or for a revision."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import name_of
from ratchet.protocol import due, halts, replays
from ratchet.protocol.begin import KafkaOffsets
from ratchet.protocol.claims import IsActive, abandoned, unclaimed
from ratchet.protocol.plan import Course, backlog, course_of
from ratchet.spec.pipeline import Pipeline


@dataclass(frozen=True)
class AbandonedWork:
    """A transaction or revision that a run could adopt: the first of them."""

    txid: int
    revision: int
    state: State

    @property
    def message(self) -> str:
        return f"{name_of(self.txid, self.revision)} is {self.state} and abandoned"


@dataclass(frozen=True)
class WaitingRecords:
    """So many records wait that are due, and no plan has taken."""

    records: int

    @property
    def message(self) -> str:
        return f"{self.records:,} records wait"


@dataclass(frozen=True)
class AskedRevision:
    """A revision is asked for, and none is going on."""

    txid: int
    who: str

    @property
    def message(self) -> str:
        return f"{self.who} has asked for a revision of transaction {self.txid}"


def wants_another_run(
    ledger: Ledger, spec: Pipeline, kafka_offsets: KafkaOffsets, is_active: IsActive
) -> AbandonedWork | WaitingRecords | AskedRevision | None:
    """Why one more run should be started now; None if it should not."""
    found = abandoned_work(ledger, spec, is_active) or waiting_records(ledger, spec, kafka_offsets)
    return found or asked_revision(ledger, spec)


def abandoned_work(ledger: Ledger, spec: Pipeline, is_active: IsActive) -> AbandonedWork | None:
    """What lies abandoned and may be adopted."""
    with ledger.begin() as conn:
        candidates, halt = unclaimed(conn, spec), halts.halt(conn, spec.name)
    lost = abandoned(candidates, is_active, halt)
    return AbandonedWork(lost[0].txid, lost[0].revision, lost[0].state) if lost else None


def waiting_records(ledger: Ledger, spec: Pipeline, kafka_offsets: KafkaOffsets) -> WaitingRecords | None:
    """How many records wait that are due, where a run could take them now: by interval, only a run with one can."""
    with ledger.begin() as conn:
        line = read_line(conn, spec.name)
        halt = halts.halt(conn, spec.name)
        course = course_of(conn, line) if line else Course({})
    if halt or spec.plan == "interval" or (line is not None and line.in_flight >= spec.max_in_flight):
        return None
    if line is None and due.is_asked_for(spec):
        return None
    offsets = kafka_offsets(None, None)
    course = course.next if course.is_at_end else course
    waiting = backlog(course.previous, offsets, course.limit(offsets, due.limit(spec, line, offsets)))
    return WaitingRecords(waiting) if waiting else None


def asked_revision(ledger: Ledger, spec: Pipeline) -> AskedRevision | None:
    """The revision that is asked for and could be begun now."""
    with ledger.begin() as conn:
        wanted = replays.is_due(conn, spec.name)
    return AskedRevision(wanted.txid, wanted.who) if wanted else None
