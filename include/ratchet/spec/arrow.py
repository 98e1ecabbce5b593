"""Arrow's type of a declared column."""

# pyarrow has no types, of which strict would complain in each line.
# pyright: standard

from __future__ import annotations

import pyarrow as pa

from ratchet.spec.columns import Column

_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
}


def arrow_type(column: Column) -> pa.DataType:
    """The type of the column's values."""
    if column.type in _TYPES:
        return _TYPES[column.type]
    precision, scale = column.type.removeprefix("decimal(").removesuffix(")").split(",")
    return pa.decimal128(int(precision), int(scale))


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """A schema of these columns, in order; every one may be null, as rows are checked elsewhere."""
    return pa.schema([(c.name, arrow_type(c)) for c in columns])
