"""The plan: which ranges a transaction takes, and how they are cut into slices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, func, insert, literal_column, select

from ratchet.errors import RecordsLost, TopicChanged
from ratchet.ledger import letters, topic_rows
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, Transaction
from ratchet.ledger.schema import losses, ranges, slices, topics
from ratchet.ledger.topics import Topics
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import OffsetRange, divided
from ratchet.protocol import membership
from ratchet.protocol.sources import cut_logs, ends, source_of
from ratchet.source.interval import IntervalEnd
from ratchet.source.offsets import TopicOffsets
from ratchet.spec.pipeline import Pipeline


@dataclass(frozen=True)
class Slice:
    """The part of a plan that one Spark job processes; `number` is its place in the plan, from 0."""

    number: int
    ranges: tuple[OffsetRange, ...]

    @property
    def name(self) -> str:
        """What a person reads in Airflow's grid: `flights-0 [120,240) · flights-3 [0,55)`."""
        said = [f"{r.where} [{r.from_offset},{r.until_offset})" for r in self.ranges]
        return " · ".join(said[:3]) + (f" · and {len(said) - 3} more" if len(said) > 3 else "")

    def __len__(self) -> int:
        return sum(len(r) for r in self.ranges)


def previous_until(conn: Connection, pipeline: str, source: int) -> dict[int, int]:
    """{partition: where the next range must start}, for every partition of the source that was ever planned."""
    return newest_until(conn, pipeline, source)


@dataclass(frozen=True)
class Course:
    """Where a line's plans go on by partition and, where another source waits for it, up to where they go at most."""

    previous: dict[int, int]
    until: dict[int, int] | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether all is planned, so that the source that waits begins."""
        return self.until is not None and all(self.previous.get(p, 0) >= at for p, at in self.until.items())

    @property
    def next(self) -> Course:
        """Of the source that waits."""
        return Course(self.until or {})

    @property
    def left(self) -> dict[int, int]:
        """Where those partitions go on of which something may still be planned."""
        if self.until is None:
            return self.previous
        return {p: at for p, at in self.previous.items() if at < self.until.get(p, 0)}

    @property
    def fixed(self) -> dict[int, int]:
        """Up to where each partition's log must stay as it is: so far it is planned, or the next source begins."""
        return self.previous if self.until is None else self.until

    @property
    def taken(self) -> dict[int, int]:
        """Up to where the records of each partition are the business of plans that are made."""
        return {p: at if self.until is None else min(at, self.until.get(p, 0)) for p, at in self.previous.items()}

    def limit(self, offsets: TopicOffsets, wanted: dict[int, int] | None) -> dict[int, int] | None:
        """Up to where the next plan may go in each partition, which is wanted up to there; None for all that is."""
        if self.until is None:
            return wanted
        return {p: min(self.until.get(p, 0), (wanted or {}).get(p, end)) for p, end in offsets.stable.items()}


def course_of(conn: Connection, line: Line) -> Course:
    """Where the plans of a line go on."""
    previous = previous_until(conn, line.pipeline, line.source)
    return Course(membership.present(previous, line.topics), ends(conn, line.pipeline, line.source))


MOST_OFFSETS = 2**63 - 1
"""As many as a partition can have."""


def end_of_interval(ledger: Ledger, spec: Pipeline, at: datetime | None, most: int) -> IntervalEnd | None:
    """Up to when a run of the interval that ends `at` takes records, at most so many of them; None without one.

    What is too late to be true is told by the ledger's clock, which is one for all runs, and not by the interval's end:
    of an interval long past, today's records are the later ones.
    """
    if at is None:
        return None
    with ledger.begin() as conn:
        line = read_line(conn, spec.name)
        starts = previous_until(conn, spec.name, line.source) if line else {}
        return replace(since(conn, spec, at), starts=starts, most=most)


def since(conn: Connection, spec: Pipeline, at: datetime) -> IntervalEnd:
    """The first record of that time or later, wherever it is."""
    now: datetime = conn.execute(select(func.clock_timestamp())).scalar_one()
    return IntervalEnd(at, now + spec.max_future, {}, MOST_OFFSETS, spec.source.reader)


