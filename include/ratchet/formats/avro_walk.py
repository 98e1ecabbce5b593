"""Compiled walk over the binary form of Avro: whether a datum is one of its schema to the last byte, and where what is.

fastavro takes a negative number of a branch for one from the end, any byte for true, and as many levels as the stack
has until the process is killed by them; so nothing is given to it that has not been walked over.
The program of a schema is a table with a row for each of its nodes, the root first, and a list of their children.
Importing it loads or compiles machine code.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ratchet.formats.compiled_texts import DATA, is_text
from ratchet.values.compiled import compiled

types: Any = numba.types

NULL, BOOLEAN, NUMBER, FIXED, BYTES, STRING, UNION, RECORD, ARRAY, MAP = range(10)
"""What a node is: NUMBER is int, long or enum; FIXED is all that has a size, as a double."""
OP, CHILDREN, COUNT, LOW, HIGH, SLOT = range(6)
"""Columns of the program.

CHILDREN is where a node's children begin, COUNT how many there are, or the bytes of a FIXED. A NUMBER, and the number
of a branch, is from LOW to HIGH. SLOT is where the place of its value is kept, or -1.
"""
DEEPEST = 500
"""So many records, arrays and maps may be within each other."""
_FREE_ITEMS = 65_536
"""Items that take no bytes, as nulls of an array, may be so many more than the datum has bytes."""

FAULTS = {
    1: "it ends too early",
    2: "a number that {} does not have",
    3: "a length below 0",
    4: "a boolean that is neither 0 nor 1",
    5: f"more than {DEEPEST} records, arrays and maps within each other",
    6: "bytes behind its end",
    7: "more items than it has bytes",
    8: "a number of more than 64 bits",
    9: "a block of another size than it says",
    10: "a text that is no UTF-8",
}

_I64, _TABLE, _U8 = types.int64[::1], types.Array(types.int64, 2, "C"), types.Array(types.uint8, 2, "C")


@compiled(types.UniTuple(types.int64, 2)(DATA, types.int64, types.int64), inline="always")
def _number(data: Any, at: int, end: int) -> Any:
    """(a number, where it ends); of a broken one minus its fault in place of the end."""
    found, shift = np.uint64(0), np.uint64(0)
    while at < end:
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return 0, -8
        found |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(found >> np.uint64(1)) ^ -np.int64(found & np.uint64(1)), at
        shift += np.uint64(7)
    return 0, -1


@compiled(types.void(DATA, _I64, _I64, _TABLE, _I64, _TABLE, _TABLE, _TABLE, _U8))
def walk(
    data: Any, starts: Any, ends: Any, program: Any, children: Any, faults: Any, values: Any, lengths: Any, there: Any
) -> None:
    """Walk over each datum `data[starts[i]:ends[i]]`.

    `faults[i]` becomes (0, 0, 0), or a fault, its node and its byte, counted from the start. For a node with a slot,
    `there[slot, i]` becomes 1 and `values[slot, i]` its number; of one that is none where its bytes begin, and
    `lengths[slot, i]` how many there are.
    """
    nodes, left, block_ends = (
        np.empty(DEEPEST, np.int64),
        np.empty(DEEPEST, np.int64),
        np.empty(DEEPEST, np.int64),
    )
    for i in range(len(starts)):
        at, end, node, depth, fault, items = starts[i], ends[i], np.int64(0), 0, 0, np.int64(0)
        while True:
            # Step 1: the value of `node`.
            begin, op = at, program[node, OP]
            while op == UNION:
                branch, at = _number(data, at, end)
                if at < 0:
                    fault = -at
                    break
                if branch < 0 or branch >= program[node, COUNT]:
                    fault = 2
                    break
                node = children[program[node, CHILDREN] + branch]
                begin, op = at, program[node, OP]
            if fault:
                break
            number, length = np.int64(0), np.int64(0)
            if op == NUMBER:
                number, at = _number(data, at, end)
                if at < 0:
                    fault = -at
                    break
                if number < program[node, LOW] or number > program[node, HIGH]:
                    fault = 2
                    break
            elif op == BOOLEAN:
                if at >= end:
                    fault = 1
                    break
                number = np.int64(data[at])
                at += 1
                if number > 1:
                    fault = 4
                    break
            elif op == BYTES or op == STRING or op == FIXED:
                length = program[node, COUNT]
                if op != FIXED:
                    length, at = _number(data, at, end)
                    if at < 0:
                        fault = -at
                        break
                    if length < 0:
                        fault = 3
                        break
                if length > end - at:
                    fault = 1
                    break
                if op == STRING and not is_text(data, at, at + length):
                    fault = 10
                    break
                number, at = at, at + length
            elif op != NULL:
                if depth == DEEPEST:
                    fault = 5
                    break
                nodes[depth], left[depth], block_ends[depth] = node, 0, -1
                depth += 1
            slot = program[node, SLOT]
            if slot >= 0:
                values[slot, i], lengths[slot, i], there[slot, i] = number, length, 1
            # Step 2: which node is next, of the innermost record, array or map that has one.
            node = np.int64(-1)
            while depth > 0:
                inner, top = nodes[depth - 1], depth - 1
                begin = at
                if program[inner, OP] == RECORD:
                    if left[top] < program[inner, COUNT]:
                        node = children[program[inner, CHILDREN] + left[top]]
                        left[top] += 1
                        break
                    depth -= 1
                    continue
                if left[top] == 0:
                    if block_ends[top] >= 0 and block_ends[top] != at:
                        node, fault = inner, 9
                        break
                    block_ends[top] = -1
                    count, at = _number(data, at, end)
                    if at >= 0 and count < 0:
                        size, at = _number(data, at, end)
                        if at >= 0 and (size < 0 or size > end - at):
                            node, fault = inner, 1
                            break
                        block_ends[top] = at + size
                        # The least number of all is its own negative.
                        count = -count if count > -(2**62) else np.int64(2**62)
                    if at < 0:
                        node, fault = inner, -at
                        break
                    if count == 0:
                        depth -= 1
                        continue
                    if count > end - starts[i] + _FREE_ITEMS - items:
                        node, fault = inner, 7
                        break
                    items += count
                    left[top] = count
                left[top] -= 1
                if program[inner, OP] == MAP:
                    length, at = _number(data, at, end)
                    if at < 0 or length < 0 or length > end - at:
                        node, fault = inner, -at if at < 0 else (3 if length < 0 else 1)
                        break
                    if not is_text(data, at, at + length):
                        node, fault = inner, 10
                        break
                    at += length
                node = children[program[inner, CHILDREN]]
                break
            if fault or node < 0:
                break
        if not fault and at != end:
            fault, node, begin = 6, np.int64(0), at
        faults[i, 0], faults[i, 1], faults[i, 2] = fault, node, begin - starts[i]
        if not fault:
            faults[i, 1], faults[i, 2] = 0, 0
