"""One slice from its ranges to its vote: read, decode, transform, stage, on either engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import reduce

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from ratchet.errors import IncompleteRead, RecordsLost, TopicChanged
from ratchet.formats.missing import nearest
from ratchet.ledger.work import Absent, OffsetRange, SinkVote, SliceWork, Vote
from ratchet.sinks.lookup import sink_of, sinks_of
from ratchet.sinks.writer import Into
from ratchet.source.kafka import Kafka
from ratchet.spark.decode import NO_ROW, SEEN, decode
from ratchet.spark.failure import explained
from ratchet.spark.reader import read
from ratchet.spark.result import check_names, letters_of, rows_of
from ratchet.spark.staging import stage, summed
from ratchet.spec.columns import FieldPath
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline

NOTHING = SinkVote((), 0, 0)
KEEP_FROM = 20_000
"""From so many offsets it pays to keep the decoded records between the passes; below it costs more than it saves."""


def run_slice(spark: SparkSession, spec: Pipeline, work: SliceWork, ledger_url: str, kafka: dict[str, str]) -> Vote:
    """Process one slice and return its vote, which the caller casts.

    1. Check that the topic is the planned one and still has the ranges.
    2. Read exactly the ranges, and decode.
    3. Transform the good records.
    4. Stage each sink; the first pass also counts what was read, per partition.
    5. Stage the dead letters, if there are any.
    6. Check the positions reached, with an independent reader where the last offsets hold no record.
    7. Check the topic again: what was read is what was planned only if it did not change meanwhile.

    Raises TransformError, EngineLost, StagingFailed, IncompleteRead, RecordsLost, TopicChanged, Fenced,
    LedgerUnreachable, and Refused with the transform's own reason; then nothing is voted.
    """
    clock = _Clock()
    with Kafka(kafka) as client, ExitStack() as kept:
        # Step 1
        with clock.step("start"):
            _check_topic(spec, work, client)
        with explained(_where(spec, work), spec.transform, lambda: _check_topic(spec, work, client)):
            # Step 2
            with clock.step("decode"):
                decoded = _decoded(spark, spec, work, kafka)
                if len(spec.sinks) > 1 and sum(map(len, work.ranges)) >= KEEP_FROM:
                    decoded = kept.enter_context(_kept(decoded))
                observation = Observation(f"read_{work.token.txid}_{work.token.slice}_{time.monotonic_ns()}")
                observed = decoded.observe(observation, *_measures(spec, work))
            # Step 3
            with clock.step("transform"):
                result = _transformed(spec, work, observed)
                spent = _is_spent(observation)
                *declared, dead_letters = sinks_of(spec)
                rows = {sink.name: rows_of(spec, sink, result[sink.name]) for sink in declared}
            # Step 4
            votes = {sink.name: NOTHING for sink in sinks_of(spec)}
            into = Into(ledger_url, work.token, work.ranges, work.stages)
            for sink in declared if any(map(len, work.ranges)) else ():
                with clock.step(f"stage {sink.name}"):
                    votes[sink.name] = stage(rows[sink.name], sink, into)
            seen = _seen(observed, None if spent else observation, spec, work)
            # Step 5
            dead = _dead_letters(spec, work, observed, result, errors=seen["errors"] or 0)
            if dead is not None and any(map(len, work.ranges)):
                with clock.step(f"stage {DEAD_LETTERS}"):
                    votes[DEAD_LETTERS] = stage(dead, dead_letters, into)
        # Step 6
        with clock.step("check"):
            reached = _reached(spec, work, seen, client)
            # Step 7
            _check_topic(spec, work, client)
    return Vote(
        records=sum(seen[f"records_{p}"] or 0 for p in reached),
        absent=_absent(spec, seen),
        cut=seen["cut"] or 0,
        sinks=votes,
        dead_letters=votes[DEAD_LETTERS].rows,
        reached=reached,
        code_hash=spec.code_hash,
        application_id=_application_id(spark),
        seconds=clock.seconds,
    )


def recompute(
    spark: SparkSession, spec: Pipeline, works: Sequence[SliceWork], kafka: dict[str, str]
) -> dict[str, tuple[int, int]]:
    """{sink: (rows, checksum)} that the slices of a transaction give now, read from Kafka and transformed once more.

    Nothing is staged. The delta of the same code over the same records is the same. Raises what `run_slice` raises.
    """
    ranges = tuple(r for work in works for r in work.ranges)
    found: dict[str, list[DataFrame]] = {sink.name: [] for sink in sinks_of(spec)}
    with Kafka(kafka) as client:

        def check() -> None:
            for work in works:
                _check_topic(spec, work, client)

        check()
        with explained(_where(spec, works[0]), spec.transform, check):
            for work in works:
                decoded = _decoded(spark, spec, work, kafka)
                result = _transformed(spec, work, decoded)
                for sink in spec.sinks:
                    found[sink.name].append(rows_of(spec, sink_of(spec, sink.name), result[sink.name]))
                dead = _dead_letters(spec, work, decoded, result, errors=1)
                if dead is not None:
                    found[DEAD_LETTERS].append(dead)
            sums = {
                sink.name: summed(reduce(DataFrame.unionByName, found[sink.name]), sink, ranges)
                for sink in sinks_of(spec)
                if found[sink.name]
            }
        check()
    return sums


def _decoded(spark: SparkSession, spec: Pipeline, work: SliceWork, kafka: dict[str, str]) -> DataFrame:
    """Every record of the slice; `_error` says why one is no row, and is null for the others."""
    needs_key = any(sink.needs_key for sink in spec.sinks)
    return decode(read(spark, work.ranges, kafka), spec.source, key_required=needs_key)


def _transformed(spec: Pipeline, work: SliceWork, decoded: DataFrame) -> dict[str, DataFrame]:
    """What the transform makes of the good records, by sink."""
    good = decoded.where(F.col("_error").isNull() & (F.col("_n") != NO_ROW)).drop("_error", SEEN)
    return check_names(spec, spec.load_transform()(good.withColumn("_txn_time", F.lit(work.txn_time))))


@contextmanager
def _kept(decoded: DataFrame) -> Iterator[DataFrame]:
    """The records, decoded by whichever pass comes first; later ones neither read Kafka nor decode again."""
    kept = decoded.persist()
    try:
        yield kept
    finally:
        with suppress(PySparkException):  # a session that is lost has kept nothing, and has an error of its own
            kept.unpersist()


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


def _check_topic(spec: Pipeline, work: SliceWork, client: Kafka) -> None:
    """Raises TopicChanged, RecordsLost, or what the client says of a topic that it does not find."""
    where, offsets = _where(spec, work), client.offsets(spec.source.name)
    if offsets.topic_id != work.topic_id:
        raise TopicChanged(
            f"{where}: topic {offsets.topic} has id {offsets.topic_id}, the plan is of {work.topic_id}: it was deleted "
            "and made again, and the planned records are gone"
        )
    for r in work.ranges:
        beginning = offsets.beginning.get(r.partition)
        if len(r) and (beginning is None or beginning > r.from_offset):
            gone = f"{r.topic}-{r.partition}[{r.from_offset},{min(beginning or r.until_offset, r.until_offset)})"
            raise RecordsLost(
                f"{where}: retention has deleted {gone}, which were planned and not yet committed; nothing was voted; "
                "lengthen the topic's retention.ms"
            )
        end = offsets.stable[r.partition] if len(r) else r.until_offset
        if end < r.until_offset:
            # Spark would wait for them for two minutes.
            raise RecordsLost(
                f"{where}: {r.topic}-{r.partition} ends at offset {end}, and [{max(end, r.from_offset)},"
                f"{r.until_offset}) was planned: the log was cut, as by an unclean change of leader; nothing was voted"
            )


def _measures(spec: Pipeline, work: SliceWork) -> list:
    """What one pass over the decoded records tells: errors, records and last offset of each partition, and of the
    fields which were found, names beside the others, and how many moments were cut.
    """
    measures = [F.count(F.col("_error")).alias("errors")]
    # The first row of a record stands for it.
    first = F.col("_n") <= 0
    for partition in sorted({r.partition for r in work.ranges}):
        offset = F.when((F.col("_partition") == partition) & first, F.col("_offset"))
        measures += [F.count(offset).alias(f"records_{partition}"), F.max(offset).alias(f"last_{partition}")]
    seen = F.col(SEEN)
    measures += [F.bool_or(F.get(seen["found"], F.lit(i))).alias(f"found_{i}") for i in range(len(spec.source.columns))]
    measures += [F.max(seen["beside"]).alias("beside"), F.sum(seen["cut"]).alias("cut")]
    return measures


def _is_spent(observation: Observation) -> bool:
    """Whether an action of the transform's own has filled it: a classic session counts the first one alone."""
    java = getattr(observation, "_jo", None)
    return java is not None and java.future().isCompleted()