def check_readable(pipeline: str, course: Course, offsets: TopicOffsets) -> None:
    """Raise when Kafka no longer has what the next plan would start with, naming the missing offsets.

    And where a log was cut below what is planned, also in partitions of which nothing is left to plan: their records
    may have to be read yet, and their offsets are others' now. Likewise where it was cut below the offset at which the
    next source is to begin: there may be no record at it for long, or one that has nothing to do with the decision.
    """
    for partition, until in sorted(course.left.items()):
        where = f"{pipeline}: {offsets.topics.said(partition)}"
        if partition not in offsets.stable:
            raise TopicChanged(f"{where} is gone, though the ledger has planned it up to offset {until}")
        if offsets.beginning[partition] > until:
            missing = offsets.range(partition, until, offsets.beginning[partition])
            raise RecordsLost(
                f"{where}: retention has deleted {missing}, {len(missing):,} offsets that no transaction has taken; "
                "nothing was planned; lengthen the topic's retention.ms, and go on without the missing records by "
                f"`ratchet accept-loss {pipeline} --reason …`"
            )
    fixed, planned = course.fixed, course.taken
    for partition, at in sorted(cut_logs(fixed, offsets).items()):
        end, until = offsets.end.get(partition, offsets.stable[partition]), planned.get(partition, 0)
        grown = f" and has other records up to {end} now" if end > at else ""
        though = f"the ledger has planned it up to {until}"
        if until <= at:
            though = f"keys are said to be in other partitions from offset {fixed[partition]} on"
        log = offsets.topics.said(partition)
        raise RecordsLost(
            f"{pipeline}: the log of {log} was cut at offset {at}{grown}, though {though}, as "
            f"by an unclean change of leader or a restored disk; nothing was planned; `ratchet accept-loss {pipeline} "
            f"--reason …` goes on from {min(at, until)} with every new record, and keeps what was committed of the old "
            "ones"
        )


