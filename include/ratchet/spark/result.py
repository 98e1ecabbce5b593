"""What a transform over DataFrames returned, checked against the spec, with the columns that each sink needs."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ratchet.errors import TransformError
from ratchet.sinks.port import Sink
from ratchet.sinks.types import DELETED
from ratchet.spark.types import data_type
from ratchet.spec.columns import Column as Declared
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline

_WIDER = {
    "smallint": {"int", "bigint"},
    "int": {"bigint"},
    "float": {"double"},
}
"""Casts that lose nothing; every other one is the transform's business."""


def check_names(spec: Pipeline, result: object) -> dict[str, DataFrame]:
    """The frames by sink; TransformError that names what is missing or unknown."""
    wanted = [sink.name for sink in spec.sinks]
    if not isinstance(result, dict):
        raise TransformError(
            f"{spec.name}: {spec.transform} returned a {type(result).__name__}; return a dict of a DataFrame for each "
            f"sink: {', '.join(wanted)}"
        )
    missing = [name for name in wanted if name not in result]
    unknown = [str(name) for name in result if name not in wanted and name != DEAD_LETTERS]
    if missing or unknown:
        said = [f"lacks {name!r}" for name in missing] + [f"has {name!r}, which no sink is called" for name in unknown]
        raise TransformError(
            f"{spec.name}: what {spec.transform} returned {' and '.join(said)}; its keys must be {', '.join(wanted)}, "
            f"and {DEAD_LETTERS} if it gives records up"
        )
    for name, frame in result.items():
        if not hasattr(frame, "mapInArrow"):
            raise TransformError(
                f"{spec.name}: {spec.transform} returned a {type(frame).__name__} for sink {name!r}, not a DataFrame"
            )
    return result


def rows_of(spec: Pipeline, sink: Sink, frame: DataFrame) -> DataFrame:
    """The frame with exactly the columns that the sink needs, and the hidden ones that say where its rows come from.

    Raises TransformError that names sink and column.
    """
    found = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    deletes = DELETED in sink.staged and spec.source.tombstones == "delete"
    for hidden in ("_partition", "_offset", *([DELETED.name] if deletes else [])):
        if hidden not in found:
            raise TransformError(
                f"{spec.name}: sink {sink.name!r}: the frame has lost the hidden column {hidden}; keep it in every "
                "select, and leave sums and last rows to the sinks"
            )
    picked = [_pick(spec, sink, found, column) for column in sink.needed]
    place = [F.col("_partition"), F.col("_offset"), _default(found, "_n", "int", F.lit(0))]
    deleted = [_default(found, DELETED.name, "boolean", F.lit(False))] if DELETED in sink.staged else []
    return frame.select(*picked, *deleted, *place)


def letters_of(spec: Pipeline, frame: DataFrame) -> DataFrame:
    """What the transform gave up, with the record's bytes and its reason as columns of their own."""
    if "_record" not in frame.columns:
        raise TransformError(f"{spec.name}: {DEAD_LETTERS}: the frame has lost the hidden column _record")
    reason = F.col("error") if "error" in frame.columns else F.lit(None).cast("string")
    record = [F.col("_record").getField(part).alias(part) for part in ("key", "value", "headers")]
    error = F.coalesce(reason, F.lit("given up by the transform")).alias("error")
    place = [F.col(name) for name in ("_partition", "_offset") if name in frame.columns]
    return frame.select(*place, *record, error)


def _pick(spec: Pipeline, sink: Sink, found: dict[str, str], column: Declared) -> Column:
    """A declared column, widened where nothing is lost."""
    where, actual = f"{spec.name}: sink {sink.name!r}", found.get(column.name)
    if actual is None:
        raise TransformError(
            f"{where}: column {column.name!r} is declared, and {spec.transform} did not return it; it "
            f"returned {', '.join(c for c in found if not c.startswith('_'))}"
        )
    kind = data_type(column.type)
    wanted = kind.simpleString()
    if actual != wanted and wanted not in _WIDER.get(actual, ()):
        as_spark = "" if wanted == str(column.type) else f" (a {wanted} in Spark)"
        raise TransformError(
            f"{where}: column {column.name!r} is declared {column.type}{as_spark}, and {spec.transform} returned "
            f"{actual}; cast it in the transform, or declare it {actual}"
        )
    return F.col(column.name).cast(kind).alias(column.name)


def _default(found: dict[str, str], name: str, kind: str, otherwise: Column) -> Column:
    return (F.coalesce(F.col(name), otherwise) if name in found else otherwise).cast(kind).alias(name)
