"""Whole columns of objects that a library has read; what is in doubt is left to the definition in `objects`."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal as Exact
from functools import cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.formats.cells import Cell
from ratchet.formats.decided import Reading, decided, in_doubt
from ratchet.formats.objects import Objects, shown
from ratchet.formats.port import Decoded, NoRow
from ratchet.formats.vectors import Rows, Vector, numbered, within_years
from ratchet.formats.wire import path_of
from ratchet.spec.columns import Column
from ratchet.spec.types import Binary, Boolean, Date, Decimal, Floating, Integer, String, Timestamp, Type
from ratchet.values.arrow import arrow_schema, arrow_type
from ratchet.values.unfit import Unfit

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
        return self.named(found, value)

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

    def named(self, decoded: Decoded, value: Callable[[int], object]) -> Decoded:
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