def plan(
    previous: dict[int, int], offsets: TopicOffsets, max_records: int, wanted: dict[int, int] | None = None
) -> list[OffsetRange]:
    """The next ranges, one a partition with a backlog, together at most `max_records` offsets.

    `wanted` limits partitions to offsets below the last stable ones. Every partition gets a share in proportion to
    its backlog, so that all advance through time together.
    """
    start = starts(previous, offsets)
    until = {p: min(stable, (wanted or {}).get(p, stable)) for p, stable in offsets.stable.items()}
    backlog = {p: max(0, until[p] - at) for p, at in start.items()}
    total = sum(backlog.values())
    if total <= max_records:
        share = backlog
    else:
        share = {p: n * max_records // total for p, n in backlog.items()}
        # What rounding left over goes to the largest remainders, one each, so the cap is met exactly.
        left = max_records - sum(share.values())
        for p in sorted(backlog, key=lambda p: (-(backlog[p] * max_records % total), p))[:left]:
            share[p] += 1
    return [offsets.range(p, start[p], start[p] + n) for p, n in share.items() if n]


def starts(previous: dict[int, int], offsets: TopicOffsets) -> dict[int, int]:
    """{partition: where its next range starts}, for every partition that Kafka has now.

    Where a line begins is known of the partitions that it found then. A partition that comes to a topic later begins at
    0 whatever retention has deleted of it since: those records came after the line had begun, so they are lost.
    """
    return {p: previous.get(p, 0) for p in sorted(offsets.stable)}


def backlog(previous: dict[int, int], offsets: TopicOffsets, wanted: dict[int, int] | None = None) -> int:
    """How many offsets wait below the last stable offsets, and below those that are `wanted`."""
    return sum(len(r) for r in plan(previous, offsets, 2**62, wanted))


def cut(planned: list[OffsetRange], slice_records: int) -> list[Slice]:
    """The planned ranges in slices of nearly equal size, each of at most `slice_records` offsets."""
    total = sum(len(r) for r in planned)
    count = max(1, -(-total // slice_records))
    return [Slice(number, part) for number, part in enumerate(divided(planned, max(1, -(-total // count))))]


def anchor(conn: Connection, line: Line, offsets: TopicOffsets) -> None:
    """Remember that every partition that has come since starts at 0, whether or not it is planned now.

    What retention deletes of it from there on is a loss. The caller holds the pipeline's lock.
    """
    known = previous_until(conn, line.pipeline, line.source)
    row = {"pipeline": line.pipeline, "source": line.source, "txid": 0, "from_offset": None}
    new = [{**row, "partition": p, "until_offset": at} for p, at in starts(known, offsets).items() if p not in known]
    if new:
        conn.execute(insert(ranges), new)


def store(conn: Connection, pipeline: str, txid: int, source: int, planned: list[OffsetRange]) -> None:
    """Make the plan durable; the database refuses a gap or an overlap with what was planned before."""
    row = {"pipeline": pipeline, "source": source, "txid": txid}
    rows = [
        {**row, "partition": r.partition, "from_offset": r.from_offset, "until_offset": r.until_offset} for r in planned
    ]
    conn.execute(insert(ranges), rows)


def store_cut(conn: Connection, pipeline: str, txid: int, of: list[Slice]) -> None:
    """Make the cut of a transaction's first epoch durable: Airflow maps slices by position."""
    conn.execute(
        insert(slices),
        [
            {"pipeline": pipeline, "txid": txid, "epoch": 1, "slice": s.number, "ranges": write_ranges(s.ranges)}
            for s in of
        ],
    )


def copy_cut(conn: Connection, row: Transaction, before: int) -> None:
    """Give the row's epoch the cut of epoch `before`, less what was accepted as lost since.

    Airflow maps slices by position, so a slice of which nothing is left stays as an empty one.
    """
    mine = (slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == before)
    lost = losses_of(conn, row.pipeline, row.txid)
    conn.execute(
        insert(slices),
        [
            {
                "pipeline": row.pipeline,
                "txid": row.txid,
                "epoch": row.epoch,
                "slice": part.slice,
                "ranges": without(part.ranges, lost),
            }
            for part in conn.execute(select(slices.c.slice, slices.c.ranges).where(*mine).order_by(slices.c.slice))
        ],
    )


def cut_of(conn: Connection, row: Transaction, epoch: int) -> list[list[list[int]]]:
    """The stored ranges of each slice of an epoch of the row's transaction."""
    c = slices.c
    mine = (c.pipeline == row.pipeline, c.txid == row.txid, c.epoch == epoch)
    return list(conn.execute(select(c.ranges).where(*mine).order_by(c.slice)).scalars())


def cut_letters(conn: Connection, line: Line, row: Transaction, before: int, errors: str) -> None:
    """Give the epoch of a release those slices of epoch `before` that have dead letters which it takes."""
    parts = cut_of(conn, row, before)
    held = [
        part for part in parts if letters.count(conn, row.pipeline, row.txid, errors, read_ranges(line.topics, part))
    ]
    new = {"pipeline": row.pipeline, "txid": row.txid, "epoch": row.epoch}
    conn.execute(insert(slices), [{**new, "slice": number, "ranges": part} for number, part in enumerate(held)])


def reached(conn: Connection, line: Line) -> tuple[int, dict[int, int]]:
    """The source of the line's turn, and {partition: until where its records are committed or voided}.

    What a person took out of its plans, the next source takes.
    """
    ahead = select(ranges.c.source).where(ranges.c.pipeline == line.pipeline, ranges.c.txid > line.head)
    first = conn.execute(ahead.order_by(ranges.c.txid, ranges.c.source).limit(1)).scalar_one_or_none()
    source = first or line.source
    known = newest_until(conn, line.pipeline, source, line.head)
    return source, Course(known, ends(conn, line.pipeline, source)).taken


def newest_until(conn: Connection, pipeline: str, source: int, last_txid: int | None = None) -> dict[int, int]:
    """{partition: where its newest range ends, of transactions up to `last_txid` if it is given}.

    Each partition has one row of txid 0, for which alone there is an index, and its newest range is an index's last
    entry: how many transactions there were does not matter.
    """
    seen, newest = ranges.alias("seen"), ranges.alias("newest")
    of = [newest.c[name] == seen.c[name] for name in ("pipeline", "source", "partition")]
    if last_txid is not None:
        of.append(newest.c.txid <= last_txid)
    until = select(newest.c.until_offset).where(*of).order_by(newest.c.until_offset.desc()).limit(1)
    mine = (seen.c.pipeline == pipeline, seen.c.source == source, seen.c.txid == literal_column("0"))
    return {
        partition: at for partition, at in conn.execute(select(seen.c.partition, until.scalar_subquery()).where(*mine))
    }


def taken_by(conn: Connection, line: Line, wanted: dict[int, int]) -> int | None:
    """The last transaction that took records below the offsets `wanted`; None if there is none."""
    by: list[int] = []
    for partition, at in wanted.items():
        mine = (ranges.c.pipeline == line.pipeline, ranges.c.source == line.source, ranges.c.partition == partition)
        # Ranges follow one another: the one that holds the offset before `at`, or the newest where all are below it.
        reaches = select(ranges.c.txid).where(*mine, ranges.c.until_offset >= at).order_by(ranges.c.until_offset)
        newest = select(ranges.c.txid).where(*mine).order_by(ranges.c.until_offset.desc())
        either = func.coalesce(reaches.limit(1).scalar_subquery(), newest.limit(1).scalar_subquery())
        by.append(conn.execute(select(either)).scalar_one() or 0)
    return max(by, default=0) or None


def ranges_of(conn: Connection, pipeline: str, txid: int) -> list[OffsetRange]:
    """The plan of a transaction, by partition."""
    rows = conn.execute(
        select(topics.c.topic, ranges.c.partition, ranges.c.from_offset, ranges.c.until_offset)
        .join(topics, topic_rows.is_of(ranges))
        .where(ranges.c.pipeline == pipeline, ranges.c.txid == txid)
        .order_by(ranges.c.partition)
    )
    return [OffsetRange(*row) for row in rows]


def read_ranges(of: Topics, stored: list[list[int]]) -> tuple[OffsetRange, ...]:
    """The ranges of a slice from their stored form `[[partition, from_offset, until_offset], ...]`."""
    return tuple(OffsetRange(of.name(partition), partition, *ends) for partition, *ends in stored)


def write_ranges(of: tuple[OffsetRange, ...]) -> list[list[int]]:
    """The stored form of a slice's ranges."""
    return [[r.partition, r.from_offset, r.until_offset] for r in of]


def losses_of(conn: Connection, pipeline: str, txid: int) -> list[tuple[int, int, int]]:
    """[(partition, from_offset, until_offset)] of the plan that a person has accepted as lost."""
    rows = conn.execute(
        select(losses.c.partition, losses.c.from_offset, losses.c.until_offset).where(
            losses.c.pipeline == pipeline, losses.c.txid == txid
        )
    )
    return [(row.partition, row.from_offset, row.until_offset) for row in rows]


def voted_and_gone(conn: Connection, row: Transaction, offsets: TopicOffsets) -> list[OffsetRange]:
    """What the votes of the row's epoch cover, and Kafka does not have: deleted at the beginning, or cut at the end."""
    voted = conn.execute(
        select(slices.c.ranges)
        .where(slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
        .where(slices.c.voted_at.is_not(None))
    ).scalars()
    gone: list[OffsetRange] = []
    until_of = ends(conn, row.pipeline, source_of(conn, row.pipeline, row.txid))
    for r in (r for stored in voted for r in read_ranges(offsets.topics, stored)):
        beginning = offsets.beginning.get(r.partition, r.until_offset)
        end = offsets.same(r.partition, r.until_offset)
        if until_of is not None:
            end = min(end, until_of.get(r.partition, 0))
        deleted = (r.from_offset, min(r.until_offset, beginning))
        cut_off = (max(r.from_offset, end), r.until_offset)
        gone += [OffsetRange(r.topic, r.partition, *part) for part in {deleted, cut_off} if part[0] < part[1]]
    return sorted(gone)


def outside(r: OffsetRange, first: int, last: int) -> list[OffsetRange]:
    """The parts of a range that are below offset `first`, or at `last` and beyond."""
    below = (r.from_offset, min(first, r.until_offset))
    beyond = (max(last, below[1], r.from_offset), r.until_offset)
    return [OffsetRange(r.topic, r.partition, *part) for part in (below, beyond) if part[0] < part[1]]


def without(stored: list[list[int]], lost: list[tuple[int, int, int]]) -> list[list[int]]:
    """A slice's stored ranges without what is lost: retention moves their starts, a cut of the log their ends."""
    kept: list[list[int]] = []
    for partition, start, until in stored:
        for where, lost_from, lost_until in sorted(lost):
            if where == partition and lost_from <= start < lost_until:
                start = min(lost_until, until)
            elif where == partition and start < lost_from < until <= lost_until:
                until = lost_from
        if start < until:
            kept.append([partition, start, until])
    return kept
