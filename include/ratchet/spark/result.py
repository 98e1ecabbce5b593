"""What the transform returned, checked against the spec and brought into the form that is staged."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ratchet.errors import TransformError
from ratchet.ledger.work import OffsetRange
from ratchet.sinks.staged import staged_columns
from ratchet.spark.canonical import canonical, has_other_forms
from ratchet.spark.types import data_type
from ratchet.spec.columns import Column as Declared
from ratchet.spec.pipeline import DEAD_LETTERS, Accumulate, Append, Pipeline, Upsert
from ratchet.spec.types import STRING

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


def to_stage(
    spec: Pipeline, sink: Append | Accumulate | Upsert | None, frame: DataFrame, ranges: Sequence[OffsetRange]
) -> DataFrame:
    """The frame with exactly the staged columns of the sink (None: the dead letters), in order.

    Sums and last rows are combined here, so that a slice stages one row a key; a row that is not of the slice's
    `ranges` fails the job. Raises TransformError that names sink and column.
    """
    found = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    name = sink.name if sink else DEAD_LETTERS
    deletes = isinstance(sink, Upsert) and spec.source.tombstones == "delete"
    for hidden in ("_partition", "_offset", *(["_deleted"] if deletes else [])):
        if hidden not in found:
            raise TransformError(
                f"{spec.name}: sink {name!r}: the frame has lost the hidden column {hidden}; keep it in every select, "
                "and leave sums and last rows to the sinks"
            )
    pick = _Picker(spec, name, found)
    place = [F.col("_partition"), F.col("_offset"), _default(found, "_n", "int", F.lit(0))]
    match sink:
        case None:
            record = [F.col("_record").getField(part).alias(part) for part in ("key", "value", "headers")]
            if "_record" not in found:
                raise TransformError(f"{spec.name}: {DEAD_LETTERS}: the frame has lost the hidden column _record")
            error = F.coalesce(pick(Declared("error", STRING)), F.lit("given up by the transform"))
            return frame.select(*place[:2], *record, error.alias("error"))
        case Append():
            return canonical(name, frame.select(*map(pick, sink.fields), *place), staged_columns(sink))
        case Accumulate():
            used = [c for part in ("key", "sum", "min", "max") for c in sink.columns_of(part)]
            for column in used:
                pick(column)
            own = _own(sink, frame, ranges)
            rows = own.select(*dict.fromkeys(c.name for c in used)) if has_other_forms(used) else own
            return _accumulate(sink, canonical(name, rows, used), pick)
        case Upsert():
            deleted = _default(found, "_deleted", "boolean", F.lit(False))
            values = [pick(c) if c.nullable else _unless_deleted(sink, c, pick(c), deleted) for c in sink.fields]
            own = _own(sink, frame, ranges)
            rows = own.select(*map(pick, sink.keys), *values, deleted, *place)
            return _last(sink, canonical(name, rows, staged_columns(sink)))


def _own(sink: Accumulate | Upsert, frame: DataFrame, ranges: Sequence[OffsetRange]) -> DataFrame:
    """The frame, whose rows must be of the slice: what is combined leaves no position for the vote to check."""
    partition, offset = F.col("_partition"), F.col("_offset")
    # A condition for each range would be more than Spark compiles, of a topic with many partitions.
    of = {r.partition: (r.from_offset, r.until_offset) for r in ranges}
    # Of a slice whose records were accepted as lost no range is left.
    spans = [of.get(p, (0, 0)) for p in range(max(of, default=0) + 1)]
    begin, end = (F.get(F.lit(list(bounds)), partition) for bounds in zip(*spans, strict=True))
    own = (offset >= begin) & (offset < end)
    at = F.concat(F.lit("partition "), partition.cast("string"), F.lit(", offset "), offset.cast("string"))
    said = F.concat(F.lit(f"{sink.name}: "), F.coalesce(at, F.lit("a row without a position")))
    foreign = F.raise_error(F.concat(said, F.lit(" is not of this slice; a transform keeps _partition and _offset")))
    return frame.where(F.when(own, True).otherwise(foreign.cast("boolean")))


def _unless_deleted(sink: Upsert, column: Declared, value: Column, deleted: Column) -> Column:
    """The value of a not-null column; the stage lets it be null for the sake of deletions, so it is checked here."""
    wrong = F.raise_error(F.lit(f"{sink.name}: column {column.name} is declared not null and is null"))
    return F.when(value.isNotNull() | deleted, value).otherwise(wrong.cast(data_type(column.type))).alias(column.name)


class _Picker:
    """Chooses declared columns from a frame, widening where nothing is lost."""

    def __init__(self, spec: Pipeline, sink: str, found: dict[str, str]):
        self._where = f"{spec.name}: sink {sink!r}"
        self._transform, self._found = spec.transform, found

    def __call__(self, column: Declared) -> Column:
        actual = self._found.get(column.name)
        if actual is None:
            raise TransformError(
                f"{self._where}: column {column.name!r} is declared, and {self._transform} did not return it; it "
                f"returned {', '.join(c for c in self._found if not c.startswith('_'))}"
            )
        kind = data_type(column.type)
        wanted = kind.simpleString()
        if actual != wanted and wanted not in _WIDER.get(actual, ()):
            as_spark = "" if wanted == str(column.type) else f" (a {wanted} in Spark)"
            raise TransformError(
                f"{self._where}: column {column.name!r} is declared {column.type}{as_spark}, and {self._transform} "
                f"returned {actual}; cast it in the transform, or declare it {actual}"
            )
        return F.col(column.name).cast(kind).alias(column.name)


def _default(found: dict[str, str], name: str, kind: str, otherwise: Column) -> Column:
    return (F.coalesce(F.col(name), otherwise) if name in found else otherwise).cast(kind).alias(name)


def _accumulate(sink: Accumulate, frame: DataFrame, pick: _Picker) -> DataFrame:
    """One row a key and slice; sums overflow loudly, as the session is in ANSI mode."""
    types = {c.name: c.type for c in staged_columns(sink)}
    measures = []
    for part, whole in (("sum", F.sum), ("min", F.min), ("max", F.max)):
        for column in sink.columns_of(part):
            out = f"{column.name}_{part}"
            measures.append(whole(pick(column)).cast(data_type(types[out])).alias(out))
    if sink.count:
        measures.append(F.count(F.lit(1)).alias(sink.count))
    return frame.groupBy(*map(pick, sink.columns_of("key"))).agg(*measures)


def _last(sink: Upsert, frame: DataFrame) -> DataFrame:
    """The last row of each key in this slice; without an order column of each key and partition."""
    keys = [c.name for c in sink.keys]
    rest = [c for c in frame.columns if c not in keys]
    order = [F.col(sink.order)] if sink.order else []
    by = F.struct(*order, F.col("_offset"), F.col("_partition"), F.col("_n"))
    groups = keys if sink.order else [*keys, F.col("_partition").alias("_of")]
    last = frame.groupBy(*groups).agg(F.max_by(F.struct(*rest), by).alias("last"))
    return last.select(*keys, *(F.col("last").getField(c).alias(c) for c in rest))
