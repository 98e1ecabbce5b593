"""The checksum of staged rows: a sum modulo 2**64 of one 64-bit hash a row, so that order does not matter.

A row's hash is a chain of XXH64 over its staged columns in order, each hash the seed of the next, from 42: first
the int32 1 if the column is null, else 0; then, if it is not null, its bytes. Numbers are little-endian: smallint,
int, boolean and date (days) in 4 bytes, bigint, timestamp (microseconds) and decimals of up to 18 digits (unscaled)
in 8, float and double as their IEEE bits; longer decimals are their unscaled value in the fewest bytes, two's
complement, big-endian; strings are UTF-8, binary is itself, UUIDs are their text in lower case, times of day the text
hh:mm:ss.ffffff, jsonb is its text. An array of scalars is first an int32 for each element, 1 if it is null, else 0,
then the bytes of each that is not null, all in the chain. This is how Spark's xxhash64 reads its arguments.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Context
from decimal import Decimal as Exact
from typing import TYPE_CHECKING

import xxhash

from ratchet.spec.columns import Column
from ratchet.spec.types import (
    Array,
    Binary,
    Boolean,
    Date,
    Decimal,
    Floating,
    Integer,
    Time,
    Timestamp,
    Type,
    is_document,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

MODULUS = 2**64
_SEED = 42
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def spark_hash(columns: Sequence[Column]) -> SparkColumn:
    """The hash of a row as a Spark column of type bigint."""
    from pyspark.sql import functions as F

    parts = []
    for column in columns:
        cell = F.col(column.name)
        parts.append(cell.isNull().cast("int"))
        if isinstance(column.type, Array) and not is_document(column.type):
            parts.append(F.transform(cell, lambda element: element.isNull().cast("int")))
        parts.append(cell)
    return F.xxhash64(*parts)


def row_hash(columns: Sequence[Column], row: Sequence[object]) -> int:
    """The same hash in Python, 0 to 2**64 - 1, of values as PostgreSQL's driver gives them, of jsonb its text."""
    value = _SEED
    for column, cell in zip(columns, row, strict=True):
        value = _chained(struct.pack("<i", cell is None), value)
        if cell is None:
            continue
        if isinstance(column.type, Array) and not is_document(column.type):
            for element in cell:
                value = _chained(struct.pack("<i", element is None), value)
            for element in cell:
                value = value if element is None else _chained(_bytes(column.type.element, element), value)
        else:
            value = _chained(_bytes(column.type, cell), value)
    return value


def _chained(data: bytes, seed: int) -> int:
    return xxhash.xxh64_intdigest(data, seed=seed)


def _bytes(kind: Type, cell: object) -> bytes:
    match kind:
        case Binary():
            return bytes(cell)
        case Boolean() | Integer(16 | 32):
            return struct.pack("<i", cell)
        case Integer():
            return struct.pack("<q", cell)
        case Floating(32):
            return struct.pack("<f", cell + 0.0)
        case Floating():
            return struct.pack("<d", cell + 0.0)
        case Date():
            return struct.pack("<i", cell.toordinal() - date(1970, 1, 1).toordinal())
        case Timestamp():
            since = cell - _EPOCH
            return struct.pack("<q", (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
        case Decimal():
            return _unscaled(kind, cell)
        case Time():
            return cell.isoformat("microseconds").encode()
        case _:
            return str(cell).encode()


def _unscaled(kind: Decimal, cell: object) -> bytes:
    # The default context would round to 28 digits.
    unscaled = int(Exact(cell).scaleb(kind.scale, Context(prec=80)))
    if kind.precision <= 18:
        return struct.pack("<q", unscaled)
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)
