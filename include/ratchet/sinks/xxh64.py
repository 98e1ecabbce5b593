"""The batch form of the checksum: XXH64 links over Arrow buffers, compiled by numba.

A link extends the hashes of all rows in place by one column, as `ratchet.sinks.checksum.row_hash` does for one row.
Its first three arguments are the hashes so far, the column's validity bitmap (empty: no nulls) and the bit at which
the bitmap begins. XXH64 is specified in https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.

The import takes half a second, and seconds where the compiled code is not yet cached: import it where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, assert_never, cast

import numba
import numpy as np
from numba import types
from numba.extending import register_jitable
from numpy.typing import NDArray

from ratchet.sinks.buffers import Fixed, Form, Variable, Wide

F = TypeVar("F", bound=Callable[..., Any])
Hashes = NDArray[np.uint64]
Bitmap = NDArray[np.uint8]
Integers = NDArray[np.int32] | NDArray[np.int64]


def inlined(function: F) -> F:
    return register_jitable(function)


def compiled(*arguments: tuple[types.Type, ...]) -> Callable[[F], F]:
    """Compile a link for each of these arguments after the first three, or load it from numba's cache.

    The cache is next to this file, or else in the user's cache directory. Where neither can be written, each process
    compiles for itself; the environment variable NUMBA_CACHE_DIR names another directory.
    """
    hashes, bitmap = types.Array(types.uint64, 1, "C"), _array(types.uint8)
    signatures = [types.void(hashes, bitmap, types.int64, *each) for each in arguments]

    def decorate(function: F) -> F:
        try:
            return cast(F, numba.njit(signatures, nogil=True, cache=True)(function))
        except Exception:
            # No directory can be written, the disk is full, a file is damaged; another error comes again.
            return cast(F, numba.njit(signatures, nogil=True)(function))

    return decorate


def _array(kind: types.Type, layout: str = "C") -> types.Array:
    # Arrow's buffers are read-only, and not always aligned where they come from a file or another process.
    return types.Array(kind, 1, layout, readonly=True, aligned=False)


# In numba an operation on uint64 and int64 gives a float64, so every number here is a uint64.
U = np.uint64
_P1, _P2, _P3 = U(0x9E3779B185EBCA87), U(0xC2B2AE3D27D4EB4F), U(0x165667B19E3779F9)
_P4, _P5 = U(0x85EBCA77C2B2AE63), U(0x27D4EB2F165667C5)
_N0, _N1, _N4, _N7, _N8, _N16, _N24, _N32 = U(0), U(1), U(4), U(7), U(8), U(16), U(24), U(32)
_N9, _N63, _N64, _N128 = U(9), U(63), U(64), U(128)
_LOW32, _LOW8 = U(0xFFFFFFFF), U(0xFF)
_SWAP8, _SWAP16 = U(0x00FF00FF00FF00FF), U(0x0000FFFF0000FFFF)


@inlined
def _turn(word: U, bits: U) -> U:
    return (word << bits) | (word >> (_N64 - bits))


@inlined
def _round(lane: U, word: U) -> U:
    return _turn(lane + word * _P2, U(31)) * _P1


@inlined
def _merge(acc: U, lane: U) -> U:
    return (acc ^ _round(_N0, lane)) * _P1 + _P4


@inlined
def _eight(acc: U, word: U) -> U:
    return _turn(acc ^ _round(_N0, word), U(27)) * _P1 + _P4


@inlined
def _four(acc: U, word: U) -> U:
    return _turn(acc ^ (word * _P1), U(23)) * _P2 + _P3


@inlined
def _one(acc: U, byte: U) -> U:
    return _turn(acc ^ (byte * _P5), U(11)) * _P1


@inlined
def _end(acc: U) -> U:
    acc = (acc ^ (acc >> U(33))) * _P2
    acc = (acc ^ (acc >> U(29))) * _P3
    return acc ^ (acc >> _N32)


@inlined
def _of_four(seed: U, word: U) -> U:
    """XXH64 of four bytes."""
    return _end(_four(seed + _P5 + _N4, word))


@inlined
def _of_eight(seed: U, word: U) -> U:
    return _end(_eight(seed + _P5 + _N8, word))


@inlined
def _of_sixteen_at_most(seed: U, first: U, second: U, length: U) -> U:
    """XXH64 of `length` bytes, which are those of two words."""
    acc = seed + _P5 + length
    word = first
    if length >= _N8:
        acc = _eight(acc, first)
        word = second
        length -= _N8
    if length >= _N8:
        acc = _eight(acc, second)
        length -= _N8
    if length >= _N4:
        acc = _four(acc, word & _LOW32)
        word >>= _N32
        length -= _N4
    while length > _N0:
        acc = _one(acc, word & _LOW8)
        word >>= _N8
        length -= _N1
    return _end(acc)


@inlined
def _of_many(seed: U, data: NDArray[np.uint8], words: NDArray[U], halves: NDArray[np.uint32], at: U, end: U) -> U:
    """XXH64 of `data[at:end]`."""
    length = end - at
    if length >= _N32:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at + _N32 <= end:
            a, b = _round(a, words[at]), _round(b, words[at + _N8])
            c, d = _round(c, words[at + _N16]), _round(d, words[at + _N24])
            at += _N32
        acc = _turn(a, U(1)) + _turn(b, U(7)) + _turn(c, U(12)) + _turn(d, U(18))
        acc = _merge(_merge(_merge(_merge(acc, a), b), c), d)
    else:
        acc = seed + _P5
    acc += length
    while at + _N8 <= end:
        acc = _eight(acc, words[at])
        at += _N8
    if at + _N4 <= end:
        acc = _four(acc, U(halves[at]))
        at += _N4
    while at < end:
        acc = _one(acc, U(data[at]))
        at += _N1
    return _end(acc)


@inlined
def _null(validity: Bitmap, bit: int) -> U:
    """1 if the bit is not set, the int32 that begins a column."""
    if not validity.size:
        return _N0
    at = U(bit)
    return ((U(validity[at >> U(3)]) >> (at & _N7)) & _N1) ^ _N1


@inlined
def _swapped(word: U) -> U:
    """The bytes in the opposite order."""
    word = ((word >> _N8) & _SWAP8) | ((word & _SWAP8) << _N8)
    word = ((word >> _N16) & _SWAP16) | ((word & _SWAP16) << _N16)
    return _turn(word, _N32)


@compiled((_array(types.int32),), (_array(types.int64),))
def _link_fixed(hashes: Hashes, validity: Bitmap, bit: int, values: Integers) -> None:
    for row in range(hashes.size):
        null = _null(validity, bit + row)
        acc = _of_four(hashes[row], null)
        if values.itemsize == 4:
            value = _of_four(acc, U(np.uint32(values[row])))
        else:
            value = _of_eight(acc, U(values[row]))
        hashes[row] = acc if null else value


@compiled((_array(types.uint64),))
def _link_wide(hashes: Hashes, validity: Bitmap, bit: int, words: NDArray[U]) -> None:
    """Integers of two words each, the low one first, as their fewest bytes, big-endian."""
    for row in range(hashes.size):
        null = _null(validity, bit + row)
        acc = _of_four(hashes[row], null)
        if not null:
            low, high = words[2 * row], words[2 * row + 1]
            sign = _N0 - (high >> _N63)
            low_bits, high_bits = low ^ sign, high ^ sign
            length, rest = (_N9, high_bits) if high_bits else (_N1, low_bits)
            while rest >= _N128:
                rest >>= _N8
                length += _N1
            if length <= _N8:
                first, second = low << (_N64 - length * _N8), _N0
            elif length == _N16:
                first, second = high, low
            else:
                shift = _N128 - length * _N8
                first, second = (high << shift) | (low >> (_N64 - shift)), low << shift
            acc = _of_sixteen_at_most(acc, _swapped(first), _swapped(second), length)
        hashes[row] = acc


_DATA = (_array(types.uint8), _array(types.uint64, "A"), _array(types.uint32, "A"))


@compiled((_array(types.int32), *_DATA), (_array(types.int64), *_DATA))
def _link_variable(
    hashes: Hashes,
    validity: Bitmap,
    bit: int,
    offsets: Integers,
    data: NDArray[np.uint8],
    words: NDArray[U],
    halves: NDArray[np.uint32],
) -> None:
    """The bytes `data[offsets[row]:offsets[row + 1]]`; `words` and `halves` are what begins at each of them."""
    for row in range(hashes.size):
        null = _null(validity, bit + row)
        acc = _of_four(hashes[row], null)
        if not null:
            acc = _of_many(acc, data, words, halves, U(offsets[row]), U(offsets[row + 1]))
        hashes[row] = acc


def _begun(data: NDArray[np.uint8], kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """The word that begins at each byte, as a view; these overlap and are not aligned."""
    count = max(data.size - np.dtype(kind).itemsize + 1, 0)
    return np.ndarray(count, kind, data if count else None, strides=(1,))


def link(hashes: Hashes, validity: Bitmap, bit: int, form: Form) -> None:
    """Extend the hashes in place by one column. Raises ValueError for a form of another number of rows."""
    if len(form) != len(hashes):
        raise ValueError(f"{len(form)} values for {len(hashes)} rows")  # the compiled code checks no bounds
    match form:
        case Fixed(values):
            _link_fixed(hashes, validity, bit, values)
        case Wide(words):
            _link_wide(hashes, validity, bit, words)
        case Variable(offsets, data):
            words, halves = _begun(data, np.uint64), _begun(data, np.uint32)
            _link_variable(hashes, validity, bit, offsets, data, words, halves)
        case _:
            assert_never(form)
