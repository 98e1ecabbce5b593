"""Columns of Avro at once: fields that a walk has found become Arrow arrays, as fastavro and `objects` have them."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ratchet.formats import object_columns
from ratchet.formats.avro_program import RANGES, Leaf, Walked
from ratchet.formats.avro_schema import decimal_of
from ratchet.formats.avro_walk import gather
from ratchet.formats.vectors import Rows, Vector
from ratchet.spec.types import Binary, Boolean, Date, Floating, Integer, String, Timestamp, Type
from ratchet.values.arrow import arrow_type

_NONE: Rows = np.empty(0, np.int64)
_MOMENTS = {
    "timestamp-millis": (1000, "UTC"),
    "timestamp-micros": (1, "UTC"),
    "local-timestamp-millis": (1000, None),
    "local-timestamp-micros": (1, None),
}


def vector(kind: Type, leaf: Leaf, walked: Walked, data: NDArray[np.uint8]) -> Vector:
    """The column of a field."""
    there = walked.there[leaf.slot].astype(bool) & (walked.faults[:, 0] == 0)
    logical = leaf.logical if (leaf.kind, leaf.logical) in RANGES or leaf.logical == "decimal" else None
    if logical == "decimal" and leaf.kind in ("bytes", "fixed"):
        return object_columns.vector(kind, _decimals(leaf, walked, there, data))
    found = _array(leaf, logical, walked, there, data)
    match kind:
        case Integer() if leaf.kind in ("int", "long") and logical is None:
            return _integers(kind, found)
        case String() if leaf.kind in ("string", "enum"):
            zeros = pc.match_substring(found, "\x00").fill_null(False).to_numpy(zero_copy_only=False)
            return Vector(found, np.flatnonzero(zeros), _NONE)
        case Timestamp() if logical in _MOMENTS:
            return Vector(found.cast(arrow_type(kind)), _NONE, _NONE)
        case Floating(64) if leaf.kind in ("float", "double"):
            return Vector(found.cast(pa.float64()), _NONE, _NONE)
        case Floating(32) | Boolean() | Binary() | Date() if found.type == arrow_type(kind):
            return Vector(found, _NONE, _NONE)
        case _:
            return object_columns.vector(kind, found.to_pylist())


def _integers(kind: Integer, found: pa.Array) -> Vector:
    narrow = found.cast(arrow_type(kind), safe=False)
    bent = pc.not_equal(narrow.cast(pa.int64()), found).fill_null(False).to_numpy(zero_copy_only=False)
    return Vector(narrow, np.flatnonzero(bent), _NONE)


def _array(
    leaf: Leaf, logical: str | None, walked: Walked, there: NDArray[np.bool_], data: NDArray[np.uint8]
) -> pa.Array:
    """What was sent, as Arrow has such types."""
    numbers, missing = walked.values[leaf.slot], ~there
    match leaf.kind, logical:
        case "boolean", _:
            return pa.array(numbers.astype(bool), mask=missing)
        case "enum", _:
            assert isinstance(leaf.node, dict), "it has symbols"
            return pa.array(leaf.node["symbols"], pa.string()).take(pa.array(numbers, mask=missing))
        case "int", "date":
            return pa.array(numbers.astype(np.int32), mask=missing).cast(pa.date32())
        case (("int" | "long"), "time-millis" | "time-micros"):
            micros = numbers * (1000 if logical == "time-millis" else 1)
            return pa.array(micros, mask=missing).cast(pa.time64("us"))
        case (("int" | "long"), None):
            return pa.array(numbers, mask=missing)
        case "long", moment:
            assert moment is not None, "others have no range"
            unit, zone = _MOMENTS[moment]
            return pa.array(numbers * unit, mask=missing).cast(pa.timestamp("us", zone))
        case (("float" | "double"), _):
            size = 4 if leaf.kind == "float" else 8
            whole = data[np.where(there, numbers, 0)[:, None] + np.arange(size)] if there.any() else None
            kind = np.dtype("<f4" if size == 4 else "<f8")
            floats = np.zeros(len(there), kind) if whole is None else np.ascontiguousarray(whole).view(kind)[:, 0]
            return pa.array(floats, mask=missing)
        case _:
            texts = _gathered(numbers, np.where(there, walked.lengths[leaf.slot], 0), missing, data)
            return texts.view(pa.string()) if leaf.kind == "string" else texts


def _gathered(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], missing: NDArray[np.bool_], data: NDArray[np.uint8]
) -> pa.Array:
    offsets, into = np.zeros(len(starts) + 1, np.int32), np.empty(int(lengths.sum()), np.uint8)
    gather(data, starts, lengths, offsets, into)
    validity = pa.array(~missing).buffers()[1] if missing.any() else None
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [validity, pa.py_buffer(offsets), pa.py_buffer(into)], int(missing.sum())
    )


def _decimals(leaf: Leaf, walked: Walked, there: NDArray[np.bool_], data: NDArray[np.uint8]) -> list[Any]:
    assert isinstance(leaf.node, dict), "it has a scale"
    starts, lengths = walked.values[leaf.slot].tolist(), walked.lengths[leaf.slot].tolist()
    scale, all_of_it = leaf.node.get("scale", 0), data.tobytes()
    return [
        decimal_of(all_of_it[start : start + length], scale) if is_there else None
        for start, length, is_there in zip(starts, lengths, there.tolist(), strict=True)
    ]
