"""A line's sources: which logs its plans are of, and the leader epochs by which a log that was cut is told.

A source is one id for each topic, one lineage of its partitions' logs, and one division of keys among partitions. Where
a person accepts that a log was cut, or that a topic was made again, the next source begins: offsets of that topic may
repeat those of the source before. Where keys have gone to other partitions, the next source waits until the one before
is planned up to where the next one starts: no transaction has records of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection, delete, func, insert, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.errors import Repartitioned
from ratchet.ledger import topic_rows
from ratchet.ledger.rows import Line
from ratchet.ledger.schema import heads, leader_epochs, pipelines, ranges, sources, topics, transactions
from ratchet.ledger.topics import Topics, number_of
from ratchet.ledger.work import counted
from ratchet.protocol import beginning, membership
from ratchet.protocol.beginning import FIRST
from ratchet.source.lineage import Lineage
from ratchet.source.offsets import KnownLogs, TopicOffsets
from ratchet.spec.pipeline import Pipeline

Lineages = dict[int, Lineage]
"""{partition: the leader epochs of its log}."""


class Cause(StrEnum):
    """Why a source begins."""

    FIRST = "first"
    CUT = "cut"
    """A log was cut: keys are where they were."""
    MADE_AGAIN = "made_again"
    REPARTITIONED = "repartitioned"
    """Keys have gone to other partitions."""


@dataclass(frozen=True)
class Known:
    """What Kafka's answers are held against: how long a line is, its newest source, and what is known of its logs.

    `opened_at` is of its last transaction. A ledger that was restored, or a line that was dropped, gives the same txid
    again, to other records: an answer from before would pass for a present one, and its ends for those of a cut log.
    """

    last_txid: int
    opened_at: datetime | None
    source: int
    lineages: Lineages
    topics: Topics = field(default_factory=Topics)

    def has_logs_of(self, other: Known) -> bool:
        """Whether the same is known of the same logs."""
        return (self.source, self.lineages, self.topics) == (other.source, other.lineages, other.topics)

    @property
    def logs(self) -> KnownLogs:
        """What Kafka is asked with."""
        return KnownLogs(self.topics, self.lineages)


NOTHING_KNOWN = Known(0, None, 0, {})
"""Before a line has begun."""


def just_begun(offsets: TopicOffsets) -> Known:
    """Of a line that has begun with what Kafka has said, and nothing else."""
    return Known(0, None, FIRST, {}, offsets.topics)


def register(conn: Connection, spec: Pipeline, offsets: TopicOffsets) -> bool:
    """The pipeline's row with where its line begins, made by its first run; and the check that its topics are
    the same.

    Whether the line begins by this answer; an answer from before it has begun by another one may be older than that.
    Raises SpecError where the line cannot begin as its spec says; TopicChanged.
    """
    pipeline = spec.name
    line = upsert(pipelines).values(pipeline=pipeline, source=FIRST, topics=offsets.topics.stored)
    begun_now = line.on_conflict_do_nothing().returning(pipelines.c.pipeline)
    begins = conn.execute(begun_now).scalar_one_or_none() is not None
    if begins:
        # Whoever begins at the same time waits here, and finds what was decided.
        begun = beginning.decide(conn, spec, offsets)
        conn.execute(insert(heads).values(pipeline=pipeline))
        first = {"source": FIRST, "cause": Cause.FIRST, "partitions": len(offsets.stable), "first_txid": 1}
        conn.execute(insert(sources).values(pipeline=pipeline, begun=begun.stored, **first))
        topic_rows.keep(conn, pipeline, FIRST, offsets.topics)
        beginning.keep(conn, pipeline, begun)
    stored = conn.execute(select(pipelines.c.topics).where(pipelines.c.pipeline == pipeline)).scalar_one()
    membership.check(spec, Topics.read(stored), offsets.topics)
    return begins


def lineages(conn: Connection, pipeline: str, source: int) -> Lineages:
    """The leader epochs of the logs of a source, as the plans so far have found them."""
    c = leader_epochs.c
    rows = conn.execute(
        select(c.partition, c.leader_epoch, c.from_offset)
        .where(c.pipeline == pipeline, c.source == source)
        .order_by(c.partition, c.leader_epoch)
    )
    found: Lineages = {}
    for partition, epoch, start in rows:
        found[partition] = (*found.get(partition, ()), (epoch, start))
    return found


def known(conn: Connection, line: Line) -> Known:
    """What is known of a line's logs at this moment."""
    c = transactions.c
    mine = (c.pipeline == line.pipeline, c.txid == line.last_txid, c.revision == 0)
    opened_at = conn.execute(select(c.opened_at).where(*mine)).scalar_one_or_none()
    return Known(line.last_txid, opened_at, line.source, lineages(conn, line.pipeline, line.source), line.topics)


