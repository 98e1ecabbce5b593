"""The reader: exactly the records of some ranges, as Kafka has them, through Spark's batch Kafka source."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

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
    options = {f"kafka.{name}": value for name, value in kafka.items()}
    options |= {
        "kafka.isolation.level": "read_committed",
        "assign": _by_partition(wanted, lambda rs: sorted({r.partition for r in rs})),
        "startingOffsets": _by_partition(wanted, lambda rs: {str(r.partition): r.from_offset for r in rs}),
        "endingOffsets": _by_partition(wanted, lambda rs: {str(r.partition): r.until_offset for r in rs}),
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
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
            F.col("timestamp").alias("_timestamp"),
            F.col("key").alias("_key"),
            F.col("value").alias("_value"),
            F.col("headers").alias("_headers"),
        )
    )


def _by_partition(ranges: list[OffsetRange], of) -> str:
    """JSON of {topic: of(its ranges)}, the form that the source's options have."""
    return json.dumps({ranges[0].topic: of(ranges)})
