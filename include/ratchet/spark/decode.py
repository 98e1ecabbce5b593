"""Decoding on Spark's workers: the records of a slice, as Arrow batches, through the envelope."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from ratchet.formats.envelope import HIDDEN, Opened
from ratchet.spark.data_types import data_type
from ratchet.spark.intake import Intake
from ratchet.spark.tally import NAMES_KEPT, Tally
from ratchet.spark.withholding import withholding
from ratchet.spec.source import Topic
from ratchet.values.arrow import arrow_type

NO_ROW = -1
"""The `_n` of a record that is good and gives no row."""
END = -2
"""The `_n` of a row that is no record: part 0 was read to its end; below it those of the next parts."""
SEEN = "_seen"
"""What a batch tells of itself, in its first row: columns that were found, names beside the others, moments cut."""

_HIDDEN = [
    ("_partition", spark.IntegerType()),
    ("_offset", spark.LongType()),
    ("_n", spark.IntegerType()),
    ("_timestamp", spark.TimestampType()),
    ("_key", spark.BinaryType()),
    (
        "_headers",
        spark.ArrayType(
            spark.StructType(
                [spark.StructField("key", spark.StringType()), spark.StructField("value", spark.BinaryType())]
            )
        ),
    ),
    (
        "_record",
        spark.StructType(
            [
                spark.StructField("timestamp", spark.TimestampType()),
                spark.StructField("key", spark.BinaryType()),
                spark.StructField("value", spark.BinaryType()),
                spark.StructField("headers", spark.StringType()),
            ]
        ),
    ),
]
_SEEN_TYPE = spark.StructType(
    [
        spark.StructField("found", spark.ArrayType(spark.BooleanType())),
        spark.StructField("beside", spark.StringType()),
        spark.StructField("cut", spark.LongType()),
    ]
)
_SEEN_ARROW = pa.struct([("found", pa.list_(pa.bool_())), ("beside", pa.string()), ("cut", pa.int64())])


def decode(given: DataFrame, intake: Intake) -> DataFrame:
    """Rows of the declared columns, value's then key's, and hidden ones, of what an intake reads of a frame.

    Hidden: `_partition`, `_offset`, `_n`, `_timestamp`, `_key`, `_headers`, `_record` struct(timestamp timestamp,
    key binary, value binary, headers string), `_deleted` boolean where tombstones are deletions, `_error` string, null
    where the record is good, and SEEN. Where there is an error the declared columns are null; so they are where `_n`
    is NO_ROW, or END.
    """
    told = [spark.StructField("_error", spark.StringType()), spark.StructField(SEEN, _SEEN_TYPE)]
    return given.mapInArrow(Decoding(intake), spark.StructType([*good_fields(intake.topic), *told]))


def good_fields(topic: Topic) -> list[spark.StructField]:
    """The columns of good records, but the time of their transaction, as a transform over DataFrames is given them."""
    fields = [spark.StructField(c.name, data_type(c.type)) for c in topic.columns]
    fields += [spark.StructField(name, kind) for name, kind in _HIDDEN]
    deleted = [spark.StructField("_deleted", spark.BooleanType())] if topic.deletes else []
    return fields + deleted


@dataclass(frozen=True)
class Decoding:
    """What each Spark task does with its batches of records; carried to the workers by value."""

    intake: Intake

    @property
    def private(self) -> bool:
        return self.intake.private

    @withholding
    def __call__(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Every record once, and behind them a row for each part, which only a whole read comes to."""
        tally = Tally()
        for opened in self.intake.opened(given, tally):
            yield self._frame(opened)
        if tally.parts:
            yield self._ends(sorted(tally.parts))

    def _ends(self, parts: list[int]) -> pa.RecordBatch:
        nothing = {name: pa.nulls(len(parts), kind) for name, kind in frame_schema(self.intake.topic).items()}
        return pa.RecordBatch.from_pydict({**nothing, "_n": pa.array([END - part for part in parts], pa.int32())})

    def _frame(self, opened: Opened) -> pa.RecordBatch:
        """All records of a batch, rows first, then dead letters, then those that give no row."""
        rows, dead, empty = opened.rows, opened.dead, opened.empty
        counts = (rows.num_rows, dead.num_rows, empty.num_rows)
        arrays: dict[str, pa.Array] = {}
        for name, array in zip(rows.schema.names, rows.columns, strict=True):
            parts = [array]
            for other in (dead, empty):
                if other.num_rows:
                    has = name in other.schema.names
                    parts.append(other.column(name) if has else pa.nulls(other.num_rows, array.type))
            arrays[name] = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        if counts[2]:
            numbers = arrays["_n"].to_pylist()
            arrays["_n"] = pa.array(numbers[: -counts[2]] + [NO_ROW] * counts[2], pa.int32())
        errors = [pa.nulls(counts[0], pa.string()), dead.column("error"), pa.nulls(counts[2], pa.string())]
        arrays["_error"] = pa.concat_arrays(errors)
        arrays[SEEN] = self._seen(opened, sum(counts))
        return pa.RecordBatch.from_pydict(arrays)

    def _seen(self, opened: Opened, count: int) -> pa.Array:
        beside = {name: sorted(names)[:NAMES_KEPT] for name, names in opened.beside.items()}
        said = {
            "found": [c.name in opened.found for c in self.intake.topic.columns],
            "beside": json.dumps(beside) if beside else None,
            "cut": opened.cut,
        }
        return pa.concat_arrays([pa.array([said], _SEEN_ARROW), pa.nulls(count - 1, _SEEN_ARROW)])


def frame_schema(topic: Topic) -> dict[str, pa.DataType]:
    """The columns of a frame of decoded records, as Arrow has them."""
    declared = {c.name: arrow_type(c.type) for c in topic.columns}
    deleted = {"_deleted": pa.bool_()} if topic.deletes else {}
    return {**declared, **HIDDEN, **deleted, "_error": pa.string(), SEEN: _SEEN_ARROW}