def remember(conn: Connection, line: Line, before: Known, found: Mapping[int, Lineage]) -> None:
    """Keep what the leaders are found to be now; the caller holds the pipeline's lock and has checked the logs."""
    c = leader_epochs.c
    of = {"pipeline": line.pipeline, "source": line.source}
    for partition, lineage in found.items():
        if lineage != before.lineages.get(partition):
            mine = (c.pipeline == line.pipeline, c.source == line.source, c.partition == partition)
            conn.execute(delete(leader_epochs).where(*mine))
            rows = [{**of, "partition": partition, "leader_epoch": e, "from_offset": at} for e, at in lineage]
            conn.execute(insert(leader_epochs), rows)


def cut_logs(previous: Mapping[int, int], offsets: TopicOffsets) -> dict[int, int]:
    """{partition: up to where its log is still the one that was planned up to `previous`}, where it was cut.

    A log that has grown again since is told by its leader epochs alone.
    """
    found: dict[int, int] = {}
    for partition, until in previous.items():
        same = offsets.same(partition, until)
        if partition in offsets.stable and same < until:
            found[partition] = same
    return found


def source_of(conn: Connection, pipeline: str, txid: int) -> int:
    """The source that a transaction's ranges are of."""
    query = select(func.max(ranges.c.source)).where(ranges.c.pipeline == pipeline, ranges.c.txid == txid)
    return conn.execute(query).scalar_one()


def ends(conn: Connection, pipeline: str, source: int) -> dict[int, int] | None:
    """{partition: up to where a source can still be read}; None for the newest, which has no end.

    A later source has the same records of a topic below where it starts, unless that was made again.
    """
    c = topics.c
    mine = (c.pipeline == pipeline, c.source >= source)
    rows = conn.execute(select(c.source, c.number, c.topic_id).where(*mine).order_by(c.source, c.number))
    found: dict[int, dict[int, str]] = {}
    for of, number, topic_id in rows:
        found.setdefault(of, {})[number] = topic_id
    return ends_of([*found.items()], lambda number: _starts(conn, pipeline, number))


def ends_of(
    of: Sequence[tuple[int, Mapping[int, str]]], starts: Callable[[int], Mapping[int, int]]
) -> dict[int, int] | None:
    """The same of the first of these (source, {topic's number: its id}), which follow one another and start there."""
    found: dict[int, int] | None = None
    for source, ids in of[1:]:
        before = found or {}
        same = {number for number, topic_id in ids.items() if of[0][1].get(number) == topic_id}
        at_most = {p: at if number_of(p) in same else 0 for p, at in starts(source).items()}
        found = {p: min(at, before.get(p, at)) for p, at in at_most.items()}
    return found


def needs_partitions(spec: Pipeline) -> list[str]:
    """The sinks to which the last record of a key is the last one of its partition."""
    return [sink.name for sink in spec.sinks if sink.needs_key]


def check_partitions(conn: Connection, spec: Pipeline, line: Line, offsets: TopicOffsets) -> None:
    """Raise Repartitioned where keys may be in other partitions than the ledger knows of, and that matters.

    So it is where the topic has more partitions than its keys were divided among, and where a source passed over
    another one that waited: what a person had said of keys holds for offsets of a log that was cut.
    """
    number, partitions = newest(conn, line)
    sinks = needs_partitions(spec)
    if len(offsets.stable) <= partitions:
        forgotten = _passed_over(conn, line) if sinks else None
        if forgotten is None:
            return
        raise Repartitioned(
            f"{spec.name}: source {forgotten}, which would have begun where keys have gone to other partitions, was "
            f"passed over when a loss was accepted, and {', '.join(sinks)} has no order column by which the last "
            f"record of such a key is told; nothing was planned; `ratchet repartitioned {spec.name} --at TIME --reason "
            "…` says anew since when, and goes on"
        )
    if not sinks:
        of = (sources.c.pipeline == line.pipeline, sources.c.source == number)
        conn.execute(update(sources).where(*of).values(partitions=len(offsets.stable)))
        return
    goes_on = (
        f"`ratchet repartitioned {spec.name} --reason …` goes on, with the partitions of before up to their present"
    )
    goes_on += " ends first"
    if spec.source.compacted:
        goes_on = (
            "and it is compacted, in each partition by itself: write the keys to a new topic, and read that by a new"
        )
        goes_on += " pipeline"
    raise Repartitioned(
        f"{spec.name}: {offsets.title} has {counted(len(offsets.stable), 'partition')}, "
        f"{partitions} were there before: "
        f"producers give keys to other partitions now, and {', '.join(sinks)} has no order column by which the last "
        f"record of such a key is told; nothing was planned; {goes_on}"
    )


