"""One slice from its ranges to its vote, by the lane that its transform asks for, on either engine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ratchet.errors import IncompleteRead, RecordsLost, TopicChanged, UnknownTopic
from ratchet.formats.missing import nearest
from ratchet.ledger.topics import titled
from ratchet.ledger.work import Absent, OffsetRange, SinkVote, SliceWork, Vote
from ratchet.logs import get_logger
from ratchet.sinks.lookup import sink_of, sinks_of
from ratchet.sinks.port import Sink
from ratchet.sinks.types import POSITION
from ratchet.sinks.writer import Into
from ratchet.source.kafka import Kafka
from ratchet.source.letters import letters_of
from ratchet.source.offsets import KnownLogs
from ratchet.spark import frame_lane, worker_lane
from ratchet.spark.decode import decode
from ratchet.spark.failure import explained
from ratchet.spark.intake import Intake, parts_of, spark_instead
from ratchet.spark.reader import read
from ratchet.spark.result import rows_of
from ratchet.spark.servers import Servers
from ratchet.spark.statements import told
from ratchet.spark.tally import Tally
from ratchet.spark.writing import encoded, summed
from ratchet.spec.columns import FieldPath
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.spec.subscription import Subscription
from ratchet.transforms.kinds import Kind, kind_of
from ratchet.values.endpoint import Endpoint

NOTHING = SinkVote((), 0, 0)
_PLACE = [column.name for column in POSITION]


def run_slice(spark: SparkSession, spec: Pipeline, work: SliceWork, ledger_url: str, servers: Servers) -> Vote:
    """Process one slice and return its vote, which the caller casts.

    1. Check that the topic is the planned one and still has the ranges; a release asks nothing of Kafka.
    2. Read exactly the ranges, decode, transform and write, in the worker lane or in the DataFrame lane.
    3. Check the positions reached.
    4. Check the topic again: what was read is what was planned only if it did not change meanwhile.

    Raises TransformError, EngineLost, WritingFailed, IncompleteRead, RecordsLost, TopicChanged, Fenced,
    LedgerUnreachable, and Refused with the transform's own reason; then nothing is voted.
    """
    clock = _Clock()
    with Kafka(servers.kafka) as client:
        # Step 1
        with clock.step("start"):
            _check_topic(spec, work, client)
        with explained(_where(spec, work), _transform(spec), lambda: _check_topic(spec, work, client), spec.private):
            # Step 2
            votes, tally = dict.fromkeys((sink.name for sink in sinks_of(spec)), NOTHING), Tally()
            if _is_to_be_read(work):
                into = Into(ledger_url, work.token, work.ranges, work.relations, work.source, spec.private)
                votes, tally = _run(spark, spec, work, into, servers, clock)
        with clock.step("check"):
            # Step 3
            reached = _reached(spec, work, tally, client, servers)
            # Step 4
            kept_tombstones = _check_topic(spec, work, client)
    return Vote(
        records=sum(tally.records.values()),
        ranges=work.ranges,
        absent=_absent(spec, tally),
        cut=tally.cut,
        sinks=votes,
        dead_letters=votes[DEAD_LETTERS].rows,
        reached=reached,
        code_hash=spec.code_hash,
        application_id=_application_id(spark),
        seconds=clock.seconds,
        kept_tombstones=kept_tombstones,
    )


def failing(
    spark: SparkSession, spec: Pipeline, works: Sequence[SliceWork], ledger_url: str, endpoints: Mapping[str, Endpoint]
) -> dict[str, int]:
    """{error: number} of the records that slices of a release would make dead letters again. Nothing is written."""
    found: Counter[str] = Counter()
    with explained(_where(spec, works[0]), _transform(spec), lambda: None, spec.private):
        for work in works:
            dead = _given(spark, spec, work, Servers({}, endpoints), ledger_url).get(DEAD_LETTERS)
            counts = [] if dead is None else dead.groupBy("error").count().collect()
            found.update({row["error"]: row["count"] for row in counts})
    return dict(found)


def recompute(
    spark: SparkSession, spec: Pipeline, works: Sequence[SliceWork], servers: Servers
) -> dict[str, tuple[int, int]]:
    """{sink: (rows, checksum)} that the slices of a transaction give now, read from Kafka and transformed once more.

    Nothing is written. The delta of the same code over the same records is the same. Raises what `run_slice` raises.
    """
    ranges = _ranges(works)
    with _again(spark, spec, works, servers) as found:
        sums: dict[str, tuple[int, int]] = {}
        for name, rows in found.items():
            with told(spec, name):
                sums[name] = summed(rows, sink_of(spec, name), ranges, spec.private)
    return sums


def encode(
    spark: SparkSession,
    spec: Pipeline,
    works: Sequence[SliceWork],
    servers: Servers,
    take: Callable[[Sink, Iterator[bytes]], None],
) -> None:
    """The same rows themselves: each sink takes them as PostgreSQL's binary COPY has them, in parts of about a MiB."""
    ranges = _ranges(works)
    with _again(spark, spec, works, servers) as found:
        for name, rows in found.items():
            sink = sink_of(spec, name)
            with told(spec, name):
                take(sink, encoded(rows, sink, ranges, spec.private))


