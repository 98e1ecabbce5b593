"""Fields that are declared and that no value has: mostly a name that is written otherwise there."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.formats.cells import elements_of, members_of
from ratchet.formats.port import Decoded
from ratchet.formats.wire import RowsOf, Wire, at, joined, path_of
from ratchet.spec.columns import Column
from ratchet.values.unfit import Unfit

_LOOKED_AT = 50
"""Names are gathered from so many values."""
_NAMES = 100
"""So many names of an object are kept."""
_NEAR = 0.6


class Missing:
    """Looks for the fields of columns that are null in every row."""

    def __init__(self, columns: tuple[Column, ...], rows: RowsOf):
        self._columns = columns
        self._rows_of: RowsOf = rows
        self._wires: dict[tuple[int, ...], Wire] = {}

    def of(self, decoded: Decoded, values: pa.BinaryArray) -> tuple[frozenset[str], Mapping[str, frozenset[str]]]:
        """(the columns whose field is in some good value, {each other column: names beside its field's place}).

        Where no value is good, no column is among them.
        """
        rows = decoded.columns
        if not rows.num_rows:
            return frozenset(), {}
        empty = [i for i in range(len(self._columns)) if rows.column(i).null_count == rows.num_rows]
        absent: dict[str, frozenset[str]] = {}
        if empty:
            good = values.filter(pc.is_null(decoded.errors))
            wire = self._wire(tuple(empty))
            objects = self._read(wire, good)
            some = good.slice(0, _LOOKED_AT).to_pylist()
            for place, number in enumerate(empty):
                if wire.usable and not wire.has(place, objects):
                    column = self._columns[number]
                    absent[column.name] = self._names(path_of(column)[:-1], some)
        return frozenset(c.name for c in self._columns if c.name not in absent), absent

    def _wire(self, empty: tuple[int, ...]) -> Wire:
        if empty not in self._wires:
            self._wires[empty] = Wire(tuple(self._columns[i] for i in empty), self._rows_of, "raw")
        return self._wires[empty]

    def _read(self, wire: Wire, good: pa.BinaryArray) -> list[Any]:
        read = wire.read(joined(good), len(good))
        if read is None:
            assert not wire.usable, "a value that was decoded can be read as it was sent"
            return []
        return [row for value in read for row in value] if self._rows_of == "array" else read

    def _names(self, outer: tuple[str, ...], values: list[bytes]) -> frozenset[str]:
        found: dict[str, None] = {}
        for value in values:
            for raw in [bytes(r) for r in elements_of(value)] if self._rows_of == "array" else [value]:
                try:
                    inner = at(raw.strip(), outer)
                    found |= dict.fromkeys(members_of(inner)) if inner is not None else {}
                except (Unfit, msgspec.MsgspecError):
                    continue
        return frozenset(list(found)[:_NAMES])


def nearest(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that are most like one, at most three; first those that differ in case or punctuation alone."""
    # A name that no error can show, and no ledger hold, helps nobody.
    scored = [(_likeness(name, other), other) for other in names if other.isprintable()]
    return tuple(other for score, other in sorted(scored, key=lambda s: (-s[0], s[1])) if score >= _NEAR)[:3]


def _likeness(one: str, other: str) -> float:
    bare, other_bare = ("".join(c for c in n.lower() if c.isalnum()) for n in (one, other))
    return 2.0 if bare and bare == other_bare else SequenceMatcher(None, bare, other_bare).ratio()
