"""The checksum of written rows: a sum modulo 2**64 of one 64-bit hash a row, so that order does not matter.

A row's hash is a chain of XXH64 over its written columns in order, each hash the seed of the next, from 42: first
the int32 1 if the column is null, else 0; then, if it is not null, its bytes. Numbers are little-endian: smallint,
int, boolean and date (days) in 4 bytes, bigint, timestamp (microseconds) and decimals of up to 18 digits (unscaled)
in 8, float and double as their IEEE bits, with one zero and one NaN; longer decimals are their unscaled value in the
fewest bytes, two's complement, big-endian; strings are UTF-8, binary is itself, UUIDs are their text in lower case,
times of day the text hh:mm:ss.ffffff, jsonb is its text. An array of scalars is for each element the int32 1 if it is
null, else 0, the number of its bytes as an int32, and these.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Context
from decimal import Decimal as Exact
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from ratchet.sinks import buffers
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
    is_document,
)

if TYPE_CHECKING:
    import pyarrow as pa

MODULUS = 2**64
_SEED = 42
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def row_hash(columns: Sequence[Column], row: Sequence[object]) -> int:
    """The hash of a row, 0 to 2**64 - 1, of values as PostgreSQL's driver gives them, of jsonb its text."""
    value = _SEED
    for column, cell in zip(columns, row, strict=True):
        value = xxhash.xxh64_intdigest(struct.pack("<i", cell is None), seed=value)
        if cell is not None:
            value = xxhash.xxh64_intdigest(_layout(column.type).pack(cell), seed=value)
    return value


def batch_checksum(columns: Sequence[Column], batch: pa.RecordBatch) -> int:
    """The sum modulo 2**64 of the hashes of all rows; columns are found by name, others are left out.

    Raises KeyError for a column that the batch does not have, TypeError for one of another Arrow type than declared,
    OverflowError for a decimal of up to 18 declared digits that does not fit in 64 bits.
    """
    if not batch.num_rows:
        return 0
    from ratchet.sinks import xxh64  # which compiles, or loads what it compiled before

    hashes = np.full(batch.num_rows, _SEED, np.uint64)
    for column in columns:
        array: pa.Array[Any] = batch.column(column.name)  # pyright: ignore[reportUnknownVariableType]
        layout = _layout(column.type)
        if not re.fullmatch(layout.arrow, str(array.type)):
            raise TypeError(f"column {column} is {array.type} in Arrow, which its checksum is not defined for")
        xxh64.link(hashes, *buffers.validity(array), layout.read(array))
    return int(hashes.sum())


@dataclass(frozen=True)
class Layout:
    """The bytes of a type: `pack` of one value, `read` of an Arrow array whose type's name matches `arrow`."""

    pack: Callable[[Any], bytes]
    arrow: str
    read: buffers.Reader


def _pack(form: str) -> Callable[[Any], bytes]:
    return struct.Struct(form).pack


def _float(form: str) -> Callable[[float], bytes]:
    return lambda cell: struct.pack(form, math.nan if math.isnan(cell) else cell + 0.0)


def _days(cell: date) -> bytes:
    return struct.pack("<i", cell.toordinal() - _EPOCH.toordinal())


def _microseconds(cell: datetime) -> bytes:
    since = cell - _EPOCH
    return struct.pack("<q", (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _moment_of_day(cell: time | str) -> bytes:
    return (cell if isinstance(cell, str) else cell.isoformat("microseconds")).encode()


def _text(cell: object) -> bytes:
    return str(cell).encode()


_TEXT = Layout(_text, "(large_)?string", buffers.variable)


@lru_cache
def _layout(kind: Type) -> Layout:
    match kind:
        case String() | Uuid() | Json() | Map() | Struct():
            return _TEXT
        case Array(element):
            return _TEXT if is_document(kind) else _of_array(_layout(element))
        case Time():
            return Layout(_moment_of_day, "(large_)?string", buffers.variable)
        case Binary():
            return Layout(bytes, "(large_)?binary", buffers.variable)
        case Boolean():
            return Layout(_pack("<i"), "bool", buffers.booleans)
        case Integer(64):
            return Layout(_pack("<q"), "int64", buffers.int64s)
        case Integer(bits):
            return Layout(_pack("<i"), f"int{bits}", buffers.int16s if bits == 16 else buffers.int32s)
        case Floating(32):
            return Layout(_float("<f"), "float", buffers.floats)
        case Floating():
            return Layout(_float("<d"), "double", buffers.doubles)
        case Date():
            return Layout(_days, r"date32\[day\]", buffers.int32s)
        case Timestamp():
            return Layout(_microseconds, r"timestamp\[us(, tz=.+)?\]", buffers.int64s)
        case Decimal(precision, scale):
            return _of_decimal(precision, scale)


def _of_array(element: Layout) -> Layout:
    """For each element the int32 1 if it is null, else 0, the number of its bytes as an int32, and they themselves."""

    def pack(cells: Sequence[object]) -> bytes:
        parts: list[bytes] = []
        for cell in cells:
            held = b"" if cell is None else element.pack(cell)
            parts += [struct.pack("<ii", cell is None, len(held)), held]
        return b"".join(parts)

    return Layout(pack, "list<.*>", lambda array: buffers.packed(array, pack))


def _of_decimal(precision: int, scale: int) -> Layout:
    arrow = rf"decimal128\(\d+, {scale}\)"

    def unscaled(cell: Exact) -> int:
        # The default context would round to 28 digits.
        return int(Exact(cell).scaleb(scale, Context(prec=80)))

    def fewest(cell: Exact) -> bytes:
        value = unscaled(cell)
        bits = (value if value >= 0 else ~value).bit_length()
        return value.to_bytes(bits // 8 + 1, "big", signed=True)

    if precision <= 18:
        return Layout(lambda cell: unscaled(cell).to_bytes(8, "little", signed=True), arrow, buffers.short_decimals)
    return Layout(fewest, arrow, buffers.long_decimals)
