"""The DataFrame lane: Spark runs what a transform over DataFrames or in SQL plans; each sink is a job of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from functools import reduce
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from ratchet.ledger.work import SinkVote, SliceWork
from ratchet.sinks.lookup import sink_of, sinks_of
from ratchet.sinks.writer import Into
from ratchet.spark.decode import END, NO_ROW, SEEN, decode
from ratchet.spark.failure import is_sparks
from ratchet.spark.intake import MOST_PARTS, Intake
from ratchet.spark.result import letters_of, rows_of
from ratchet.spark.statements import results, told
from ratchet.spark.tally import Tally
from ratchet.spark.writing import write
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.spec.sql import Sql
from ratchet.transforms.result import check_names, raised

NOTHING = SinkVote((), 0, 0)
KEEP_FROM = 20_000
"""From so many offsets it pays to keep the decoded records between the passes; below it costs more than it saves."""

Step = Callable[[str], AbstractContextManager[None]]
"""Times a step by its name."""


def run(
    given: DataFrame, spec: Pipeline, intake: Intake, work: SliceWork, into: Into, step: Step
) -> tuple[dict[str, SinkVote], Tally]:
    """Write a slice, a job for each sink; the first pass over the records also counts them.

    1. Read and decode; where several sinks need the records they are kept.
    2. Transform the good ones.
    3. Write each sink.
    4. Write the dead letters, if there are any.
    """
    with ExitStack() as kept:
        # Step 1
        with step("decode"):
            decoded = decode(given, intake)
            if len(spec.sinks) > 1 and sum(map(len, work.ranges)) >= KEEP_FROM:
                decoded = kept.enter_context(_kept(decoded))
            observation = Observation(f"read_{work.token.txid}_{work.token.slice}_{time.monotonic_ns()}")
            observed = decoded.observe(observation, *_measures(spec, work))
        # Step 2
        with step("transform"):
            result = transformed(spec, work.txn_time, observed)
            spent = _is_spent(observation)
            *declared, dead_letters = sinks_of(spec)
            rows = {sink.name: rows_of(spec, sink, result[sink.name]) for sink in declared}
        # Step 3
        votes: dict[str, SinkVote] = {}
        for sink in declared:
            with step(f"write {sink.name}"), told(spec, sink.name):
                votes[sink.name] = write(rows[sink.name], sink, into)
        tally = _seen(observed, None if spent else observation, spec, work)
        # Step 4
        dead = dead_letter_rows(spec, observed, result, errors=tally.errors)
        votes[DEAD_LETTERS] = NOTHING
        if dead is not None:
            with step(f"write {DEAD_LETTERS}"), told(spec, DEAD_LETTERS):
                votes[DEAD_LETTERS] = write(dead, dead_letters, into)
    return votes, tally


def transformed(spec: Pipeline, txn_time: datetime, decoded: DataFrame) -> dict[str, DataFrame]:
    """What the transform makes of the good records, by sink."""
    return applied(spec, txn_time, decoded.where(F.col("_error").isNull() & (F.col("_n") >= 0)).drop("_error", SEEN))


def applied(spec: Pipeline, txn_time: datetime, good: DataFrame) -> dict[str, DataFrame]:
    """What the transform makes of good records, which have the time of their transaction then."""
    given = good.withColumn("_txn_time", F.lit(txn_time))
    if isinstance(spec.transform, Sql):
        return results(spec, given)
    function = spec.load_transform()
    assert function is not None
    try:
        returned = function(given)
    except Exception as error:
        if spec.private and not is_sparks(error):
            raise raised(spec, error) from None
        raise
    return check_names(spec, returned, DataFrame, "DataFrame")


def dead_letter_rows(
    spec: Pipeline, observed: DataFrame, result: dict[str, DataFrame], errors: int
) -> DataFrame | None:
    """The rows of the dead letters' sink, from the decoder and from the transform; None if there can be none."""
    frames: list[DataFrame] = []
    if errors:
        bad = observed.where(F.col("_error").isNotNull())
        frames.append(bad.select("_partition", "_offset", "_record", F.col("_error").alias("error")))
    if DEAD_LETTERS in result:
        frames.append(result[DEAD_LETTERS])
    if not frames:
        return None
    letters = [rows_of(spec, sink_of(spec, DEAD_LETTERS), letters_of(spec, frame)) for frame in frames]
    return reduce(DataFrame.unionByName, letters)


@contextmanager
def _kept(decoded: DataFrame) -> Iterator[DataFrame]:
    """The records, decoded by whichever pass comes first; later ones neither read Kafka nor decode again."""
    kept = decoded.persist()
    try:
        yield kept
    finally:
        with suppress(PySparkException):  # a session that is lost has kept nothing, and has an error of its own
            kept.unpersist()


def _partitions(work: SliceWork) -> list[int]:
    return sorted({r.partition for r in work.ranges})


def _measures(spec: Pipeline, work: SliceWork) -> list[Any]:
    """What one pass over the decoded records tells: errors, good rows, records and last offset of each partition, which
    parts were read to their ends, which fields were found, names beside the others, how many moments were cut.
    """
    number = F.col("_n")
    measures = [F.count(F.col("_error")).alias("errors"), F.count_if(number >= 0).alias("rows")]
    # The first row of a record stands for it.
    first = (number == 0) | (number == NO_ROW)
    for partition in _partitions(work):
        offset = F.when(F.col("_partition") == partition, F.col("_offset"))
        record = F.when(first, offset)
        measures += [F.count(record).alias(f"records_{partition}"), F.max(record).alias(f"last_{partition}")]
    # A bit for each part, so that a task which Spark runs again counts once.
    measures.append(F.bit_or(F.when(number <= END, F.expr(f"shiftleft(1, {END} - _n)"))).alias("parts"))
    seen = F.col(SEEN)
    measures += [F.bool_or(F.get(seen["found"], F.lit(i))).alias(f"found_{i}") for i in range(len(spec.source.columns))]
    return [*measures, F.max(seen["beside"]).alias("beside"), F.sum(seen["cut"]).alias("cut")]


def _is_spent(observation: Observation) -> bool:
    """Whether an action of the transform's own has filled it: a classic session counts the first one alone."""
    java = getattr(observation, "_jo", None)
    return java is not None and java.future().isCompleted()


def _seen(observed: DataFrame, observation: Observation | None, spec: Pipeline, work: SliceWork) -> Tally:
    """What a pass over all records tells: the writing's own, or where that was not observed one more."""
    try:
        seen = observation.get if observation is not None else {}
    except Py4JError:
        # What a Connect server leaves empty, a classic session cannot even read.
        seen = {}
    if not seen:
        # A transform that drops everything may let Spark drop the read as well.
        seen = observed.agg(*_measures(spec, work)).collect()[0].asDict()
    tally = Tally(errors=seen["errors"] or 0, good=(seen["rows"] or 0), cut=seen["cut"] or 0)
    for partition in _partitions(work):
        tally.records[partition] = seen[f"records_{partition}"] or 0
        if seen[f"last_{partition}"] is not None:
            tally.passed[partition] = seen[f"last_{partition}"] + 1
    tally.parts = {part for part in range(MOST_PARTS) if (seen["parts"] or 0) >> part & 1}
    tally.found = {c.name for i, c in enumerate(spec.source.columns) if seen[f"found_{i}"]}
    tally.beside = {column: set(names) for column, names in json.loads(seen["beside"] or "{}").items()}
    return tally
