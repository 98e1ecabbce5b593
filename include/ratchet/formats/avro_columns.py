"""Columns of Avro at once: fields that a walk has found become Arrow arrays, as fastavro and `objects` have them."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ratchet.formats import object_columns
from ratchet.formats.avro_program import RANGES, Leaf
from ratchet.formats.avro_schema import decimal_of
from ratchet.formats.vectors import Vector
from ratchet.formats.walked import Walked
from ratchet.formats.walked_columns import column, gathered
from ratchet.spec.types import Type

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
    return column(kind, _array(leaf, logical, walked, there, data))


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
            texts = gathered(numbers, np.where(there, walked.lengths[leaf.slot], 0), missing, data)
            return texts.view(pa.string()) if leaf.kind == "string" else texts


def _decimals(leaf: Leaf, walked: Walked, there: NDArray[np.bool_], data: NDArray[np.uint8]) -> list[Any]:
    assert isinstance(leaf.node, dict), "it has a scale"
    starts, lengths = walked.values[leaf.slot].tolist(), walked.lengths[leaf.slot].tolist()
    scale, all_of_it = leaf.node.get("scale", 0), data.tobytes()
    return [
        decimal_of(all_of_it[start : start + length], scale) if is_there else None
        for start, length, is_there in zip(starts, lengths, there.tolist(), strict=True)
    ]
