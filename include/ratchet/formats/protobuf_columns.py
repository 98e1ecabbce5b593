"""Columns of Protobuf at once: fields that a walk has found become Arrow arrays, as `protobuf_objects` has them."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ratchet.formats.protobuf_known import is_moment, is_wrapper
from ratchet.formats.protobuf_objects import names_of
from ratchet.formats.protobuf_program import Leaf, Program
from ratchet.formats.protobuf_routes import Route
from ratchet.formats.protobuf_types import BINARY, BOOL, DOUBLE, FIXED64, FLOAT, SFIXED32, STRING, UINT64
from ratchet.formats.vectors import Rows, Vector
from ratchet.formats.walked import Walked
from ratchet.formats.walked_columns import column, gathered
from ratchet.spec.types import Integer, Timestamp, Type
from ratchet.values.arrow import arrow_type
from ratchet.values.moments import AFTER_LATEST, EARLIEST

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_NONE: Rows = np.empty(0, np.int64)
_SECOND = 1_000_000
Truths = NDArray[np.bool_]


class Plain:
    """The column of a field that each message has once at most."""

    def __init__(self, kind: Type, program: Program, route: tuple[FieldDescriptor, ...]):
        self._kind, self._leaf = kind, program.leaf(route)
        enum = route[-1].enum_type
        self._numbers = None if enum is None or isinstance(kind, Integer) else names_of(enum)

    def vector(self, walked: Walked, data: NDArray[np.uint8]) -> Vector:
        """The column; values with a fault have nothing."""
        sent = walked.there[self._leaf.slot].astype(bool)
        there = _there(self._leaf, walked) & (walked.faults[:, 0] == 0)
        # What was sent for a message that another one of its oneof has replaced is still in its slot.
        numbers = np.where(sent & there, walked.values[self._leaf.slot], 0)
        if self._numbers is not None:
            return self._named(self._numbers, numbers, there)
        lengths = np.where(sent & there, walked.lengths[self._leaf.slot], 0)
        return column(self._kind, self._array(numbers, lengths, ~there, data))

    def _array(
        self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], missing: Truths, data: NDArray[np.uint8]
    ) -> pa.Array:
        match self._leaf.field.type:
            case of if of == BOOL:
                return pa.array(numbers.astype(bool), mask=missing)
            case of if of == DOUBLE:
                return pa.array(numbers.view(np.float64), mask=missing)
            case of if of == FLOAT:
                return pa.array(numbers.astype(np.uint32).view(np.float32), mask=missing)
            case of if of == SFIXED32:
                return pa.array(numbers.astype(np.uint32).view(np.int32).astype(np.int64), mask=missing)
            case of if of in (UINT64, FIXED64) and (numbers < 0).any():
                return pa.array(numbers.view(np.uint64), mask=missing)
            case of if of in (STRING, BINARY):
                texts = gathered(numbers, lengths, missing, data)
                return texts.view(pa.string()) if of == STRING else texts
            case _:
                return pa.array(numbers, mask=missing)

    def _named(self, names: dict[int, str], numbers: NDArray[np.int64], there: Truths) -> Vector:
        """The names of an enum's numbers; declined where a number has none."""
        known = np.array(sorted(names), np.int64)
        at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        nameless = there & (known[at] != numbers)
        texts = pa.array([names[number] for number in known.tolist()], pa.string())
        found = column(self._kind, texts.take(pa.array(at, mask=~there)))
        return Vector(found.array, np.union1d(found.declined, np.flatnonzero(nameless)), found.cut)


class Moments:
    """The column of a Timestamp."""

    def __init__(self, kind: Timestamp, program: Program, route: tuple[FieldDescriptor, ...], moment: Descriptor):
        self._kind = kind
        self._parts = [program.leaf((*route, moment.fields_by_name[name])) for name in ("seconds", "nanos")]
        within = self._parts[0].within
        assert within is not None, "seconds are within a message"
        self._slot = within

    def vector(self, walked: Walked, data: NDArray[np.uint8]) -> Vector:
        """The column; values with a fault have nothing."""
        there = walked.there[self._slot].astype(bool) & (walked.faults[:, 0] == 0)
        seconds, nanos = (
            np.where(walked.there[leaf.slot].astype(bool), walked.values[leaf.slot], 0) for leaf in self._parts
        )
        is_moment_ = (seconds >= EARLIEST // _SECOND) & (seconds < AFTER_LATEST // _SECOND)
        is_moment_ &= (nanos >= 0) & (nanos < 1_000_000_000)
        is_fine = there & is_moment_ & (nanos % 1000 != 0)
        odd = there & (~is_moment_ | (is_fine & self._kind.strict))
        micros = np.where(is_moment_, seconds, 0) * _SECOND + np.where(is_moment_, nanos, 0) // 1000
        found = pa.array(micros, mask=~there).cast(arrow_type(self._kind))
        return Vector(found, np.flatnonzero(odd), np.flatnonzero(is_fine & ~odd))


def nothing(kind: Type, count: int) -> Vector:
    """The column of a field that the message type does not have."""
    return Vector(pa.nulls(count, arrow_type(kind)), _NONE, _NONE)


def at_once(kind: Type, program: Program, route: Route) -> Plain | Moments | None:
    """The column of a field, where it is one that is read at once; None where it is not."""
    *_, last = route.fields
    if route.rest or any(each.is_repeated for each in route.fields):
        return None
    inner = last.message_type
    if inner is None:
        return Plain(kind, program, route.fields)
    if isinstance(kind, Timestamp) and is_moment(inner):
        return Moments(kind, program, route.fields, inner)
    if is_wrapper(inner):
        return Plain(kind, program, (*route.fields, inner.fields_by_name["value"]))
    return None


def _there(leaf: Leaf, walked: Walked) -> Truths:
    """Whether a value has the field, or the default of one whose presence is not told, in a message that is there."""
    if leaf.field.has_presence:
        return walked.there[leaf.slot].astype(bool)
    return np.ones(len(walked.faults), bool) if leaf.within is None else walked.there[leaf.within].astype(bool)