def given(spark: SparkSession, spec: Pipeline, work: SliceWork, servers: Servers, most: int) -> dict[str, pa.Table]:
    """{sink: the first `most` rows that it is given of a slice}, for a person to look at. Nothing is written."""
    with _again(spark, spec, [work], servers) as found:
        tables: dict[str, pa.Table] = {}
        for name, rows in found.items():
            with told(spec, name):
                tables[name] = rows.orderBy(*_PLACE).limit(most).toArrow()
    return tables


def _ranges(works: Sequence[SliceWork]) -> tuple[OffsetRange, ...]:
    return tuple(r for work in works for r in work.ranges)


@contextmanager
def _again(
    spark: SparkSession, spec: Pipeline, works: Sequence[SliceWork], servers: Servers
) -> Iterator[dict[str, DataFrame]]:
    """{sink: what the slices of a transaction give it}, where they give anything; the topic is the planned one."""
    found: dict[str, list[DataFrame]] = {sink.name: [] for sink in sinks_of(spec)}
    with Kafka(servers.kafka) as client:

        def check() -> None:
            for work in works:
                _check_topic(spec, work, client)

        check()
        with explained(_where(spec, works[0]), _transform(spec), check, spec.private):
            for work in filter(_is_to_be_read, works):
                for name, rows in _given(spark, spec, work, servers).items():
                    found[name].append(rows)
            yield {name: reduce(DataFrame.unionByName, rows) for name, rows in found.items() if rows}
        check()


def _is_to_be_read(work: SliceWork) -> bool:
    """Not all of it was accepted as lost, perhaps with its topic."""
    return any(map(len, work.ranges))


def _run(
    spark: SparkSession, spec: Pipeline, work: SliceWork, into: Into, servers: Servers, clock: _Clock
) -> tuple[dict[str, SinkVote], Tally]:
    """The slice through the lane of its transform."""
    intake, given = _intake(spark, spec, work, servers, into.ledger_url)
    if kind_of(spec).only_spark:
        return frame_lane.run(given, spec, intake, work, into, clock.step)
    with clock.step("work"):
        return worker_lane.run(given, worker_lane.WorkerLane(spec, spec.code_hash, intake, into, work.txn_time))


def _given(
    spark: SparkSession, spec: Pipeline, work: SliceWork, servers: Servers, ledger_url: str = ""
) -> dict[str, DataFrame]:
    """What each sink is given of a slice, dead letters among them."""
    intake, given = _intake(spark, spec, work, servers, ledger_url)
    if not kind_of(spec).only_spark:
        return {
            sink.name: worker_lane.rows_of(given, worker_lane.Giving(spec, intake, work.txn_time, sink.name))
            for sink in sinks_of(spec)
        }
    decoded = decode(given, intake)
    result = frame_lane.transformed(spec, work.txn_time, decoded)
    rows = {sink.name: rows_of(spec, sink_of(spec, sink.name), result[sink.name]) for sink in spec.sinks}
    dead = frame_lane.dead_letter_rows(spec, decoded, result, errors=1)
    return rows if dead is None else {**rows, DEAD_LETTERS: dead}


def _intake(
    spark: SparkSession, spec: Pipeline, work: SliceWork, servers: Servers, ledger_url: str = ""
) -> tuple[Intake, DataFrame]:
    """How tasks read a slice, and the frame that they are given: numbers of parts, or records of Spark's source."""
    needs_key = any(sink.needs_key for sink in spec.sinks)
    instead = _instead(spec, work, servers)
    if instead is not None:
        if spec.source.reader != "spark":
            get_logger().warning(
                f"{_where(spec, work)}: read by Spark's Kafka source, which is slower than the columnar one: {instead}"
            )
        return Intake(spec.source, work.topics, servers, needs_key, None, spec.private), read(
            spark, work.ranges, servers.kafka
        )
    parts = parts_of(work.ranges)
    numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
    letters = letters_of(work, ledger_url)
    return Intake(spec.source, work.topics, servers, needs_key, parts, spec.private, letters), numbers


def _instead(spec: Pipeline, work: SliceWork, servers: Servers) -> str | None:
    """Why Spark's Kafka source reads the slice; None where tasks read parts of it."""
    return spark_instead(spec.source, servers.kafka) if work.releases is None else None


