"""The one form in which values are staged that a DataFrame may have in several: documents, UUIDs, times of day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from ratchet.errors import TransformError
from ratchet.formats.documents import staged
from ratchet.formats.port import Unfit
from ratchet.spark.types import staged_type
from ratchet.spec.columns import Column
from ratchet.spec.types import Array, Time, Type, Uuid, is_document


def has_other_forms(columns: Sequence[Column]) -> bool:
    """Whether values of one of these columns may look unlike and be one value."""
    return any(_has_other_forms(c.type) for c in columns)


def canonical(sink: str, frame: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The frame with the values of these columns as they are staged, so that equal ones are equal; it may be itself.

    The job fails with TransformError where a value is none of its column's type.
    """
    if not has_other_forms(columns):
        return frame
    kinds = {c.name: c.type for c in columns if _has_other_forms(c.type)}
    fields = [
        spark.StructField(f.name, staged_type(kinds[f.name]) if f.name in kinds else f.dataType)
        for f in frame.schema.fields
    ]
    return frame.mapInArrow(Canonical(sink, kinds), spark.StructType(fields))


@dataclass(frozen=True)
class Canonical:
    """What each Spark task does with its batches; carried to the workers by value."""

    sink: str
    kinds: dict[str, Type]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name, kind in self.kinds.items():
                at = batch.schema.get_field_index(name)
                texts = [self._staged(name, kind, value) for value in batch.column(at).to_pylist()]
                listed = isinstance(kind, Array) and not is_document(kind)
                batch = batch.set_column(at, name, pa.array(texts, pa.list_(pa.string()) if listed else pa.string()))
            yield batch

    def _staged(self, name: str, kind: Type, value: object) -> object:
        try:
            return staged(kind, value)
        except Unfit as unfit:
            raise TransformError(f"sink {self.sink!r}: {unfit.said(f'column {name}')}") from None


def _has_other_forms(kind: Type) -> bool:
    return is_document(kind) or isinstance(kind.element if isinstance(kind, Array) else kind, Uuid | Time)
