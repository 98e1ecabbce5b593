"""Types of columns, as values; `str()` gives the declaration that `ratchet.spec.columns` reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quoted(name: str) -> str:
    """A name as a declaration has it: bare where it is an identifier, else in double quotes."""
    return name if _BARE.fullmatch(name) else '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class String:
    def __str__(self) -> str:
        return "string"


@dataclass(frozen=True)
class Boolean:
    def __str__(self) -> str:
        return "boolean"


@dataclass(frozen=True)
class Integer:
    """A signed integer of so many bits."""

    bits: Literal[16, 32, 64]

    def __str__(self) -> str:
        return {16: "smallint", 32: "int", 64: "bigint"}[self.bits]

    def __contains__(self, value: int) -> bool:
        return -(1 << (self.bits - 1)) <= value < 1 << (self.bits - 1)


@dataclass(frozen=True)
class Floating:
    """A binary floating-point number of so many bits."""

    bits: Literal[32, 64]

    def __str__(self) -> str:
        return "float" if self.bits == 32 else "double"


@dataclass(frozen=True)
class Decimal:
    """A number of at most `precision` digits, `scale` of them behind the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True)
class Date:
    def __str__(self) -> str:
        return "date"


@dataclass(frozen=True)
class Time:
    """A time of day without a zone, in microseconds."""

    def __str__(self) -> str:
        return "time"


Unit = Literal["seconds", "millis", "micros", "nanos"]
MICROS: dict[Unit, tuple[int, int]] = {
    "seconds": (1_000_000, 1),
    "millis": (1000, 1),
    "micros": (1, 1),
    "nanos": (1, 1000),
}
"""Microseconds in a unit, as (numerator, denominator)."""


@dataclass(frozen=True)
class Timestamp:
    """A moment in microseconds.

    Without `unit` it is sent as ISO 8601 text, else as a number of these units since 1970. Finer parts are cut off, or
    refused if `strict`.
    """

    unit: Unit | None = None
    strict: bool = False

    def __str__(self) -> str:
        return "timestamp" + (f"({self.unit})" if self.unit else "") + (" strict" if self.strict else "")


@dataclass(frozen=True)
class Binary:
    def __str__(self) -> str:
        return "binary"


@dataclass(frozen=True)
class Uuid:
    def __str__(self) -> str:
        return "uuid"


@dataclass(frozen=True)
class Json:
    """Any JSON value, kept as PostgreSQL's jsonb."""

    def __str__(self) -> str:
        return "json"


@dataclass(frozen=True)
class Array:
    element: Type

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True)
class Map:
    """An object of any names, all of whose values have one type."""

    value: Type

    def __str__(self) -> str:
        return f"map<string, {self.value}>"


@dataclass(frozen=True)
class Member:
    """A field of a struct, under exactly this name."""

    name: str
    type: Type
    nullable: bool = True

    def __str__(self) -> str:
        return f"{quoted(self.name)}: {self.type}" + ("" if self.nullable else " not null")


@dataclass(frozen=True)
class Struct:
    members: tuple[Member, ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(map(str, self.members))}>"


Scalar = String | Boolean | Integer | Floating | Decimal | Date | Time | Timestamp | Binary | Uuid
Type = Scalar | Json | Array | Map | Struct

STRING, BOOLEAN, BINARY, DATE, TIMESTAMP = String(), Boolean(), Binary(), Date(), Timestamp()
SMALLINT, INT, BIGINT, FLOAT, DOUBLE = Integer(16), Integer(32), Integer(64), Floating(32), Floating(64)
TIME, UUID, JSON = Time(), Uuid(), Json()

_WORDS = (STRING, BOOLEAN, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DATE, TIME, TIMESTAMP, BINARY, UUID, JSON)
NAMED: dict[str, Type] = {str(kind): kind for kind in _WORDS}
"""The types that a single word declares."""


def is_scalar(kind: Type) -> bool:
    """Whether its values have one order everywhere, so that they can be keys."""
    return not isinstance(kind, Json | Array | Map | Struct)


def is_document(kind: Type) -> bool:
    """Whether PostgreSQL holds it as jsonb: JSON, structs, maps, and arrays of these, of arrays, UUIDs and moments."""
    if isinstance(kind, Array):
        # The encoder of binary COPY has no arrays of UUIDs, and none of timestamps with a time zone.
        return isinstance(kind.element, Uuid | Timestamp) or not is_scalar(kind.element)
    return not is_scalar(kind)


WIDER: dict[Type, tuple[Type, ...]] = {SMALLINT: (INT, BIGINT), INT: (BIGINT,), FLOAT: (DOUBLE,)}
"""The types to which values may be widened, as nothing of them is lost."""
