"""A preview: what the records of a slice become, by the code of a slice and without writing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from ratchet.errors import SettingsError
from ratchet.ledger.work import OffsetRange, SliceWork
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.types import POSITION
from ratchet.spark import slice as slices
from ratchet.spark import worker_lane
from ratchet.spark.intake import Intake, parts_of, spark_instead
from ratchet.spark.servers import Servers
from ratchet.spec.pipeline import Pipeline
from ratchet.transforms.kinds import kind_of
from ratchet.values.withheld import WITHHELD

MOST_ROWS = 1000
"""So many rows of a sink are given at most; a record may become any number of them."""
_PLACE = tuple(column.name for column in POSITION)


@dataclass(frozen=True)
class Preview:
    """What each sink would be given, dead letters among them; keyed sinks before rows of one key are combined."""

    pipeline: str
    ranges: tuple[OffsetRange, ...]
    engine: str
    """Where it was computed."""
    sinks: Mapping[str, tuple[Mapping[str, Any], ...]]
    """{sink: rows}, in the order of the records."""


def preview(spec: Pipeline, work: SliceWork, servers: Servers, spark: SparkSession | None) -> Preview:
    """What a slice's records become, by Spark or, where it is None, by the worker lane in this process.

    Nothing is written. Raises what `run_slice` raises, and SettingsError where only Spark can do it.
    """
    if not any(map(len, work.ranges)):
        return Preview(spec.name, (), "nothing to read", {sink.name: () for sink in sinks_of(spec)})
    if spark is None:
        tables, engine = _here(spec, work, servers), "this process"
    else:
        tables, engine = slices.given(spark, spec, work, servers, MOST_ROWS), "Spark"
    sinks = {sink.name: _rows(tables.get(sink.name), private=spec.private) for sink in sinks_of(spec)}
    return Preview(spec.name, tuple(r.told for r in work.ranges), engine, sinks)


def _here(spec: Pipeline, work: SliceWork, servers: Servers) -> dict[str, pa.Table]:
    """The tasks of the worker lane, one after the other, without Spark."""
    instead = kind_of(spec).only_spark or spark_instead(spec.source, servers.kafka)
    if instead:
        raise SettingsError(f"{spec.name}: only Spark can do this, since {instead}; set RATCHET_SPARK=sc://HOST:15002")
    parts, needs_key = parts_of(work.ranges), any(sink.needs_key for sink in spec.sinks)
    intake = Intake(spec.source, work.topics, servers, needs_key, parts, spec.private)
    numbers = pa.record_batch([pa.array(range(len(parts)), pa.int64())], ["id"])
    found: dict[str, pa.Table] = {}
    for sink in sinks_of(spec):
        batches = list(worker_lane.Giving(spec, intake, work.txn_time, sink.name)(iter([numbers])))
        if batches:
            found[sink.name] = pa.Table.from_batches(batches)
    return found


def _rows(table: pa.Table | None, *, private: bool) -> tuple[dict[str, Any], ...]:
    """The first rows of a sink by their records' places; values of a private pipeline are left out."""
    if table is None:
        return ()
    by = [(name, "ascending") for name in _PLACE if name in table.column_names]
    rows = table.sort_by(by).slice(0, MOST_ROWS).to_pylist()
    if private:
        rows = [{c: v if c in _PLACE or v is None else WITHHELD for c, v in row.items()} for row in rows]
    return tuple(rows)
