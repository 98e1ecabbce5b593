"""How msgspec is told to read the declared fields of an object: types made for a list of columns."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from ratchet.formats.cells import NULL, members_of
from ratchet.formats.vectors import ABSENT, Vector, as_sent, each, vector, wire_type
from ratchet.spec.columns import Column, FieldPath
from ratchet.values.unfit import Unfit, excerpt

Reading = Literal["exact", "lenient", "raw"]
"""By the declared types; by wider ones, where the declared ones do not fit; or all as the bytes that were sent."""
RowsOf = Literal["object", "array"]

_ODD = re.compile(r'[\\"\x00-\x1f]')
_MARK = str(secrets.randbits(62)).encode()
_BETWEEN = b"," + _MARK + b","
"""Stands between values, so that no value can close, open or add one: nobody can know it."""


@dataclass
class _Node:
    """A name within an object: the columns that are there, and the names below."""

    attribute: str
    columns: list[int] = field(default_factory=list[int])
    below: dict[str, _Node] = field(default_factory=dict[str, "_Node"])

    @property
    def shared(self) -> bool:
        return len(self.columns) + bool(self.below) > 1


@dataclass(frozen=True)
class Taken:
    """Where a column's cells are in what was read: attributes from the object inwards, and names in the last one."""

    column: Column
    attributes: tuple[str, ...]
    rest: tuple[str, ...]
    is_raw: bool


class Wire:
    """One way to read values, and to take the columns out of what was read."""

    def __init__(self, columns: tuple[Column, ...], rows: RowsOf, reading: Reading):
        self._reading: Reading = reading
        self._columns = columns
        self._taken: dict[int, Taken] = {}
        self._rows: RowsOf = rows
        # msgspec takes no such name; then each value is read by itself.
        self.usable = not any(_ODD.search(name) for column in columns for name in path_of(column))
        kind: Any = self._struct(_tree(columns), (), ())
        whole: Any = list[kind] if rows == "array" else kind
        self._many: Callable[[bytes], list[Any]] = msgspec.json.Decoder(list[whole | int]).decode
        self._one: Callable[[bytes], Any] = msgspec.json.Decoder(whole).decode

    def read(self, held: bytes, count: int) -> list[list[Any]] | list[Any] | None:
        """What each of `count` values is, which are `joined`, by one call; None if one of them cannot be read so."""
        # However a value ends, or what it holds behind its end, it cannot stand for another one's begin or end: the
        # mark would be missing, or stand where it may not.
        if not self.usable and count:
            return None
        try:
            found = self._many(b"".join((b"[", held, b",", _MARK, b"]")))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        objects, marks = found[::2], found[1::2]
        # A value that is a number would be read too, as the marks are.
        is_whole = len(found) == 2 * count and marks == [int(_MARK)] * count and int not in map(type, objects)
        return objects if is_whole else None

    def read_one(self, value: bytes) -> Any:
        """What a value is; None if it cannot be read so."""
        if not self.usable:
            return None
        try:
            return self._one(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def vectors(self, objects: list[Any], escapes: bool) -> list[Vector]:
        """The columns of these objects; `escapes` says that texts may hold U+0000."""
        return [self._vector(self._taken[i], objects, escapes) for i in range(len(self._columns))]

    def has(self, number: int, objects: list[Any]) -> bool:
        """Whether the column's field is in one of the objects, for a raw reading."""
        taken = self._taken[number]
        cells = _cells(taken, objects)
        if not taken.rest:
            return any(cell is not ABSENT for cell in cells)
        return any(raw is not None and at(raw, taken.rest) is not None for raw in as_sent(cells))

    def _vector(self, taken: Taken, objects: list[Any], escapes: bool) -> Vector:
        kind, cells = taken.column.type, _cells(taken, objects)
        if taken.rest or (taken.is_raw and self._is_shared(taken)):
            rest = taken.rest

            def read(reader: Any, raw: bytes) -> Any:
                found = at(raw, rest)
                return None if found is None else reader.of_json(kind, found)

            return each(kind, as_sent(cells), read)
        return vector(kind, cells, self._reading == "lenient", escapes)

    def _is_shared(self, taken: Taken) -> bool:
        return wire_type(taken.column.type, self._reading == "lenient") is not Raw

    def _struct(self, level: dict[str, _Node], attributes: tuple[str, ...], names: tuple[str, ...]) -> Any:
        fields: list[tuple[str, Any, Any]] = []
        for name, node in level.items():
            path, inner = (*attributes, node.attribute), (*names, name)
            if node.below and not node.shared:
                fields.append((node.attribute, self._struct(node.below, path, inner) | None, None))
                continue
            for number in _all(node):
                column = self._columns[number]
                rest = path_of(column)[len(inner) :]
                kind = (
                    Raw if node.shared or self._reading == "raw" else wire_type(column.type, self._reading == "lenient")
                )
                self._taken[number] = Taken(column, path, rest, kind is Raw)
                if number == _all(node)[0]:
                    fields.append((node.attribute, kind, ABSENT if kind is Raw else None))
        rename = {node.attribute: name for name, node in level.items()} if self.usable else None
        return msgspec.defstruct("Object", fields, rename=rename, gc=False)


def path_of(column: Column) -> tuple[str, ...]:
    """The names that lead to a column's field."""
    assert isinstance(column.source, FieldPath), f"{column} is not a field of the message"
    return column.source.names


def at(raw: bytes, names: tuple[str, ...]) -> bytes | None:
    """The bytes of the field that the names lead to; None where one is missing, or where an outer one is null."""
    for depth, name in enumerate(names):
        if raw == NULL:
            return None
        if raw[0] != 0x7B:
            raise Unfit(excerpt(raw), f"an object with {'.'.join(names[depth:])}")
        found = members_of(raw).get(name)
        if found is None:
            return None
        raw = bytes(found)
    return raw


def joined(values: pa.BinaryArray) -> bytes:
    """All values, one behind the other, with something between them that is no bracket, quote or escape."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(whole, _BETWEEN)[0].as_py()


def _tree(columns: tuple[Column, ...]) -> dict[str, _Node]:
    root: dict[str, _Node] = {}
    for number, column in enumerate(columns):
        level, node = root, None
        for name in path_of(column):
            node = level.setdefault(name, _Node(f"f{len(level)}"))
            level = node.below
        assert node is not None
        node.columns.append(number)
    return root


def _all(node: _Node) -> list[int]:
    """The columns at a node and below it."""
    return [*node.columns, *(number for inner in node.below.values() for number in _all(inner))]


def _cells(taken: Taken, objects: list[Any]) -> list[Any]:
    first, *others = taken.attributes
    cells = list(map(attrgetter(first), objects))
    missing = ABSENT if taken.is_raw else None
    for attribute in others:
        get = attrgetter(attribute)
        cells = [missing if cell is None or cell is ABSENT else get(cell) for cell in cells]
    return cells
