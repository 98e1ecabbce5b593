"""Fields that a library has read of values in a binary format, as Python has them: what each is in a declared column.

`Objects.cell` is the definition; `object_columns` reads whole columns and leaves to it what is in doubt.

- A value must be of the declared type, or of one that holds it exactly; a number may become the nearest float.
- A decimal comes from a decimal, a whole number or a text, and not from a float, whose digits nobody has sent.
- A moment comes from a moment, or by its declared unit from a number; without a zone it is in UTC. Digits beyond
  microseconds, which a FineMoment has, are cut and counted, or refused where the column is strict.
- Floats that are no number or infinite are values of a float column, and errors within JSON, structs, maps and arrays.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal as Exact
from typing import Any, cast
from uuid import UUID

import numpy as np

from ratchet.formats.cells import Cell, Cells
from ratchet.formats.fine import FineMoment
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
from ratchet.values.jsonb import Document, Number, written
from ratchet.values.moments import AFTER_LATEST, EARLIEST
from ratchet.values.unfit import Unfit, excerpt

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST = 1_000
"""Whole numbers of more bits are not written out."""


class Objects:
    """Reads cells from fields, and counts in `cut` the moments that lost digits."""

    def __init__(self) -> None:
        self._cells = Cells()

    @property
    def cut(self) -> int:
        return self._cells.cut

    def cell(self, kind: Type, value: Any) -> Cell:
        """The value of one field; Unfit if it is none of the type."""
        match kind, value:
            case _, None:
                return None
            case Boolean(), bool():
                return value
            case String(), str():
                return self._cells.of_text(kind, _utf8(kind, value))
            case Binary(), bytes() | bytearray() | memoryview():
                return bytes(value)
            case Integer(), int() if not isinstance(value, bool) and value in kind:
                return value
            case Floating(), int() | float() if not isinstance(value, bool):
                return self._floating(kind, value)
            case Floating(), Exact():
                return self._cells.of_text(kind, _digits(kind, value))
            case Decimal(), Exact() | int() if not isinstance(value, bool):
                return self._cells.of_text(kind, _digits(kind, value))
            case Timestamp(), datetime():
                return self._moment(kind, value)
            case Timestamp(unit, _), int() | float() if unit is not None and not isinstance(value, bool):
                return self._cells.of_text(kind, _digits(kind, value))
            case Date(), date() if not isinstance(value, datetime):
                return value
            case Time(), time() if value.tzinfo is None:
                return value.isoformat("microseconds")
            case Uuid(), UUID():
                return str(value)
            case Uuid(), bytes() if len(value) == 16:
                return str(UUID(bytes=value))
            case ((Decimal() | Date() | Time() | Timestamp(None, _) | Uuid()), str()):
                return self._cells.of_text(kind, _utf8(kind, value))
            case Json(), _:
                return self._nested(kind, lambda: written(document(value)))
            case ((Array() | Map() | Struct()), _):
                return self._nested(kind, lambda: self._inner(kind, value))
            case _:
                raise Unfit(shown(value), kind)

    def _moment(self, kind: Timestamp, value: datetime) -> int:
        if isinstance(value, FineMoment):
            if kind.strict:
                raise Unfit(shown(value), f"{kind}, with no digits beyond microseconds")
            self._cells.cut += 1
        return _micros(kind, value)

    def _nested(self, kind: Type, read: Any) -> Cell:
        try:
            return read()
        except RecursionError:
            raise Unfit("more values within each other than can be read", kind) from None

    def _inner(self, kind: Type, value: Any) -> Cell:
        match kind, value:
            case Array(element), list() | tuple():
                items = cast("Sequence[Any]", value)
                return [self._step(element, each, f"[{i}]") for i, each in enumerate(items)]
            case Map(inner), dict():
                pairs = cast("dict[Any, Any]", value).items()
                return [(_name(kind, name), self._step(inner, each, f"[{name!r}]")) for name, each in pairs]
            case Struct(members), dict():
                fields = cast("dict[Any, Any]", value)
                found: dict[str, Cell] = {}
                for member in members:
                    cell = self._step(member.type, fields.get(member.name), f".{member.name}")
                    if cell is None and not member.nullable:
                        said = "null" if member.name in fields else "nothing"
                        raise Unfit(said, f"{member.type} not null", f".{member.name}")
                    found[member.name] = cell
                return found
            case _:
                raise Unfit(shown(value), kind)

    def _step(self, kind: Type, value: Any, step: str) -> Cell:
        if isinstance(kind, Floating) and isinstance(value, float) and not math.isfinite(value):
            raise Unfit(str(value), f"a finite {kind}", step)
        try:
            return self.cell(kind, value)
        except Unfit as unfit:
            raise unfit.within(step) from None

    def _floating(self, kind: Floating, value: float) -> Cell:
        if isinstance(value, int):
            return self._cells.of_text(kind, _digits(kind, value))
        if kind.bits == 64 or not math.isfinite(value):
            return value
        with np.errstate(over="ignore"):
            near = float(np.float32(value))
        if math.isinf(near):
            raise Unfit(shown(value), f"a finite {kind}")
        return near


def document(value: Any) -> Document:
    """A field as a part of a JSON document: bytes in base64, moments, dates, times and UUIDs as texts.

    Raises Unfit for floats that are no numbers, names that are no texts, and what JSON has nothing for.
    """
    match value:
        case None | bool() | str():
            return value
        case int():
            return Number(_digits(Json(), value).decode())
        case float() if math.isfinite(value):
            return Number(repr(value))
        case Exact() if value.is_finite():
            return Number(str(value))
        case bytes() | bytearray() | memoryview():
            return b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case dict():
            fields = cast("dict[Any, Any]", value).items()
            return {_name(Json(), name): document(each) for name, each in fields}
        case list() | tuple():
            return [document(each) for each in cast("Sequence[Any]", value)]
        case _:
            raise Unfit(shown(value), Json())


def shown(value: object) -> str:
    """What was found, for an error: scalars themselves, of everything else what it is."""
    match value:
        case None:
            return "null"
        case str():
            return f'"{excerpt(value)}"'
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > _LONGEST:
            return "a number of more than 300 digits"
        case bytes() | bytearray() | memoryview():
            return f"{len(value)} bytes"
        case dict():
            return "named fields"
        case list() | tuple():
            return "a list"
        case _:
            return excerpt(str(value))


def _name(kind: Type, name: object) -> str:
    if not isinstance(name, str):
        raise Unfit(f"the name {shown(name)}", f"{kind}, whose names are texts")
    return str(Cells().of_text(String(), _utf8(kind, name)))


def _utf8(kind: Type, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Unfit("half of a surrogate pair", kind) from None


def _digits(kind: Type, value: Exact | int | float) -> bytes:
    """The number as digits, of a float the fewest that name it; Unfit if it is none."""
    match value:
        case int():
            is_number = value.bit_length() <= _LONGEST
        case float():
            is_number = math.isfinite(value)
        case Exact():
            is_number = value.is_finite()
    if not is_number:
        raise Unfit(shown(value), kind)
    return (repr(value) if isinstance(value, float) else str(value)).encode()


def _micros(kind: Timestamp, value: datetime) -> int:
    """Microseconds since 1970; a moment without a zone is in UTC."""
    try:
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        micros = (aware - _EPOCH) // _MICROSECOND
    except OverflowError:
        micros = AFTER_LATEST
    if not EARLIEST <= micros < AFTER_LATEST:
        raise Unfit(shown(value), kind)
    return micros
