"""The reader: exactly the records of some ranges, as Kafka has them, through Spark's batch Kafka source."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ratchet.ledger.topics import PER_TOPIC, number_of
from ratchet.ledger.work import OffsetRange

SCHEMA = (
    "_partition int, _offset bigint, _timestamp timestamp, _key binary, _value binary, "
    "_headers array<struct<key: string, value: binary>>"
)
PARALLEL_FROM = 20_000
"""From so many offsets a slice is read by two tasks; below it a second task costs more than it saves."""
LARGE_FROM = 100_000
"""From so many offsets large fetches pay; they slow small slices down."""


def read(spark: SparkSession, ranges: Sequence[OffsetRange], kafka: dict[str, str]) -> DataFrame:
    """The committed records of `ranges`, one row each, with SCHEMA; a record's position is its identity.

    `kafka` are client properties by their Java names. Records that Kafka no longer has fail the job.
    """
    wanted = [r for r in ranges if len(r)]
    if not wanted:
        return spark.createDataFrame([], SCHEMA)
    offsets = sum(map(len, wanted))
    of: dict[str, list[OffsetRange]] = {}
    for r in wanted:
        of.setdefault(r.topic, []).append(r)
    options = {f"kafka.{name}": value for name, value in kafka.items()}
    options |= {
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({topic: sorted({r.place[1] for r in rs}) for topic, rs in of.items()}),
        "startingOffsets": _json(of, attrgetter("from_offset")),
        "endingOffsets": _json(of, attrgetter("until_offset")),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }
    if offsets >= PARALLEL_FROM:
        options["minPartitions"] = str(max(2, len(wanted)))
    if offsets >= LARGE_FROM:
        options.setdefault("kafka.max.poll.records", "20000")
        options.setdefault("kafka.max.partition.fetch.bytes", str(16 * 2**20))
    return (
        spark.read.format("kafka")
        .options(**options)
        .load()
        .select(
            _partition(of).alias("_partition"),
            F.col("offset").alias("_offset"),
            F.col("timestamp").alias("_timestamp"),
            F.col("key").alias("_key"),
            F.col("value").alias("_value"),
            F.col("headers").alias("_headers"),
        )
    )


def _json(of: Mapping[str, Sequence[OffsetRange]], offset: Callable[[OffsetRange], int]) -> str:
    """{topic: {partition: offset}} in the form that the source's options have."""
    return json.dumps({topic: {str(r.place[1]): offset(r) for r in rs} for topic, rs in of.items()})


def _partition(of: Mapping[str, Sequence[OffsetRange]]) -> Column:
    """The partition of the line that a record of Kafka's is of."""
    number = {topic: number_of(rs[0].partition) for topic, rs in of.items()}
    if not any(number.values()):
        return F.col("partition")
    of_line = F.lit(0)
    for topic, its in number.items():
        of_line = F.when(F.col("topic") == topic, F.lit(its * PER_TOPIC)).otherwise(of_line)
    return (F.col("partition") + of_line).cast("int")
