"""Compiled walk over Protobuf's wire format: whether a value is a message of its type to the last byte, and where what
is.

Libraries of Protobuf take a field in another wire type for an unknown one, and cut numbers to the size of their type;
so nothing is given to one that has not been walked over.
The program of a message type has a row for each field of each of its messages, and a row for each message.
Importing it loads or compiles machine code.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ratchet.formats.compiled_texts import DATA, is_text
from ratchet.values.compiled import compiled

types: Any = numba.types

NUMBER, ZIGZAG, FIXED8, FIXED4, BYTES, TEXT, MESSAGE, GROUP = range(8)
"""What a field is written as."""
_VARINT, _EIGHT, _SIZED, _START, _END, _FOUR = range(6)
"""Wire types."""
_WIRES = np.array([_VARINT, _VARINT, _EIGHT, _FOUR, _SIZED, _SIZED, _SIZED, _START], np.int64)
TAG, KIND, LOW, HIGH, PACKED, CHILD, SLOT, CLEARS, COUNT = range(9)
"""Columns of the program's fields.

TAG is the field's number. A NUMBER, or what a ZIGZAG stands for, is from LOW to HIGH. PACKED says that several may
stand in one piece. CHILD is the message that a MESSAGE or GROUP is, SLOT where the place of its value is kept, or -1.
CLEARS is where, in the list of slots to clear, those begin that this field of a oneof takes the place of, COUNT how
many.
"""
DEEPEST = 100
"""So many messages may be within each other, as in Protobuf's own libraries."""
_LONGEST_TAG = 5

FAULTS = {
    1: "it ends too early",
    2: "a tag that no field has",
    3: "{} in another wire type than its own",
    4: "a number of more than 64 bits",
    5: "a number that {} does not have",
    6: f"more than {DEEPEST} messages within each other",
    7: "the end of a group that has not begun",
    8: "a text that is no UTF-8 in {}",
}

_I64, _TABLE, _U8 = types.int64[::1], types.Array(types.int64, 2, "C"), types.Array(types.uint8, 2, "C")


@compiled(types.Tuple((types.uint64, types.int64))(DATA, types.int64, types.int64), inline="always")
def _varint(data: Any, at: int, end: int) -> Any:
    """(a number, where it ends); of a broken one minus its fault in place of the end."""
    found, shift = np.uint64(0), np.uint64(0)
    while at < end:
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.uint64(0), np.int64(-4)
        found |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return found, np.int64(at)
        shift += np.uint64(7)
    return np.uint64(0), np.int64(-1)


@compiled(types.UniTuple(types.int64, 2)(DATA, types.int64, types.int64, types.int64), inline="always")
def _scalar(data: Any, at: int, end: int, kind: int) -> Any:
    """(a number, or the bits of a fixed one, where it ends); of a broken one minus its fault in place of the end."""
    if kind == NUMBER or kind == ZIGZAG:
        raw, at = _varint(data, at, end)
        if kind == ZIGZAG and at >= 0:
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        return np.int64(raw), at
    size = 8 if kind == FIXED8 else 4
    if size > end - at:
        return np.int64(0), np.int64(-1)
    bits = np.uint64(0)
    for k in range(size):
        bits |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return np.int64(bits), np.int64(at + size)


