"""Columns from objects: what a library has made of values that are written in a binary format, as Python has it.

`Objects.cell` is the definition, of one field; `ObjectColumns` reads whole columns and leaves to it what is in doubt.

- A value must be of the declared type, or of one that holds it exactly; a number may become the nearest float.
- A decimal comes from a decimal, a whole number or a text, and not from a float, whose digits nobody has sent.
- A moment comes from a moment, or by its declared unit from a number; without a zone it is in UTC. Digits beyond
  microseconds, which a FineMoment has, are cut and counted, or refused where the column is strict.
- Floats that are no number or infinite are values of a float column, and errors within JSON, structs, maps and arrays.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal as Exact
from functools import cache
from typing import Any, cast
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.formats.cells import Cell, Cells
from ratchet.formats.decided import Reading, decided, in_doubt
from ratchet.formats.fine import FineMoment
from ratchet.formats.port import Decoded, NoRow
from ratchet.formats.vectors import Rows, Vector, numbered, within_years
from ratchet.formats.wire import path_of
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
from ratchet.values.arrow import arrow_schema, arrow_type
from ratchet.values.jsonb import Document, Number, written
from ratchet.values.moments import AFTER_LATEST, EARLIEST
from ratchet.values.unfit import Unfit, excerpt

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST = 1_000
"""Whole numbers of more bits are not written out."""
_NONE: Rows = np.empty(0, np.int64)
_LOOKED_AT = 50
"""Names are gathered from so many objects."""
_NAMES = 100
"""So many names of an object are kept."""


class Absent:
    """Stands where an object has no such field."""


ABSENT = Absent()


class ObjectColumns:
    """Turns values that a library has read, each a dict from names to fields, into declared columns."""

    def __init__(self, columns: tuple[Column, ...], wanted: str):
        """`wanted` says in errors what a value should be, as `one MessagePack map`."""
        self._columns = columns
        self._paths = [path_of(column) for column in columns]
        self._schema = arrow_schema(columns)
        self._wanted = wanted

    def decoded(self, given: Sequence[object]) -> Decoded:
        """One row of each value that is a dict; for every other one an error, of a NoRow its own words."""
        parents = np.array([i for i, value in enumerate(given) if isinstance(value, dict)], np.int64)
        objects = [cast("dict[str, Any]", given[i]) for i in parents.tolist()]
        vectors = [self._vector(c, path, objects) for c, path in zip(self._columns, self._paths, strict=True)]
        doubtful = set(range(len(given))).difference(parents.tolist())
        return self.joined(len(given), vectors, parents, doubtful, lambda i: given[i])

    def joined(
        self, count: int, vectors: Sequence[Vector], parents: Rows, doubtful: set[int], value: Callable[[int], object]
    ) -> Decoded:
        """What `count` values say, as `decided` has it; `value` gives the object of one in doubt, or NoRow."""
        doubtful = doubtful | in_doubt(vectors, [c.nullable for c in self._columns], parents)
        found = decided(count, self._schema, vectors, parents, doubtful, lambda i: self._read(value(i)))
        return self._with_names(found, value)

    def _read(self, value: object) -> Reading:
        """The row of one value; NoRow where it has none."""
        if isinstance(value, NoRow):
            raise value
        if not isinstance(value, dict):
            raise NoRow(f"the value: found {shown(value)}, wanted {self._wanted}")
        objects = Objects()
        row = [
            self._cell(objects, column, path, cast("dict[str, Any]", value))
            for column, path in zip(self._columns, self._paths, strict=True)
        ]
        return Reading([row], objects.cut)

    def _cell(self, objects: Objects, column: Column, path: tuple[str, ...], value: dict[str, Any]) -> Cell:
        try:
            found = _at(value, path)
            cell = objects.cell(column.type, None if found is ABSENT else found)
        except Unfit as unfit:
            raise NoRow(unfit.said(f"column {column.name}")) from None
        if cell is None and not column.nullable:
            said = "nothing" if found is ABSENT else "null"
            raise NoRow(f"column {column.name}: found {said}, wanted {column.type} not null")
        return cell

    def _vector(self, column: Column, path: tuple[str, ...], objects: list[dict[str, Any]]) -> Vector:
        if len(path) == 1:
            return vector(column.type, [value.get(path[0]) for value in objects])
        cells: list[Any] = []
        declined: list[int] = []
        for row, value in enumerate(objects):
            try:
                found = _at(value, path)
            except Unfit:
                declined.append(row)
                found = None
            cells.append(None if found is ABSENT else found)
        made = vector(column.type, cells)
        return Vector(made.array, np.union1d(made.declined, np.array(declined, np.int64)), made.cut)

    def _with_names(self, decoded: Decoded, value: Callable[[int], object]) -> Decoded:
        """The same, with what is known of the columns' fields."""
        rows = decoded.columns
        if not rows.num_rows:
            return decoded
        parents = list(dict.fromkeys(decoded.parents.to_pylist()))

        @cache
        def good(i: int) -> dict[str, Any]:
            # Where columns are read at once, objects are made only for one that is empty.
            return cast("dict[str, Any]", value(i))

        beside: dict[str, frozenset[str]] = {}
        for number, (column, path) in enumerate(zip(self._columns, self._paths, strict=True)):
            if rows.column(number).null_count == rows.num_rows and all(_at(good(i), path) is ABSENT for i in parents):
                outer = [_at(good(i), path[:-1]) for i in parents[:_LOOKED_AT]]
                names = {name: None for inner in outer if isinstance(inner, dict) for name in inner}
                beside[column.name] = frozenset(list(map(str, names))[:_NAMES])
        found = frozenset(c.name for c in self._columns if c.name not in beside)
        return Decoded(decoded.columns, decoded.parents, decoded.errors, found, beside, decoded.cut)


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


