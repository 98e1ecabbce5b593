"""Columns of fields that a walk has found, once they are Arrow arrays of what was sent: as `objects` has them."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ratchet.formats import object_columns
from ratchet.formats.compiled_texts import gather
from ratchet.formats.vectors import Rows, Vector
from ratchet.spec.types import Binary, Boolean, Date, Floating, Integer, String, Timestamp, Type
from ratchet.values.arrow import arrow_type

_NONE: Rows = np.empty(0, np.int64)


def column(kind: Type, found: pa.Array) -> Vector:
    """The column of what was sent; what is not of its type field by field."""
    match kind:
        case Integer() if found.type == pa.int64():
            return _integers(kind, found)
        case String() if found.type == pa.string():
            zeros = pc.match_substring(found, "\x00").fill_null(False).to_numpy(zero_copy_only=False)
            return Vector(found, np.flatnonzero(zeros), _NONE)
        case Timestamp() if pa.types.is_timestamp(found.type):
            return Vector(found.cast(arrow_type(kind)), _NONE, _NONE)
        case Floating(64) if pa.types.is_floating(found.type):
            return Vector(found.cast(pa.float64()), _NONE, _NONE)
        case Floating(32) | Boolean() | Binary() | Date() if found.type == arrow_type(kind):
            return Vector(found, _NONE, _NONE)
        case _:
            return object_columns.vector(kind, found.to_pylist())


def gathered(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], missing: NDArray[np.bool_], data: NDArray[np.uint8]
) -> pa.Array:
    """The bytes at `data[starts[i]:starts[i] + lengths[i]]`, null where they are missing."""
    offsets, into = np.zeros(len(starts) + 1, np.int32), np.empty(int(lengths.sum()), np.uint8)
    gather(data, starts, lengths, offsets, into)
    validity = pa.array(~missing).buffers()[1] if missing.any() else None
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [validity, pa.py_buffer(offsets), pa.py_buffer(into)], int(missing.sum())
    )


def _integers(kind: Integer, found: pa.Array) -> Vector:
    narrow = found.cast(arrow_type(kind), safe=False)
    bent = pc.not_equal(narrow.cast(pa.int64()), found).fill_null(False).to_numpy(zero_copy_only=False)
    return Vector(narrow, np.flatnonzero(bent), _NONE)
