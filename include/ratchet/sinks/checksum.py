"""The checksum of staged rows: a sum modulo 2**64 of one 64-bit hash a row, so that order does not matter.

A row's hash is a chain of XXH64 over its staged columns in order, each hash the seed of the next, from 42: first
the int32 1 if the column is null, else 0; then, if it is not null, its bytes. Numbers are little-endian: smallint,
int, boolean and date (days) in 4 bytes, bigint, timestamp (microseconds) and decimals of up to 18 digits (unscaled)
in 8, float and double as their IEEE bits; longer decimals are their unscaled value in the fewest bytes, two's
complement, big-endian; strings are UTF-8, binary is itself. This is how Spark's xxhash64 reads its arguments.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import TYPE_CHECKING

import xxhash

from ratchet.spec.columns import Column

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
        parts += [F.col(column.name).isNull().cast("int"), F.col(column.name)]
    return F.xxhash64(*parts)


def row_hash(columns: Sequence[Column], row: Sequence[object]) -> int:
    """The same hash in Python, 0 to 2**64 - 1, of values as PostgreSQL's driver gives them."""
    value = _SEED
    for column, cell in zip(columns, row, strict=True):
        value = xxhash.xxh64_intdigest(struct.pack("<i", cell is None), seed=value)
        if cell is not None:
            value = xxhash.xxh64_intdigest(_bytes(column, cell), seed=value)
    return value


def _bytes(column: Column, cell: object) -> bytes:
    match column.type:
        case "string":
            return str(cell).encode()
        case "binary":
            return bytes(cell)
        case "boolean" | "smallint" | "int":
            return struct.pack("<i", cell)
        case "bigint":
            return struct.pack("<q", cell)
        case "float":
            return struct.pack("<f", cell + 0.0)
        case "double":
            return struct.pack("<d", cell + 0.0)
        case "date":
            return struct.pack("<i", cell.toordinal() - date(1970, 1, 1).toordinal())
        case "timestamp":
            since = cell - _EPOCH
            return struct.pack("<q", (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
    precision, scale = map(int, column.type.removeprefix("decimal(").removesuffix(")").split(","))
    # The default context would round to 28 digits.
    unscaled = int(Decimal(cell).scaleb(scale, Context(prec=80)))
    if precision <= 18:
        return struct.pack("<q", unscaled)
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)
