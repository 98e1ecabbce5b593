"""The port of a format: it turns values into declared columns, and says of each value whether that was possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

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

EXCERPT = 200
"""An error shows so many characters of what was found."""


@dataclass(frozen=True)
class Decoded:
    """What became of some values.

    `columns` has the declared columns, one row each. A value gives any number of rows, or an error and none; `parents`
    has the number of each row's value, ascending. `errors` has the error of each value, or null. `found` names the
    columns whose field was in some value without an error, though it may have been null there; `beside` has for each
    other column names that stood where its field was looked for. `cut` counts the moments that lost digits.
    """

    columns: pa.RecordBatch
    parents: pa.Int32Array
    errors: pa.StringArray
    found: frozenset[str] = frozenset()
    beside: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    cut: int = 0


class Format(Protocol):
    """A way in which values are written.

    `decode` raises nothing because of a value, and gives each value the same whatever others are beside it.
    """

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that it makes, in order."""
        ...

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """What these values say; none of them is null."""
        ...


class Unfit(Exception):
    """What was found is no value of the type that was wanted; `at` leads to it from the column."""

    def __init__(self, found: str, wanted: object, at: str = ""):
        super().__init__(found, wanted, at)
        self.found, self.wanted, self.at = found, str(wanted), at

    def within(self, step: str) -> Unfit:
        """The same, seen from one level further out."""
        return Unfit(self.found, self.wanted, step + self.at)

    def said(self, where: str) -> str:
        """The error of a value: where, what was found, what was wanted."""
        return f"{where}{self.at}: found {self.found}, wanted {self.wanted}"


class NoRow(Exception):
    """The value gives no row; its text is the error."""


def excerpt(found: bytes | str) -> str:
    """The first characters of what was found, as text that any database holds."""
    if isinstance(found, bytes):
        found = found[: EXCERPT * 4 + 4].decode(errors="replace")
    characters = (" " if c in "\t\r\n" else c if c.isprintable() else f"\\u{ord(c):04x}" for c in found[: EXCERPT + 1])
    shown = "".join(characters)
    return shown if len(shown) <= EXCERPT else shown[:EXCERPT] + "…"


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


def schema(columns: tuple[Column, ...]) -> pa.Schema:
    """The Arrow schema of declared columns."""
    return pa.schema([pa.field(c.name, arrow_type(c.type)) for c in columns])
