"""Values of a binary format that a compiled walk has found whole, or broken; and what reads them by their schemas.

Columns are read at once where every schema of a batch allows it; what is in doubt then, and any other batch, is left to
the objects that a library makes of values without a fault.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ratchet.formats.object_columns import ObjectColumns
from ratchet.formats.port import Decoded, NoRow
from ratchet.formats.vectors import Rows, Vector
from ratchet.spec.columns import Column

Data = NDArray[np.uint8]


@dataclass(frozen=True)
class Walked:
    """What a walk over values that lie one at `data[starts[i]:ends[i]]` has found.

    Arrays are over all values, those of slots have a row for each of them.
    """

    starts: Rows
    ends: Rows
    faults: NDArray[np.int64]
    values: NDArray[np.int64]
    lengths: NDArray[np.int64]
    there: NDArray[np.uint8]

    @classmethod
    def of(cls, slots: int, starts: Rows, ends: Rows) -> Walked:
        """Nothing yet, with so many slots."""
        shape = (slots, len(starts))
        return cls(
            starts,
            ends,
            np.empty((len(starts), 3), np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.uint8),
        )


class WrittenSo(Protocol):
    """Reads values that were written by one schema."""

    def walked(self, data: Data, starts: Rows, ends: Rows) -> Walked:
        """The walk over values that lie one at `data[starts[i]:ends[i]]`."""
        ...

    def vectors(self, walked: Walked, data: Data) -> list[Vector] | None:
        """The columns of values that were walked over, where they are read at once; those with a fault have nothing."""
        ...

    def fault(self, walked: Walked, i: int, size: int) -> NoRow:
        """What is wrong with a value of so many bytes, in which the walk has found a fault."""
        ...

    def value(self, data: bytes) -> object:
        """The object of a value without a fault; NoRow where there is none."""
        ...


W = TypeVar("W", bound=WrittenSo)
Some = TypeVar("Some", bound=WrittenSo, covariant=True)


class Schemas(Protocol[Some]):
    """Knows by which schema each value was written."""

    def written(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> Sequence[tuple[Some, int] | NoRow]:
        """Of each value its schema, and how many bytes are in front of it."""
        ...


class OneSchema:
    """Every value is written by the schema of the spec."""

    def __init__(self, written: WrittenSo):
        self._written = written

    def written(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> list[tuple[WrittenSo, int] | NoRow]:
        return [(self._written, 0)] * len(values)


class Batch(Generic[W]):
    """Values that were walked over, each by its schema."""

    def __init__(self, schemas: Schemas[W], values: pa.BinaryArray, headers: pa.ListArray | None):
        said = schemas.written(values, headers)
        self.groups: dict[W, list[int]] = {}
        """The numbers of the values of each schema."""
        for i, of in enumerate(said):
            if not isinstance(of, NoRow):
                self.groups.setdefault(of[0], []).append(i)
        self.data, starts, ends = _laid_out(values)
        # Not in place: each value begins where the one before it ends, and the two are views of one array.
        starts = starts + np.array([0 if isinstance(of, NoRow) else of[1] for of in said], np.int64)
        self.faults: dict[int, NoRow] = {i: of for i, of in enumerate(said) if isinstance(of, NoRow)}
        self.walked: dict[W, Walked] = {}
        for written, members in self.groups.items():
            at = np.array(members, np.int64)
            walked = self.walked[written] = written.walked(self.data, starts[at], ends[at])
            for k in np.flatnonzero(walked.faults[:, 0]).tolist():
                self.faults[members[k]] = written.fault(walked, k, int(ends[at[k]] - starts[at[k]]))
        self._said, self._starts, self._ends = said, starts, ends

    def __len__(self) -> int:
        return len(self._said)

    def written(self, i: int) -> W:
        """The schema of a value without a fault."""
        of = self._said[i]
        assert not isinstance(of, NoRow), "it has no fault"
        return of[0]

    def value(self, i: int) -> object:
        """The object of a value; NoRow where there is none."""
        if i in self.faults:
            return self.faults[i]
        return self.written(i).value(self.data[self._starts[i] : self._ends[i]].tobytes())


class WalkedDecoder:
    """Reads values whose schemas `schemas` knows; `objects` takes the fields of columns from their objects."""

    def __init__(self, columns: tuple[Column, ...], schemas: Schemas[WrittenSo], objects: ObjectColumns):
        self.columns, self._schemas, self._objects = columns, schemas, objects

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        batch = Batch(self._schemas, values, headers)
        parts = [written.vectors(walked, batch.data) for written, walked in batch.walked.items()]
        at_once = [part for part in parts if part is not None]
        if not batch.groups or len(at_once) < len(parts):
            return self._objects.decoded([batch.value(i) for i in range(len(batch))])
        vectors, parents = _joined(at_once, [np.array(members, np.int64) for members in batch.groups.values()])
        return self._objects.joined(len(batch), vectors, parents, set(batch.faults), batch.value)


def _joined(parts: list[list[Vector]], members: list[Rows]) -> tuple[list[Vector], Rows]:
    """The columns of all groups, in the order of their values, and the number of each row's value."""
    if len(parts) == 1:
        return parts[0], members[0]
    numbers = np.concatenate(members)
    order = np.argsort(numbers)
    place, before = np.argsort(order), np.cumsum([0, *map(len, members)])
    columns: list[Vector] = []
    for of in zip(*parts, strict=True):
        array = pa.concat_arrays([each.array for each in of]).take(pa.array(order))
        declined, cut = (
            np.sort(place[np.concatenate([rows + k for rows, k in zip(each, before, strict=False)]).astype(np.int64)])
            for each in ([v.declined for v in of], [v.cut for v in of])
        )
        columns.append(Vector(array, declined, cut))
    return columns, numbers[order]


def _laid_out(values: pa.BinaryArray) -> tuple[Data, Rows, Rows]:
    """(the bytes of all values, where each begins, where each ends)."""
    _, offsets, data = values.buffers()
    if offsets is None or data is None:
        return np.zeros(0, np.uint8), np.zeros(len(values), np.int64), np.zeros(len(values), np.int64)
    at = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8), at[:-1], at[1:]
