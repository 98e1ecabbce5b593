"""Texts within the bytes of values, compiled: whether they are UTF-8, and many of them one behind the other.

Importing it loads or compiles machine code.
"""

from __future__ import annotations

from typing import Any

import numba

from ratchet.values.compiled import compiled

types: Any = numba.types

DATA = types.Array(types.uint8, 1, "C", readonly=True)
"""The bytes of all values of a batch."""


@compiled(types.boolean(DATA, types.int64, types.int64), inline="always")
def is_text(data: Any, at: int, end: int) -> bool:
    """Whether these bytes are UTF-8, without halves of surrogate pairs, and each character in its shortest form."""
    while at < end:
        first = data[at]
        at += 1
        if first < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        if more > end - at:
            return False
        for _ in range(more):
            if data[at] < low or data[at] > high:
                return False
            low, high = 0x80, 0xBF
            at += 1
    return True


@compiled(types.void(DATA, types.int64[::1], types.int64[::1], types.int32[::1], types.uint8[::1]))
def gather(data: Any, starts: Any, lengths: Any, offsets: Any, into: Any) -> None:
    """Put each `data[starts[i]:starts[i] + lengths[i]]` behind the one before, as Arrow has texts; it ends at
    `offsets[i + 1]`.
    """
    to = 0
    for i in range(len(starts)):
        for j in range(lengths[i]):
            into[to + j] = data[starts[i] + j]
        to += lengths[i]
        offsets[i + 1] = to
