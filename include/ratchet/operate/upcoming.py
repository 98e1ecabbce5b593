"""The next transaction of a line: what a run would be given now, and what of the tables does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from ratchet.errors import BrokerUnreachable, LedgerUnreachable, Locked, NotMigrated, RatchetError, SpecError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.migrations import REVISION
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import OffsetRange, Run, counted, name_of
from ratchet.operate.migrate import differences, has_ledger, unseen
from ratchet.protocol import due, membership
from ratchet.protocol.begin import KafkaOffsets, begin
from ratchet.protocol.beginning import Beginning, chosen, of_first
from ratchet.protocol.begun import Begun, Skipped
from ratchet.protocol.plan import Course, Slice, course_of, starts
from ratchet.source.interval import IntervalEnd
from ratchet.source.offsets import KnownLogs, TopicOffsets
from ratchet.spec.pipeline import Pipeline

_RUN = Run("ratchet", "plan")
"""No run of Airflow has this name, so it resumes nothing."""


@dataclass(frozen=True)
class Tables:
    """How the ledger and the sinks' tables differ from what the spec needs; `ratchet migrate` makes what is missing."""

    changes: tuple[str, ...]
    """What a migration would do, a line for each change."""
    refused: str | None
    """What it would refuse, and why; then it would do nothing else."""
    unseen: tuple[str, ...] = ()
    """Tables whose rows this role may not see, each with the grants that it lacks; what is said may leave them out."""

    @property
    def fit(self) -> bool:
        return not self.changes and self.refused is None and not self.unseen


@dataclass(frozen=True)
class Upcoming:
    """What a run that a person or a schedule starts would be given now."""

    pipeline: str
    how: str
    """`allocated`, `adopted` or `replayed`, as begin has it; `skipped` or `refused`."""
    code: str | None
    """Of a skip its reason, of a refusal its error code."""
    why: str
    txid: int | None
    revision: int | None
    epoch: int | None
    slices: tuple[Slice, ...]
    waiting: Mapping[int, int] | Mapping[str, int]
    """{partition: so many offsets that Kafka has decided and this transaction leaves}, of a line of several topics by
    `topic-partition`; empty if Kafka was not asked."""
    begins: str | None
    """Where the line begins, and by which rule of the spec; None where Kafka was not asked, or it has transactions."""
    not_due: str | None
    """Why the runs that start by themselves would leave the records until somebody asks for them."""
    silent: tuple[str, ...]
    """Runs whose leases have run out: if Airflow does not have them any more, the next run adopts their work."""
    gates: tuple[str, ...]
    tables: Tables

    @property
    def offsets(self) -> int:
        """So many records at most."""
        return sum(map(len, self.slices))


def upcoming(
    ledger: Ledger,
    spec: Pipeline,
    kafka_offsets: KafkaOffsets,
    interval_end: datetime | None = None,
) -> Upcoming:
    """What the next run would do, by the steps of a begin that are undone.

    It holds the pipeline's lock for a moment, as a begin does; tables are compared with the spec by the catalog, and
    nobody who reads or writes them is held up. Airflow is not asked: a run that is silent counts as one that works.
    Raises LedgerUnreachable, BrokerUnreachable, and Locked.
    """
    fit = _tables(ledger, spec)
    silent: list[str] = []
    answers: list[TopicOffsets] = []

    def is_active(_: str, run_id: str) -> bool:
        silent.append(run_id)
        return True

    def offsets(before: IntervalEnd | None, known: KnownLogs | None, *since: datetime | None) -> TopicOffsets:
        answers.append(kafka_offsets(before, known, *since))
        return answers[-1]

    def try_(*, drains: bool) -> Begun | Skipped | RatchetError:
        asked = (ledger, spec, _RUN, offsets, is_active)
        try:
            return begin(*asked, interval_end=interval_end, drains=drains, dry_run=True)
        except (BrokerUnreachable, LedgerUnreachable, Locked):
            raise
        except RatchetError as error:
            return error

    found = try_(drains=False)
    not_due = None
    if isinstance(found, Begun) and found.how == "allocated" and due.is_asked_for(spec):
        itself = try_(drains=True)
        not_due = itself.message if isinstance(itself, Skipped) else None
    begun = found if isinstance(found, Begun) else None
    may_begin = not isinstance(found, SpecError)
    course, begins = _stands(ledger, spec, answers[-1]) if answers and may_begin else (None, None)
    return Upcoming(
        spec.name,
        begun.how if begun else "skipped" if isinstance(found, Skipped) else "refused",
        found.code if isinstance(found, RatchetError) else found.reason if isinstance(found, Skipped) else None,
        str(found) if isinstance(found, RatchetError) else found.message,
        begun.claim.txid if begun else None,
        begun.claim.revision if begun else None,
        begun.claim.epoch if begun else None,
        tuple(Slice(part.number, tuple(r.told for r in part.ranges)) for part in begun.slices) if begun else (),
        _left(course, answers[-1], begun) if course else {},
        str(begins) if begins else None,
        not_due,
        tuple(dict.fromkeys(silent)),
        tuple(gate.title for gate in spec.gates),
        fit,
    )