def _seen(observed: DataFrame, observation: Observation | None, spec: Pipeline, work: SliceWork) -> dict:
    """What a pass over all records tells: the staging's own, or where that was not observed one more."""
    if not any(map(len, work.ranges)):
        nothing = {"errors": 0, "cut": 0, "beside": None}
        return {**nothing, **{f"{m}_{r.partition}": None for r in work.ranges for m in ("records", "last")}}
    try:
        seen = observation.get if observation is not None else {}
    except Py4JError:
        # What a Connect server leaves empty, a classic session cannot even read.
        seen = {}
    if not seen:
        # A transform that drops everything may let Spark drop the read as well.
        seen = observed.agg(*_measures(spec, work)).collect()[0].asDict()
    return seen


def _dead_letters(
    spec: Pipeline, work: SliceWork, observed: DataFrame, result: dict[str, DataFrame], errors: int
) -> DataFrame | None:
    frames = []
    if errors:
        bad = observed.where(F.col("_error").isNotNull())
        told = bad.select("_partition", "_offset", "_record", F.col("_error").alias("error"))
        frames.append(told)
    if DEAD_LETTERS in result:
        frames.append(result[DEAD_LETTERS])
    if not frames:
        return None
    letters = [rows_of(spec, sink_of(spec, DEAD_LETTERS), letters_of(spec, frame)) for frame in frames]
    return reduce(DataFrame.unionByName, letters)


