"""JSON in UTF-8: one object a value, or one array of objects, as exactly as msgspec reads it.

`JsonDecoder.read` is the definition, of one value; `decode` reads many in one call and leaves to it what is in doubt.

- Names are matched exactly as they are sent; of doubled ones the last counts; what is not declared is skipped.
- Numbers must fit and are never rounded, save to the nearest float; a decimal may be sent as a string too.
- A string column has the characters of a string, and of every other value the bytes that were sent.
- Text behind the value, a byte-order mark, NaN, invalid UTF-8, halves of surrogate pairs, and more than 500 brackets
  within each other are errors of the value, wherever they stand; U+0000 is one of the column.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from ratchet.formats.cells import Cell, Cells, elements_of, members_of, raw_of
from ratchet.formats.decided import Reading, Row, decided, in_doubt
from ratchet.formats.missing import Missing
from ratchet.formats.port import Decoded, NoRow
from ratchet.formats.vectors import Rows
from ratchet.formats.wire import RowsOf, Wire, at, joined, path_of
from ratchet.spec.columns import Column
from ratchet.values.arrow import arrow_schema
from ratchet.values.unfit import Unfit, excerpt

DEEPEST = 500
"""So many brackets may be within each other."""
CHUNK = 2048
"""So many values are read in one call; where one of them is wrong, they are read one by one."""

_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


class JsonDecoder:
    """Values that are one JSON object, a row each, or with `rows="array"` one array of objects, a row for each."""

    def __init__(self, columns: tuple[Column, ...], rows: RowsOf = "object"):
        self.columns = columns
        self._rows: RowsOf = rows
        self._paths = [path_of(column) for column in columns]
        self._schema = arrow_schema(columns)
        self._exact, self._lenient = Wire(columns, rows, "exact"), Wire(columns, rows, "lenient")
        self._missing = Missing(columns, rows)

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        """What these values say; of every one of them what `read` says of it."""
        parts = [self._part(values.slice(begin, CHUNK)) for begin in range(0, max(len(values), 1), CHUNK)]
        decoded = parts[0] if len(parts) == 1 else _one_behind_the_other(parts)
        found, beside = self._missing.of(decoded, values)
        return Decoded(decoded.columns, decoded.parents, decoded.errors, found, beside, decoded.cut)

    def read(self, value: bytes) -> Reading:
        """What one value says; NoRow with the reason where it says nothing."""
        reader = Cells()
        rows: list[Row] = []
        for number, raw in enumerate(self._objects(value)):
            where = f"row {number}, column" if self._rows == "array" else "column"
            members = members_of(raw)
            rows.append([_cell(reader, c, p, members, where) for c, p in zip(self.columns, self._paths, strict=True)])
        return Reading(rows, reader.cut)

    def _objects(self, value: bytes) -> list[bytes]:
        """The objects of a value, which is JSON through and through."""
        wanted = "one JSON object" if self._rows == "object" else "one JSON array of objects"
        if value[:1] == b"\0" and len(value) > 5:
            number = int.from_bytes(value[1:5], "big")
            raise NoRow(
                f"the value: found a schema registry's framing (five bytes in front, schema {number}), wanted {wanted}"
            )
        try:
            value.decode()
        except UnicodeDecodeError as error:
            raise NoRow(f"the value: found invalid UTF-8 at byte {error.start}, wanted {wanted}") from None
        if b"\\u" in value and _HALF.search(value.replace(b"\\\\", b"//")):
            raise NoRow(f"the value: found half of a surrogate pair, which is no character, wanted {wanted}")
        if is_too_deep(value):
            raise NoRow(f"the value: found more than {DEEPEST} brackets within each other, wanted {wanted}")
        try:
            raw = bytes(raw_of(value))
            objects = [raw] if self._rows == "object" else [bytes(r) for r in elements_of(raw)]
        except (msgspec.MsgspecError, RecursionError) as error:
            why = "" if isinstance(error, msgspec.ValidationError) else f" ({error})"
            raise NoRow(f"the value: found {excerpt(value) or 'nothing'}, wanted {wanted}{why}") from None
        for number, found in enumerate(objects):
            if found[0] != 0x7B:
                where = "the value" if self._rows == "object" else f"row {number}"
                raise NoRow(f"{where}: found {excerpt(found)}, wanted one JSON object")
        return objects

    def _part(self, values: pa.BinaryArray) -> Decoded:
        held = joined(values)
        doubtful = _suspects(values, held)
        wire, objects, parents = self._by_wire(values, held, doubtful)
        vectors = wire.vectors(objects, escapes=b"\\u0000" in held)
        doubtful |= in_doubt(vectors, [c.nullable for c in self.columns], parents)
        return decided(len(values), self._schema, vectors, parents, doubtful, lambda i: self.read(values[i].as_py()))

    def _by_wire(self, values: pa.BinaryArray, held: bytes, doubtful: set[int]) -> tuple[Wire, list[Any], Rows]:
        """The objects of all values, `held` when joined, that can be read in one call, each with its value's number.

        Adds the others to `doubtful`, those that are there already are left out.
        """
        numbers = [i for i in range(len(values)) if i not in doubtful]
        part = values
        if doubtful:
            part = values.take(pa.array(numbers, pa.int64()))
            held = joined(part)
        wire = self._exact
        found = wire.read(held, len(part))
        if found is None:
            wire = self._lenient
            found = wire.read(held, len(part))
        if found is None:
            each: list[Any] = [wire.read_one(value) for value in part.to_pylist()]
            doubtful.update(n for n, value in zip(numbers, each, strict=True) if value is None)
            numbers = [n for n, value in zip(numbers, each, strict=True) if value is not None]
            found = [value for value in each if value is not None]
        parents = np.array(numbers, np.int64)
        if self._rows == "array":
            parents = np.repeat(parents, [len(value) for value in found])
            found = [row for value in found for row in value]
        return wire, found, parents


def is_too_deep(value: bytes) -> bool:
    """Whether more than DEEPEST brackets are within each other, in a value that may be no JSON at all."""
    if len(value) <= DEEPEST or value.count(b"[") + value.count(b"{") <= DEEPEST:
        return False
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", value)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEEPEST:
            return True
    return False


def _suspects(values: pa.BinaryArray, held: bytes) -> set[int]:
    """The values in which msgspec does not look at everything: those with invalid UTF-8, and those too deep for it."""
    found: set[int] = set()
    if not held.isascii():
        try:
            held.decode()
        except UnicodeDecodeError:
            found |= {i for i, value in enumerate(values.to_pylist()) if not _is_text(value)}
    if (
        len(values)
        and pc.max(pc.binary_length(values)).as_py() > DEEPEST
        and held.count(b"[") + held.count(b"{") > DEEPEST
    ):
        found |= {i for i, value in enumerate(values.to_pylist()) if is_too_deep(value)}
    return found


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _cell(reader: Cells, column: Column, path: tuple[str, ...], members: dict[str, Raw], where: str) -> Cell:
    """The value of a column in an object; NoRow where it has none that fits."""
    try:
        found = at(bytes(members[path[0]]), path[1:]) if path[0] in members else None
        cell = None if found is None else reader.of_json(column.type, found)
    except Unfit as unfit:
        raise NoRow(unfit.said(f"{where} {column.name}")) from None
    if cell is None and not column.nullable:
        found = "nothing" if found is None else "null"
        raise NoRow(f"{where} {column.name}: found {found}, wanted {column.type} not null")
    return cell


def _one_behind_the_other(parts: list[Decoded]) -> Decoded:
    before = 0
    parents: list[pa.Array] = []
    for part in parts:
        parents.append(pc.add(part.parents, pa.scalar(before, pa.int32())))
        before += len(part.errors)
    form = parts[0].columns.schema
    arrays = [pa.concat_arrays([part.columns.column(i) for part in parts]) for i in range(len(form))]
    return Decoded(
        pa.RecordBatch.from_arrays(arrays, schema=form),
        pa.concat_arrays(parents),
        pa.concat_arrays([part.errors for part in parts]),
        cut=sum(part.cut for part in parts),
    )
