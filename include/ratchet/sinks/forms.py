"""The one form in which values are written that a transform may return in several: documents, UUIDs, times of day."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ratchet.errors import TransformError
from ratchet.spec.columns import Column
from ratchet.spec.types import Array, Time, Type, Uuid, is_document
from ratchet.values.arrow import arrow_type
from ratchet.values.documents import staged
from ratchet.values.unfit import Unfit


def in_one_form(sink: str, rows: pa.Table, columns: Sequence[Column], *, private: bool = False) -> pa.Table:
    """The rows with the values of these columns as they are written, so that equal ones are equal; may be themselves.

    TransformError where a value is none of its column's type; `private` keeps the value out of it.
    """
    for column in columns:
        if _has_other_forms(column.type):
            at = rows.schema.get_field_index(column.name)
            cells = [_written(sink, column, value, private) for value in rows.column(at).to_pylist()]
            rows = rows.set_column(at, column.name, pa.array(cells, written_type(column.type)))
    return rows


def written_type(kind: Type) -> pa.DataType:
    """The Arrow type in which a column is written: documents are their text."""
    return pa.string() if is_document(kind) else arrow_type(kind)


def written_schema(columns: Sequence[Column]) -> pa.Schema:
    """A schema of written columns; every one may be null, as rows are checked elsewhere."""
    return pa.schema([(c.name, written_type(c.type)) for c in columns])


def _written(sink: str, column: Column, value: object, private: bool) -> object:
    try:
        return staged(column.type, value)
    except Unfit as unfit:
        raise TransformError(f"sink {sink!r}: {unfit.said(f'column {column.name}', private=private)}") from None


def _has_other_forms(kind: Type) -> bool:
    return is_document(kind) or isinstance(kind.element if isinstance(kind, Array) else kind, Uuid | Time)