def window(conn: Connection, pipeline: str, txid: int) -> tuple[int, int | None]:
    """(first, next): among the transactions from the first on, and before the next, a key has one partition."""
    c = sources.c
    begun = select(c.first_txid).where(c.pipeline == pipeline, c.first_txid.is_not(None), c.cause != Cause.CUT)
    firsts = conn.execute(begun).scalars().all()
    return max(at for at in firsts if at <= txid), min((at for at in firsts if at > txid), default=None)


def _passed_over(conn: Connection, line: Line) -> int | None:
    """The last source that waited for keys in other partitions and never began, if nothing was said of keys since."""
    c = sources.c
    said = select(c.source, c.first_txid).where(c.pipeline == line.pipeline, c.cause != Cause.CUT)
    last = conn.execute(said.order_by(c.source.desc()).limit(1)).one()
    return last.source if last.first_txid is None and last.source < line.source else None


def waiting(conn: Connection, line: Line) -> int | None:
    """The source that begins when the present one is planned up to its end."""
    c = sources.c
    return conn.execute(select(func.min(c.source)).where(c.pipeline == line.pipeline, c.source > line.source)).scalar()


def begin_next(conn: Connection, line: Line) -> Line:
    """Begin the source that waits; the caller holds the pipeline's lock, and nothing of the present one is left.

    Its logs are those of the present one, as they were found last.
    """
    number = waiting(conn, line)
    assert number is not None, "the present source has an end"
    remember(conn, replace(line, source=number), NOTHING_KNOWN, lineages(conn, line.pipeline, line.source))
    of = (sources.c.pipeline == line.pipeline, sources.c.source == number)
    conn.execute(update(sources).where(*of).values(first_txid=line.last_txid + 1))
    conn.execute(update(pipelines).where(pipelines.c.pipeline == line.pipeline).values(source=number))
    return replace(line, source=number)


def open_next(conn: Connection, line: Line, offsets: TopicOffsets, starts: Mapping[int, int], cause: Cause) -> int:
    """Begin the next source, whose partitions start there; the caller holds the pipeline's lock.

    One that waits is passed over: it never begins.
    """
    number = announce(conn, line, offsets, starts, cause)
    remember(conn, replace(line, source=number), NOTHING_KNOWN, offsets.lineages)
    mine = (sources.c.pipeline == line.pipeline, sources.c.source == number)
    conn.execute(update(sources).where(*mine).values(first_txid=line.last_txid + 1))
    of = {"topics": membership.renewed(line.topics, offsets).stored}
    conn.execute(update(pipelines).where(pipelines.c.pipeline == line.pipeline).values(source=number, due=None, **of))
    return number


def announce(conn: Connection, line: Line, offsets: TopicOffsets, starts: Mapping[int, int], cause: Cause) -> int:
    """Make the next source, whose partitions start there; it waits until it is begun."""
    c = sources.c
    mine = (c.pipeline == line.pipeline, c.source == line.source)
    partitions = len(offsets.stable)
    if cause == Cause.CUT:
        partitions = conn.execute(select(c.partitions).where(*mine)).scalar_one()
    number = newest(conn, line)[0] + 1
    conn.execute(insert(sources).values(pipeline=line.pipeline, source=number, cause=cause, partitions=partitions))
    topic_rows.keep(conn, line.pipeline, number, membership.renewed(line.topics, offsets))
    row = {"pipeline": line.pipeline, "source": number, "txid": 0, "from_offset": None}
    conn.execute(insert(ranges), [{**row, "partition": p, "until_offset": at} for p, at in sorted(starts.items())])
    return number


def newest(conn: Connection, line: Line) -> tuple[int, int]:
    """(number, partitions) of the newest source, also of one that waits."""
    query = select(sources.c.source, sources.c.partitions).where(sources.c.pipeline == line.pipeline)
    row = conn.execute(query.order_by(sources.c.source.desc()).limit(1)).one()
    return row.source, row.partitions


def _starts(conn: Connection, pipeline: str, source: int) -> dict[int, int]:
    c = ranges.c
    rows = conn.execute(
        select(c.partition, c.until_offset).where(
            c.pipeline == pipeline, c.source == source, c.txid == literal_column("0")
        )
    )
    return {partition: at for partition, at in rows}