class _Clock:
    """Seconds by step, rounded to milliseconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 3)


def _where(spec: Pipeline, work: SliceWork) -> str:
    return f"{spec.name}: transaction {work.token.txid}, slice {work.token.slice}"


def _transform(spec: Pipeline) -> str:
    """The transform as errors name it."""
    return str(spec.transform or Kind.NONE)


def _check_topic(spec: Pipeline, work: SliceWork, client: Kafka) -> timedelta | None:
    """How long Kafka keeps tombstones of a topic that is compacted.

    Raises TopicChanged, RecordsLost, IncompleteRead, or what the client says of a topic that it does not find.
    """
    if work.releases is not None or not _is_to_be_read(work):
        return None
    where, names = _where(spec, work), sorted({r.topic for r in work.ranges if len(r)})
    of = Subscription(tuple(names), compacted=spec.source.compacted)
    try:
        offsets = client.offsets(of, known=KnownLogs(work.topics, work.lineages))
    except UnknownTopic:
        absent = sorted({*names} - client.ids(names).keys())
        if not absent:
            raise
        said = f"there is no {titled(absent)} in Kafka any more, and the planned records are gone"
        raise UnknownTopic(f"{where}: {said}") from None
    for name in names:
        now, planned = offsets.topics.ids[name], work.topics.ids[name]
        if now != planned:
            raise TopicChanged(
                f"{where}: topic {name} has id {now}, the plan is of {planned}: it was deleted and made again, and the "
                "planned records are gone"
            )
    for r in work.ranges:
        beginning = offsets.beginning.get(r.partition)
        if len(r) and (beginning is None or beginning > r.from_offset):
            gone = f"{r.where}[{r.from_offset},{min(beginning or r.until_offset, r.until_offset)})"
            raise RecordsLost(
                f"{where}: retention has deleted {gone}, which were planned and not yet committed; nothing was voted; "
                "lengthen the topic's retention.ms"
            )
        # Spark would wait for two minutes for what is not there, and read what has come in its place.
        same = offsets.same(r.partition, r.until_offset)
        if len(r) and same < r.until_offset:
            raise RecordsLost(
                f"{where}: {r.where} was cut at offset {same}, and [{max(same, r.from_offset)},"
                f"{r.until_offset}) was planned, as by an unclean change of leader or a restored disk; nothing was "
                f"voted; `ratchet accept-loss {spec.name} --reason …` goes on with what the log has now"
            )
        if len(r) and offsets.stable[r.partition] < r.until_offset:
            raise IncompleteRead(
                f"{where}: {r.where} is decided up to offset {offsets.stable[r.partition]} only, and "
                f"{r} was planned; nothing was voted, the slice is tried again"
            )
    return offsets.kept_tombstones


def _reached(spec: Pipeline, work: SliceWork, tally: Tally, client: Kafka, servers: Servers) -> dict[int, int]:
    """{partition: position reached}; IncompleteRead where records were left out at the end of a range."""
    until: dict[int, int] = {}
    by_spark = _instead(spec, work, servers) is not None
    is_whole = not by_spark and len(tally.parts) == len(parts_of(work.ranges))
    for r in work.ranges:
        # Of a slice that was not read in whole parts nothing is known. Of Spark's source the last record is, and only
        # another reader can say that what follows it are markers and aborted records.
        passed = tally.passed if by_spark else {}
        position = r.until_offset if is_whole else max(r.from_offset, passed.get(r.partition, r.from_offset))
        if position < r.until_offset:
            rest = OffsetRange(r.topic, r.partition, position, r.until_offset)
            if work.releases is not None:
                raise IncompleteRead(f"{_where(spec, work)}: the job stopped before {rest}; the slice is tried again")
            left = client.committed_records_between(rest)
            if left:
                raise IncompleteRead(
                    f"{_where(spec, work)}: the job stopped before {rest}, which holds {left:,} committed records; "
                    "nothing was voted, the slice is tried again"
                )
        until[r.partition] = r.until_offset
    return until


def _absent(spec: Pipeline, tally: Tally) -> tuple[Absent, ...] | None:
    """The declared fields that no good message has; None where there was no good message to look at."""
    if not tally.found and not tally.beside:
        return None
    return tuple(
        Absent(column.name, str(column.source), nearest(column.source.names[-1], tally.beside.get(column.name, ())))
        for column in spec.source.columns
        if column.name not in tally.found and isinstance(column.source, FieldPath)
    )


def _application_id(spark: SparkSession) -> str:
    session = getattr(spark, "session_id", None)
    return f"connect {session}" if session else spark.sparkContext.applicationId