@compiled(types.void(DATA, _I64, _I64, _TABLE, _TABLE, _I64, _TABLE, _TABLE, _TABLE, _U8))
def walk(
    data: Any,
    starts: Any,
    ends: Any,
    messages: Any,
    fields: Any,
    clears: Any,
    faults: Any,
    values: Any,
    lengths: Any,
    there: Any,
) -> None:
    """Walk over each value `data[starts[i]:ends[i]]`, which is a message of `messages[0]`.

    A row of `messages` says where its fields begin in `fields`, and how many there are; they ascend by number.
    `faults[i]` becomes (0, 0, 0), or a fault, the row of its field or -1, and its byte, counted from the start. For a
    field with a slot, `there[slot, i]` becomes 1 and `values[slot, i]` its last number, or its bits; of one with a size
    where its bytes begin, and `lengths[slot, i]` how many there are.
    """
    outer, ending, groups = np.empty(DEEPEST, np.int64), np.empty(DEEPEST, np.int64), np.empty(DEEPEST, np.int64)
    for i in range(len(starts)):
        at, end, message, group = starts[i], ends[i], np.int64(0), np.int64(0)
        depth, fault, row, begin, hint = 0, np.int64(0), np.int64(-1), starts[i], np.int64(0)
        while True:
            # Step 1: the end of a message, which for the outermost one is the end of the value.
            row, begin = np.int64(-1), at
            if at == end and group == 0:
                if depth == 0:
                    break
                depth -= 1
                message, end, group = outer[depth], ending[depth], groups[depth]
                continue
            # Step 2: the tag of a field.
            tag, at = _varint(data, at, end)
            if at < 0:
                fault = -at
                break
            number, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
            if tag > np.uint64(0xFFFFFFFF) or at - begin > _LONGEST_TAG or number == 0 or wire > _FOUR:
                fault = np.int64(2)
                break
            if wire == _END:
                if number != group:
                    fault = np.int64(7)
                    break
                depth -= 1
                message, end, group = outer[depth], ending[depth], groups[depth]
                continue
            # Step 3: the row of the field. Mostly it is the one behind the last, or the same again.
            if message >= 0:
                low, high = messages[message, 0], messages[message, 0] + messages[message, 1]
                if low <= hint < high and fields[hint, TAG] == number:
                    row = hint
                elif low < hint <= high and fields[hint - 1, TAG] == number:
                    row = hint - 1
                else:
                    while low < high:
                        middle = (low + high) >> 1
                        if fields[middle, TAG] < number:
                            low = middle + 1
                        else:
                            high = middle
                    if low < messages[message, 0] + messages[message, 1] and fields[low, TAG] == number:
                        row = low
            kind, is_packed = np.int64(-1), False
            if row >= 0:
                hint, kind = row + 1, fields[row, KIND]
                if wire != _WIRES[kind]:
                    is_packed = wire == _SIZED and fields[row, PACKED] == 1
                    if not is_packed:
                        fault = np.int64(3)
                        break
            # Step 4: its value.
            found, length = np.int64(0), np.int64(0)
            if wire == _SIZED:
                size, at = _varint(data, at, end)
                if at < 0:
                    fault = -at
                    break
                if size > np.uint64(end - at):
                    fault = np.int64(1)
                    break
                found, length = at, np.int64(size)
                if is_packed:
                    stop = at + length
                    while at < stop:
                        found, at = _scalar(data, at, stop, kind)
                        if at < 0:
                            fault = -at
                            break
                        if kind <= ZIGZAG and (found < fields[row, LOW] or found > fields[row, HIGH]):
                            fault = np.int64(5)
                            break
                    if fault:
                        break
                elif kind == MESSAGE:
                    pass
                else:
                    at += length
                    if kind == TEXT and not is_text(data, found, at):
                        fault = np.int64(8)
                        break
            elif wire != _START:
                if row >= 0:
                    found, at = _scalar(data, at, end, kind)
                else:
                    found, at = _scalar(
                        data, at, end, FIXED8 if wire == _EIGHT else FIXED4 if wire == _FOUR else NUMBER
                    )
                if at < 0:
                    fault = -at
                    break
                if kind >= 0 and kind <= ZIGZAG and (found < fields[row, LOW] or found > fields[row, HIGH]):
                    fault = np.int64(5)
                    break
            if row >= 0:
                for k in range(fields[row, CLEARS], fields[row, CLEARS] + fields[row, COUNT]):
                    there[clears[k], i] = 0
                slot = fields[row, SLOT]
                if slot >= 0:
                    values[slot, i], lengths[slot, i], there[slot, i] = found, length, 1
            # Step 5: a message within it.
            if kind == MESSAGE or wire == _START:
                if depth == DEEPEST:
                    fault = np.int64(6)
                    break
                outer[depth], ending[depth], groups[depth] = message, end, group
                depth += 1
                message = fields[row, CHILD] if row >= 0 else np.int64(-1)
                group = number if wire == _START else np.int64(0)
                if wire == _SIZED:
                    end = at + length
        faults[i, 0], faults[i, 1], faults[i, 2] = fault, row, begin - starts[i]
        if not fault:
            faults[i, 1], faults[i, 2] = 0, 0
