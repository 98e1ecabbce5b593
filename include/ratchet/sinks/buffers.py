"""The buffers of an Arrow array as numpy arrays, of exactly the array's rows, in one of three forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Fixed:
    """Little-endian integers of 4 or 8 bytes, one a row."""

    values: NDArray[np.int32] | NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Wide:
    """Integers of 16 bytes, of two words a row, the low one first."""

    words: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.words) // 2


@dataclass(frozen=True)
class Variable:
    """Row n has the bytes `data[offsets[n]:offsets[n + 1]]`."""

    offsets: NDArray[np.int32] | NDArray[np.int64]
    data: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.offsets) - 1


Form = Fixed | Wide | Variable
Reader = Callable[["pa.Array[Any]"], Form]


def validity(array: pa.Array[Any]) -> tuple[NDArray[np.uint8], int]:
    """The bitmap, empty if no row is null, and the bit of the first row."""
    bitmap = array.buffers()[0] if array.null_count else None
    return _whole(bitmap, np.uint8), array.offset


def int16s(array: pa.Array[Any]) -> Fixed:
    return Fixed(_rows(array, np.int16).astype(np.int32))


def int32s(array: pa.Array[Any]) -> Fixed:
    return Fixed(_rows(array, np.int32))


def int64s(array: pa.Array[Any]) -> Fixed:
    return Fixed(_rows(array, np.int64))


def booleans(array: pa.Array[Any]) -> Fixed:
    """0 and 1."""
    first, skipped = divmod(array.offset, 8)
    bits = np.unpackbits(_whole(array.buffers()[1], np.uint8)[first:], count=skipped + len(array), bitorder="little")
    return Fixed(bits[skipped:].astype(np.int32))


def floats(array: pa.Array[Any]) -> Fixed:
    """Bits of 32-bit floats, with one zero and one NaN."""
    return Fixed(_one_of_each(_rows(array, np.float32)).view(np.int32))


def doubles(array: pa.Array[Any]) -> Fixed:
    """Bits of 64-bit floats, with one zero and one NaN."""
    return Fixed(_one_of_each(_rows(array, np.float64)).view(np.int64))


def short_decimals(array: pa.Array[Any]) -> Fixed:
    """Unscaled values of a decimal128 that fit in 8 bytes. Raises OverflowError for one that does not."""
    words = _rows(array, np.int64, 2)
    low, high = words[::2], words[1::2]
    if array.type.precision > 18:
        over = high != low >> 63
        if over.any() and over[np.asarray(array.is_valid())].any():
            raise OverflowError(f"a value of type {array.type} has more than 64 bits")
    return Fixed(np.ascontiguousarray(low))


def long_decimals(array: pa.Array[Any]) -> Wide:
    """Unscaled values of a decimal128."""
    return Wide(_rows(array, np.uint64, 2))


def variable(array: pa.Array[Any]) -> Variable:
    """Strings and binaries, large or not."""
    _, offsets, data = array.buffers()
    kind = np.int64 if str(array.type).startswith("large_") else np.int32
    return Variable(_whole(offsets, kind)[array.offset : array.offset + len(array) + 1], _whole(data, np.uint8))


def _one_of_each(values: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):  # a signaling NaN, or what lies under a null
        values = values + 0.0
        values[np.isnan(values)] = np.nan
    return values


def _rows(array: pa.Array[Any], kind: type[np.generic], width: int = 1) -> NDArray[Any]:
    """The values of an array of fixed width, `width` elements a row."""
    values = _whole(array.buffers()[1], kind)
    return values[array.offset * width : (array.offset + len(array)) * width]


def _whole(buffer: pa.Buffer | None, kind: type[np.generic]) -> NDArray[Any]:
    if buffer is None or not buffer.size:
        return np.empty(0, kind)
    return np.frombuffer(memoryview(buffer), kind, buffer.size // np.dtype(kind).itemsize)


def packed(array: pa.Array[Any], pack: Callable[[Any], bytes]) -> Variable:
    """What `pack` makes of each row, one after the other in Python: for types that have no simpler form."""
    cells = [b"" if cell is None else pack(cell) for cell in array.to_pylist()]
    offsets = np.cumsum([0, *map(len, cells)], dtype=np.int64)
    return Variable(offsets, np.frombuffer(b"".join(cells), np.uint8))
