"""Arrow's types of declared columns."""

from __future__ import annotations

import pyarrow as pa

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


def arrow_type(kind: Type) -> pa.DataType:
    """The Arrow type of a declared one; JSON is its canonical text, a UUID its text in lower case, a time of day
    the text hh:mm:ss.ffffff.
    """
    match kind:
        case String() | Json() | Uuid() | Time():
            return pa.string()
        case Boolean():
            return pa.bool_()
        case Integer(bits):
            return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]
        case Floating(bits):
            return pa.float32() if bits == 32 else pa.float64()
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Date():
            return pa.date32()
        case Timestamp():
            return pa.timestamp("us", "UTC")
        case Binary():
            return pa.binary()
        case Array(element):
            return pa.list_(arrow_type(element))
        case Map(value):
            return pa.map_(pa.string(), arrow_type(value))
        case Struct(members):
            return pa.struct([pa.field(m.name, arrow_type(m.type)) for m in members])


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """The Arrow schema of declared columns."""
    return pa.schema([pa.field(c.name, arrow_type(c.type)) for c in columns])
