"""Whether one more run is wanted now: for what lies abandoned, for records that are due, or for a revision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import counted, name_of
from ratchet.protocol import due, halts, membership, replays
from ratchet.protocol.begin import KafkaOffsets
from ratchet.protocol.claims import IsActive, abandoned, unclaimed
from ratchet.protocol.plan import Course, backlog, course_of
from ratchet.source.offsets import KnownLogs, TopicOffsets
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
        return counted(self.records, "record waits", "records wait")


@dataclass(frozen=True)
class AskedRevision:
    """A revision is asked for, and none is going on."""

    txid: int
    who: str

    @property
    def message(self) -> str:
        return f"{self.who} has asked for a revision of transaction {self.txid}"


def wants_another_run(
    ledger: Ledger, spec: Pipeline, kafka_offsets: KafkaOffsets | None, is_active: IsActive
) -> AbandonedWork | WaitingRecords | AskedRevision | None:
    """Why one more run should be started now; None if it should not. Records are looked for by `kafka_offsets`."""
    found = abandoned_work(ledger, spec, is_active)
    if found is None and kafka_offsets is not None:
        found = waiting_records(ledger, spec, kafka_offsets)
    return found or asked_revision(ledger, spec)


def abandoned_work(ledger: Ledger, spec: Pipeline, is_active: IsActive) -> AbandonedWork | None:
    """What lies abandoned and may be adopted."""
    with ledger.begin() as conn:
        candidates, halt, line = unclaimed(conn, spec), halts.halt(conn, spec.name), read_line(conn, spec.name)
    lost = abandoned(candidates, is_active, line, halt) if line else []
    return AbandonedWork(lost[0].txid, lost[0].revision, lost[0].state) if lost else None


def waiting_records(ledger: Ledger, spec: Pipeline, kafka_offsets: KafkaOffsets) -> WaitingRecords | None:
    """How many records wait that are due, where a run could take them now: by interval, only a run with one can."""
    if spec.plan == "interval":
        return None
    return arrived_records(ledger, spec.name, spec.max_in_flight, kafka_offsets, partial(due.limit, spec))


def arrived_records(
    ledger: Ledger,
    pipeline: str,
    max_in_flight: int,
    kafka_offsets: KafkaOffsets,
    due_until: Callable[[Line | None, TopicOffsets], dict[int, int] | None] | None = None,
) -> WaitingRecords | None:
    """The same of a pipeline of which no spec is at hand; without `due_until` all is due."""
    with ledger.begin() as conn:
        line = read_line(conn, pipeline)
        halt = halts.halt(conn, pipeline)
        course = course_of(conn, line) if line else None
    if halt or (line is not None and not line.has_room(max_in_flight)):
        return None
    offsets = kafka_offsets(None, KnownLogs(line.topics) if line else None)
    joined = membership.as_joined(line, offsets) if line else None
    if joined and joined != line:
        # A topic that was left and is back goes on where its plans had ended.
        with ledger.begin() as conn:
            course = course_of(conn, joined)
    # A line that has not begun may begin later than the logs do: the run that is started decides that.
    course = course or Course(offsets.beginning)
    course = course.next if course.is_at_end else course
    # What has come in a topic that has not joined yet may be part of the line: the run that is started decides.
    new = membership.added(line.topics, offsets.topics) if line else ()
    course = replace(course, previous=offsets.of(new).beginning | course.previous)
    wanted = due_until(line, offsets) if due_until else None
    waiting = backlog(course.previous, offsets, course.limit(offsets, wanted))
    return WaitingRecords(waiting) if waiting else None


def asked_revision(ledger: Ledger, spec: Pipeline) -> AskedRevision | None:
    """The revision that is asked for and could be begun now."""
    with ledger.begin() as conn:
        wanted = replays.is_due(conn, spec.name)
    return AskedRevision(wanted.txid, wanted.who) if wanted else None
