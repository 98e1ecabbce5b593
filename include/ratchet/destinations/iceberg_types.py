"""Columns as an Iceberg table has them, and as they are written into its Parquet files."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.types import IcebergType, NestedField

from ratchet.destinations.iceberg import PARTITION
from ratchet.errors import DestinationRefused
from ratchet.spec.columns import Column
from ratchet.spec.types import (
    Array,
    Binary,
    Boolean,
    Date,
    Decimal,
    Floating,
    Integer,
    Json,
    Map,
    String,
    Struct,
    Time,
    Timestamp,
    Type,
    Uuid,
)
from ratchet.values.arrow import arrow_type

_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
"""In microseconds since 1970."""
_PARQUET_ID = b"PARQUET:field_id"


def name_of(column: Column) -> str:
    """What a column is called in the table."""
    return PARTITION if column.name == "_partition" else column.name


def schema_of(columns: Sequence[Column]) -> Schema:
    """The schema of a table that is made for them. Each column may be null, so that none has to be changed later."""
    kinds = [(name_of(column), iceberg_type(column.type)) for column in columns]
    return Schema(*(NestedField(number, name, kind, required=False) for number, (name, kind) in enumerate(kinds, 1)))


def iceberg_type(kind: Type) -> IcebergType:
    """The type of a declared one, with numbers of fields that are still to be assigned.

    A time of day is text, since a table that has Iceberg's own type of it cannot be read by Spark; so is a UUID.
    """
    match kind:
        case String() | Json() | Uuid() | Time():
            return iceberg.StringType()
        case Boolean():
            return iceberg.BooleanType()
        case Integer(bits):
            return iceberg.LongType() if bits == 64 else iceberg.IntegerType()
        case Floating(bits):
            return iceberg.FloatType() if bits == 32 else iceberg.DoubleType()
        case Decimal(precision, scale):
            return iceberg.DecimalType(precision, scale)
        case Date():
            return iceberg.DateType()
        case Timestamp():
            return iceberg.TimestamptzType()
        case Binary():
            return iceberg.BinaryType()
        case Array(element):
            return iceberg.ListType(0, iceberg_type(element), element_required=False)
        case Map(value):
            return iceberg.MapType(0, iceberg.StringType(), 0, iceberg_type(value), value_required=False)
        case Struct(members):
            fields = [NestedField(0, each.name, iceberg_type(each.type), required=False) for each in members]
            return iceberg.StructType(*fields)


def is_alike(held: IcebergType, written: IcebergType) -> bool:
    """Whether a type in the table is the one that is written, whatever its numbers of fields."""
    match held, written:
        case iceberg.ListType(), iceberg.ListType():
            return not held.element_required and is_alike(held.element_type, written.element_type)
        case iceberg.MapType(), iceberg.MapType():
            is_key = is_alike(held.key_type, written.key_type)
            return is_key and not held.value_required and is_alike(held.value_type, written.value_type)
        case iceberg.StructType(), iceberg.StructType():
            names = [field.name for field in held.fields] == [field.name for field in written.fields]
            return names and all(
                not of.required and is_alike(of.field_type, each.field_type)
                for of, each in zip(held.fields, written.fields, strict=True)
            )
        case _:
            return held == written


def written_schema(table: Schema, columns: Sequence[Column]) -> Schema:
    """Those columns of the table that are written, by the names that Parquet files have for them."""
    return sanitize_column_names(Schema(*(table.find_field(name_of(column)) for column in columns)))


def parquet_schema(schema: Schema) -> pa.Schema:
    """What the files have: by the numbers of their fields readers find columns, also after they were renamed."""
    return pa.schema([_field(field) for field in schema.fields])


def as_written(batch: pa.RecordBatch, columns: Sequence[Column], into: pa.Schema, where: str) -> pa.RecordBatch:
    """Rows as files have them; DestinationRefused for moments that readers in Python do not know."""
    cells = []
    for cell, column, field in zip(batch.columns, columns, into, strict=True):
        if isinstance(column.type, Timestamp):
            _check(cell, column, where)
        # Iceberg has no small integers; all else is the same, but for names within.
        cells.append(cell.cast(_widened(column.type)).view(field.type))
    return pa.RecordBatch.from_arrays(cells, schema=into)


def _check(cell: pa.Array, column: Column, where: str) -> None:
    moments = cell.view(pa.int64())
    out = pc.or_(pc.less(moments, _YEAR_1), pc.greater_equal(moments, _YEAR_10000))
    if pc.any(out).as_py():
        raise DestinationRefused(
            f"{where}: column {column.name} has a moment outside of the years 1 to 9999; nothing was sent; have the "
            "transform keep such rows out"
        )


def _widened(kind: Type) -> pa.DataType:
    match kind:
        case Integer(16):
            return pa.int32()
        case Array(element):
            return pa.list_(_widened(element))
        case Map(value):
            return pa.map_(pa.string(), _widened(value))
        case Struct(members):
            return pa.struct([pa.field(each.name, _widened(each.type)) for each in members])
        case _:
            return arrow_type(kind)


def _field(field: NestedField) -> pa.Field:
    said = {_PARQUET_ID: str(field.field_id).encode()}
    return pa.field(field.name, _parquet_type(field.field_type), nullable=field.optional, metadata=said)


def _parquet_type(kind: IcebergType) -> pa.DataType:
    match kind:
        case iceberg.BooleanType():
            return pa.bool_()
        case iceberg.IntegerType():
            return pa.int32()
        case iceberg.LongType():
            return pa.int64()
        case iceberg.FloatType():
            return pa.float32()
        case iceberg.DoubleType():
            return pa.float64()
        case iceberg.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case iceberg.DateType():
            return pa.date32()
        case iceberg.TimestamptzType():
            return pa.timestamp("us", "UTC")
        case iceberg.BinaryType():
            return pa.binary()
        case iceberg.ListType():
            return pa.list_(_field(kind.element_field))
        case iceberg.MapType():
            return pa.map_(_field(kind.key_field), _field(kind.value_field))
        case iceberg.StructType():
            return pa.struct([_field(field) for field in kind.fields])
        case _:
            return pa.string()