def _reached(spec: Pipeline, work: SliceWork, seen: dict[str, int], client: Kafka) -> dict[int, int]:
    """{partition: position reached}; IncompleteRead where records were left out at the end of a range."""
    until: dict[int, int] = {}
    for r in work.ranges:
        last = seen[f"last_{r.partition}"]
        position = r.from_offset if last is None else max(r.from_offset, last + 1)
        if position < r.until_offset:
            # Markers and aborted records are no records; only a reader that is not Spark can say so.
            rest = OffsetRange(r.topic, r.partition, position, r.until_offset)
            left = client.committed_records_between(rest)
            if left:
                raise IncompleteRead(
                    f"{_where(spec, work)}: Spark stopped before {rest}, which holds {left:,} committed records; "
                    "nothing was voted, the slice is tried again"
                )
        until[r.partition] = r.until_offset
    return until


def _application_id(spark: SparkSession) -> str:
    session = getattr(spark, "session_id", None)
    return f"connect {session}" if session else spark.sparkContext.applicationId


def _absent(spec: Pipeline, seen: dict) -> tuple[Absent, ...] | None:
    """The declared fields that no good message has; None where there was no good message to look at."""
    columns = spec.source.columns
    if not any(seen.get(f"found_{i}") for i in range(len(columns))) and seen["beside"] is None:
        return None
    beside = json.loads(seen["beside"] or "{}")
    return tuple(
        Absent(column.name, str(column.source), nearest(column.source.names[-1], beside.get(column.name, ())))
        for i, column in enumerate(columns)
        if not seen.get(f"found_{i}") and isinstance(column.source, FieldPath)
    )
