"""A trial of a release: what today's code makes of dead letters, by the code of a slice; nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from ratchet.errors import SettingsError
from ratchet.ledger.work import SliceWork
from ratchet.source.letters import letters_of
from ratchet.spark import slice as slices
from ratchet.spark import worker_lane
from ratchet.spark.intake import Intake, parts_of
from ratchet.spark.servers import Servers
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.transforms.kinds import kind_of
from ratchet.values.endpoint import Endpoint


def failing(
    spec: Pipeline,
    works: Sequence[SliceWork],
    ledger_url: str,
    endpoints: Mapping[str, Endpoint],
    spark: SparkSession | None,
) -> dict[str, int]:
    """{error: number} of the dead letters of a release's slices that would be dead letters again.

    By Spark or, where it is None, by the worker lane in this process. Raises TransformError and what else a slice
    raises, and SettingsError where only Spark can do it.
    """
    if spark is not None:
        return slices.failing(spark, spec, works, ledger_url, endpoints)
    only_spark = kind_of(spec).only_spark
    if only_spark:
        raise SettingsError(
            f"{spec.name}: only Spark can do this, since {only_spark}; set RATCHET_SPARK=sc://HOST:15002"
        )
    needs_key = any(sink.needs_key for sink in spec.sinks)
    found: Counter[str] = Counter()
    for work in works:
        parts = parts_of(work.ranges)
        letters, servers = letters_of(work, ledger_url), Servers({}, endpoints)
        intake = Intake(spec.source, work.topics, servers, needs_key, parts, spec.private, letters)
        numbers = pa.record_batch([pa.array(range(len(parts)), pa.int64())], ["id"])
        for batch in worker_lane.Giving(spec, intake, work.txn_time, DEAD_LETTERS)(iter([numbers])):
            found.update(batch.column("error").to_pylist())
    return dict(found)
