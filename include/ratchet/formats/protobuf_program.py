"""The program of a message type, by which its values are walked over, and where in it the fields of columns are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.formats.protobuf_types import (
    BINARY,
    BOOL,
    DOUBLE,
    ENUM,
    FIXED32,
    FIXED64,
    FLOAT,
    GROUPED,
    INT32,
    INT64,
    MESSAGES,
    SFIXED32,
    SFIXED64,
    SINT32,
    SINT64,
    STRING,
    UINT32,
    UINT64,
)
from ratchet.formats.protobuf_walk import (
    BYTES,
    FAULTS,
    FIXED4,
    FIXED8,
    GROUP,
    MESSAGE,
    NUMBER,
    TEXT,
    ZIGZAG,
    walk,
)
from ratchet.formats.vectors import Rows
from ratchet.formats.walked import Walked

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_INT, _LONG = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_KINDS: dict[int, tuple[int, tuple[int, int]]] = {
    INT64: (NUMBER, _LONG),
    UINT64: (NUMBER, _LONG),
    INT32: (NUMBER, _INT),
    ENUM: (NUMBER, _INT),
    UINT32: (NUMBER, (0, 2**32 - 1)),
    BOOL: (NUMBER, (0, 1)),
    SINT32: (ZIGZAG, _INT),
    SINT64: (ZIGZAG, _LONG),
    DOUBLE: (FIXED8, _LONG),
    FIXED64: (FIXED8, _LONG),
    SFIXED64: (FIXED8, _LONG),
    FLOAT: (FIXED4, _LONG),
    FIXED32: (FIXED4, _LONG),
    SFIXED32: (FIXED4, _LONG),
    STRING: (TEXT, _LONG),
    BINARY: (BYTES, _LONG),
    MESSAGES: (MESSAGE, _LONG),
    GROUPED: (GROUP, _LONG),
}


@dataclass(frozen=True)
class Leaf:
    """A field that is kept: its slot, that of the message that it is in, if this is not the outermost one."""

    slot: int
    field: FieldDescriptor
    within: int | None


@dataclass
class _Place:
    """A message on the way to fields that are kept, apart from others of its type; `slot` says whether it is there."""

    type: Descriptor
    slot: int = -1
    leaves: dict[int, Leaf] = field(default_factory=dict[int, Leaf])
    below: dict[int, _Place] = field(default_factory=dict[int, "_Place"])

    def slots(self, number: int) -> Iterator[int]:
        """Those of a field and of all that is kept below it."""
        if number in self.leaves:
            yield self.leaves[number].slot
        if number in self.below:
            place = self.below[number]
            yield place.slot
            for inner in {*place.leaves, *place.below}:
                yield from place.slots(inner)


class Program:
    """The program of a message type."""

    def __init__(self, message: Descriptor):
        self._root = _Place(message)
        self._slots = 0
        self._table: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None
        self._fields: list[FieldDescriptor] = []

    def leaf(self, route: tuple[FieldDescriptor, ...]) -> Leaf:
        """The field to which a way leads that no repeated field is on; from now on it is kept."""
        place = self._root
        for step in route[:-1]:
            assert step.message_type is not None, "a way leads through messages"
            if step.number not in place.below:
                place.below[step.number] = _Place(step.message_type, self._slot())
            place = place.below[step.number]
        last = route[-1]
        if last.number not in place.leaves:
            within = None if place is self._root else place.slot
            place.leaves[last.number] = Leaf(self._slot(), last, within)
        return place.leaves[last.number]

    def walked(self, data: NDArray[np.uint8], starts: Rows, ends: Rows) -> Walked:
        """The walk over values that lie one at `data[starts[i]:ends[i]]`."""
        if self._table is None:
            self._table = self._made()
        found = Walked.of(self._slots, starts, ends)
        walk(data, starts, ends, *self._table, found.faults, found.values, found.lengths, found.there)
        return found

    def said(self, fault: NDArray[np.int64]) -> str:
        """What is wrong with a value, by its row of `faults`."""
        kind, row, at = fault.tolist()
        return f"{FAULTS[kind].format(self._fields[row].full_name)}, at byte {at}"

    def _slot(self) -> int:
        self._slots += 1
        self._table = None
        return self._slots - 1

    def _made(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(messages, fields, clears) as the walk takes them."""
        messages: list[list[int]] = []
        rows: list[list[int]] = []
        clears: list[int] = []
        self._fields = []
        shared: dict[str, int] = {}
        left = [(self._root, self._numbered(messages))]

        def child(of: FieldDescriptor, place: _Place) -> int:
            if of.message_type is None:
                return -1
            if of.number in place.below:
                left.append((place.below[of.number], self._numbered(messages)))
                return left[-1][1]
            name = of.message_type.full_name
            if name not in shared:
                shared[name] = self._numbered(messages)
                left.append((_Place(of.message_type), shared[name]))
            return shared[name]

        # Not by recursion: types refer to one another as deep as their author likes.
        while left:
            place, number = left.pop()
            begin = len(rows)
            for each in sorted(place.type.fields, key=lambda of: of.number):
                kind, (low, high) = _KINDS[each.type]
                others = [o for o in each.containing_oneof.fields if o is not each] if each.containing_oneof else []
                cleared = [slot for other in others for slot in place.slots(other.number)]
                slot = place.leaves[each.number].slot if each.number in place.leaves else -1
                if each.number in place.below:
                    slot = place.below[each.number].slot
                is_packed = int(each.is_repeated and kind <= FIXED4)
                rows.append(
                    [each.number, kind, low, high, is_packed, child(each, place), slot, len(clears), len(cleared)]
                )
                clears += cleared
                self._fields.append(each)
            messages[number] = [begin, len(rows) - begin]
        return (
            np.array(messages, np.int64),
            np.array(rows, np.int64).reshape(len(rows), 9),
            np.array(clears, np.int64),
        )

    def _numbered(self, messages: list[list[int]]) -> int:
        messages.append([0, 0])
        return len(messages) - 1
