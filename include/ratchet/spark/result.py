"""What a transform over DataFrames returned, checked against the spec, with the columns that each sink needs."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ratchet.sinks.port import Sink
from ratchet.sinks.types import DELETED
from ratchet.spark.data_types import data_type
from ratchet.spec.columns import Column as Declared
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.spec.types import WIDER
from ratchet.transforms.result import GIVEN_UP, RECORD_PARTS, lost_column, missing_column, other_type


def rows_of(spec: Pipeline, sink: Sink, frame: DataFrame) -> DataFrame:
    """The frame with exactly the columns that the sink needs, and the hidden ones that say where its rows come from.

    Raises TransformError that names sink and column.
    """
    found = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    deletes = DELETED in sink.written and spec.source.deletes
    for hidden in ("_partition", "_offset", *([DELETED.name] if deletes else [])):
        if hidden not in found:
            raise lost_column(spec, sink.name, hidden)
    picked = [_pick(spec, sink, found, column) for column in sink.needed]
    place = [F.col("_partition"), F.col("_offset"), _default(found, "_n", "int", F.lit(0))]
    deleted = [_default(found, DELETED.name, "boolean", F.lit(False))] if DELETED in sink.written else []
    return frame.select(*picked, *deleted, *place)


def letters_of(spec: Pipeline, frame: DataFrame) -> DataFrame:
    """What the transform gave up, with the record's bytes and its reason as columns of their own."""
    if "_record" not in frame.columns:
        raise lost_column(spec, DEAD_LETTERS, "_record")
    # What the transform says may hold values.
    has_reason = "error" in frame.columns and not spec.private
    reason = F.col("error") if has_reason else F.lit(None).cast("string")
    record = [F.col("_record").getField(part).alias(part) for part in RECORD_PARTS]
    error = F.coalesce(reason, F.lit(GIVEN_UP)).alias("error")
    place = [F.col(name) for name in ("_partition", "_offset") if name in frame.columns]
    return frame.select(*place, *record, error)


def _pick(spec: Pipeline, sink: Sink, found: dict[str, str], column: Declared) -> Column:
    """A declared column, widened where nothing is lost."""
    actual = found.get(column.name)
    if actual is None:
        raise missing_column(spec, sink.name, column, found)
    kind = data_type(column.type)
    wanted = (kind, *(data_type(narrower) for narrower, wider in WIDER.items() if column.type in wider))
    if actual not in [each.simpleString() for each in wanted]:
        raise other_type(spec, sink.name, column, actual)
    values = F.col(column.name)
    # Spark would say of an error in the column's own making that it came from this cast.
    return values if actual == kind.simpleString() else values.cast(kind).alias(column.name)


def _default(found: dict[str, str], name: str, kind: str, otherwise: Column) -> Column:
    return (F.coalesce(F.col(name), otherwise) if name in found else otherwise).cast(kind).alias(name)