def lines_of(found: Upcoming) -> Iterator[str]:
    """What a person reads of it."""
    name = found.pipeline
    if found.txid is None:
        said = f"error {found.code}: {found.why}" if found.how == "refused" else found.why
        yield f"{name}: the next run begins nothing: {said.removeprefix(f'{name}: ')}"
    else:
        what = name_of(found.txid, found.revision or 0)
        size = f"{counted(found.offsets, 'offset')} in {counted(len(found.slices), 'slice')}"
        yield f"{name}: the next run takes {what}, {found.how}: {size}"
    if found.begins and found.txid is not None:
        # A skip says it itself.
        yield f"  {found.begins}"
    yield from (f"  slice {part.number}: {_ranges(part.ranges)}" for part in found.slices)
    left = sum(found.waiting.values())
    if left:
        by = ", ".join(
            f"{offsets:,} of {'partition ' if isinstance(p, int) else ''}{p}"
            for p, offsets in found.waiting.items()
            if offsets
        )
        yield f"  {counted(left, 'more offset waits', 'more offsets wait')}: {by}"
    if found.not_due:
        yield f"  runs that start by themselves leave them: {found.not_due.removeprefix(f'{name}: ')}"
    for run in found.silent:
        yield f"  run {run} is silent; if Airflow has it no more, the next run adopts its work instead"
    yield f"  gates that will be asked: {'; '.join(found.gates) or 'none'}"
    yield from (f"  tables: {line}" for line in _lines_of_tables(found.tables))


def _ranges(ranges: tuple[OffsetRange, ...]) -> str:
    return ", ".join(map(str, ranges)) or "nothing is left of it"


def _lines_of_tables(found: Tables) -> Iterator[str]:
    if found.fit:
        yield "as the spec needs them"
    yield from (f"`ratchet migrate` would have {line}" for line in found.changes)
    if found.refused:
        yield found.refused
    yield from found.unseen


def _tables(ledger: Ledger, spec: Pipeline) -> Tables:
    with ledger.snapshot() as conn:
        hidden = tuple(
            f"{'.'.join(table)} may not be seen by this role, which lacks a right: {'; '.join(grants)}"
            for table, grants in unseen(conn, spec).items()
        )
        try:
            made = differences(conn, spec)
            ledger_lacks = [] if has_ledger(conn) else [f"ledger: created at {REVISION}"]
        except NotMigrated as error:
            return Tables((), str(error), hidden)
    return Tables((*ledger_lacks, *(str(each) for each in made if each.is_change)), None, hidden)


def _stands(ledger: Ledger, spec: Pipeline, offsets: TopicOffsets) -> tuple[Course, Beginning | None]:
    """Where plans go on, and where the line begins, None where it has transactions."""
    with ledger.snapshot() as conn:
        line = read_line(conn, spec.name)
        if line is not None:
            course = course_of(conn, membership.as_joined(line, offsets))
            course = course.next if course.is_at_end else course
            new = membership.starts(spec, line.topics, offsets)
            return replace(course, previous=new | course.previous), of_first(conn, line)
    begins = chosen(spec, offsets)
    return Course(begins.starts), begins


def _left(course: Course, offsets: TopicOffsets, begun: Begun | None) -> dict[int, int] | dict[str, int]:
    """{partition: offsets that are decided and not planned}, beside what `begun` would take."""
    at = starts(course.previous, offsets)
    for r in (r for part in (begun.slices if begun else ()) for r in part.ranges):
        at[r.partition] = max(at.get(r.partition, 0), r.until_offset)
    left = {p: max(0, stable - at[p]) for p, stable in sorted(offsets.stable.items())}
    return left if len(offsets.topics) == 1 else {offsets.topics.said(p): number for p, number in left.items()}