def vector(kind: Type, cells: list[Any]) -> Vector:
    """The column of these fields; those of a usual type are read at once, all others one by one."""
    types = set(map(type, cells))
    types.discard(type(None))
    usual = len(types) == 1 and _usual(kind, types.pop(), cells)
    return usual or _each(kind, cells)


def _usual(kind: Type, of: type, cells: list[Any]) -> Vector | None:
    """The column of fields that are all of one type, where Arrow reads them as the definition does."""
    try:
        match kind:
            case String() if of is str:
                texts = pa.array(cells, pa.string())
                zeros = pc.match_substring(texts, "\x00").fill_null(False).to_numpy(zero_copy_only=False)
                return Vector(texts, np.flatnonzero(zeros), _NONE)
            case Integer() if of is int:
                return Vector(pa.array(cells, arrow_type(kind)), _NONE, _NONE)
            case Timestamp(unit, _) if of is int and unit is not None:
                return numbered(kind, cells)
            case Floating(64) if of is float:
                return Vector(pa.array(cells, pa.float64()), _NONE, _NONE)
            case Boolean() if of is bool:
                return Vector(pa.array(cells, pa.bool_()), _NONE, _NONE)
            case Binary() if of is bytes:
                return Vector(pa.array(cells, pa.binary()), _NONE, _NONE)
            case Timestamp() if of is datetime:
                return _moments(cells)
            case Decimal() if of is Exact:
                return Vector(pa.array(cells, arrow_type(kind)), _NONE, _NONE)
            case Date() if of is date:
                return Vector(pa.array(cells, pa.date32()), _NONE, _NONE)
            case _:
                return None
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
        return None


def _moments(cells: list[Any]) -> Vector | None:
    """Arrow takes a moment without a zone for one in UTC, too; None where a year is, or may be, none of ours."""
    found = pa.array(cells, pa.timestamp("us", "UTC"))
    return Vector(found, _NONE, _NONE) if within_years(found.cast(pa.int64())) else None


def _each(kind: Type, cells: list[Any]) -> Vector:
    objects = Objects()
    found: list[Any] = []
    declined: list[int] = []
    cut: list[int] = []
    for row, value in enumerate(cells):
        before, cell = objects.cut, None
        try:
            cell = objects.cell(kind, value)
        except Unfit:
            declined.append(row)
        cut += [row] * (objects.cut - before)
        found.append(cell)
    return Vector(pa.array(found, arrow_type(kind)), np.array(declined, np.int64), np.array(cut, np.int64))


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


def _at(value: dict[str, Any], path: tuple[str, ...]) -> Any:
    """The field that a path leads to; ABSENT where one of its names is missing, or where an outer field is null."""
    found: Any = value
    for depth, name in enumerate(path):
        if found is None:
            return ABSENT
        if not isinstance(found, dict):
            raise Unfit(shown(found), f"fields with {'.'.join(path[depth:])}")
        found = cast("dict[str, Any]", found).get(name, ABSENT)
        if found is ABSENT:
            return ABSENT
    return found


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
