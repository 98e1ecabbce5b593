"""Compiled walk over the records of decompressed batches; importing it loads or compiles machine code.

The layout is that of a record of message format 2: varint length, attributes, varint deltas of timestamp and offset,
key, value and headers, each with a varint length.
"""

from __future__ import annotations

from typing import Any

import numba
import numba.extending
import numpy as np
from numba.core import cgutils as _cgutils  # pyright: ignore

from ratchet.values.compiled import compiled

CODEC, START, END, COUNT, BASE, LAST_DELTA, TIMESTAMP, APPENDED = range(8)
"""Columns of a table of batches: where its records are, how many, and what their deltas add to.

A batch with a CODEC lies in the scratch buffer, another one where it was fetched. With APPENDED, its TIMESTAMP is that
of every record.
"""

FAULTS = {
    1: "the length of a record does not fit",
    2: "the timestamp of a record cannot be read",
    3: "the offset of a record is not in order, or not in the batch",
    4: "the length of a key does not fit",
    5: "the length of a value does not fit",
    6: "the headers of a record do not fit",
    7: "a record does not end where its length says",
    8: "the batch does not end after its last record",
}

# numba has no types of its own; what it compiles is annotated for the reader, not for it.
types: Any = numba.types
cgutils: Any = _cgutils
intrinsic: Any = numba.extending.intrinsic

_MAX_MILLIS = (2**63 - 1) // 1000
_LATEST = 2**63 - 1
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_TABLE = types.Array(types.int64, 2, "C")
_U8, _I32, _I64 = types.uint8[::1], types.int32[::1], types.int64[::1]


@intrinsic
def _copy(typingctx: Any, into: Any, at: Any, source: Any, start: Any, length: Any) -> Any:
    """into[at:at+length] = source[start:start+length], as one memcpy."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = context.make_array(signature.args[0])(context, builder, arguments[0])
        of = context.make_array(signature.args[2])(context, builder, arguments[2])
        target = builder.gep(to.data, [arguments[1]])
        cgutils.raw_memcpy(builder, target, builder.gep(of.data, [arguments[3]]), arguments[4], 1)
        return context.get_dummy_value()

    return types.void(into, at, source, start, length), emit


@compiled(types.UniTuple(types.int64, 2)(_BYTES, types.int64, types.int64, types.int64))
def _varint(data: Any, at: Any, end: Any, most: Any) -> Any:
    """(zigzag value, next position) of at most `most` bytes; position -1 where there is none."""
    if at >= end:
        return np.int64(0), np.int64(-1)
    byte = np.uint64(data[at])
    at += 1
    found = byte & np.uint64(127)
    shift = np.uint64(7)
    read = 1
    while byte >= np.uint64(128):
        if at >= end or read >= most:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[at])
        at += 1
        read += 1
        found |= (byte & np.uint64(127)) << shift
        shift += np.uint64(7)
    value = np.int64(found >> np.uint64(1)) ^ -np.int64(found & np.uint64(1))
    if most == 5 and (value > 2147483647 or value < -2147483648):
        return np.int64(0), np.int64(-1)
    return value, at


@compiled(
    types.UniTuple(types.int64, 10)(
        _BYTES, _BYTES, _TABLE, types.int64, types.int64, _I64, _I64, _I32, _U8, _U8, _I32, _U8, _U8, _I32
    )
)
def walk(
    raw: Any,
    scratch: Any,
    batches: Any,
    lo: Any,
    hi: Any,
    offsets: Any,
    timestamps: Any,
    key_ends: Any,
    keys: Any,
    key_valid: Any,
    value_ends: Any,
    values: Any,
    value_valid: Any,
    header_ends: Any,
) -> Any:
    """Write the records with lo <= offset < hi as columns; timestamps are microseconds, as near as these can be.

    (rows, bytes of keys, bytes of values, null keys, null values, headers, bytes of their keys, bytes of their values,
    fault, batch of the fault). The arrays must have room for every record and byte of the batches.
    """
    row = key_at = value_at = null_keys = null_values = headers = header_keys = header_values = np.int64(0)
    key_ends[0] = value_ends[0] = header_ends[0] = 0
    for b in range(batches.shape[0]):
        data = scratch if batches[b, CODEC] else raw
        at, end = batches[b, START], batches[b, END]
        before = np.int64(-1)
        fault = np.int64(0)
        for _ in range(batches[b, COUNT]):
            length, at = _varint(data, at, end, 5)
            if at < 0 or length < 1 or length > end - at:
                fault = 1
                break
            stop = at + length
            at += 1
            delta, at = _varint(data, at, stop, 10)
            if at < 0:
                fault = 2
                break
            nth, at = _varint(data, at, stop, 5)
            if at < 0 or nth <= before or nth > batches[b, LAST_DELTA]:
                fault = 3
                break
            before = nth
            key_length, at = _varint(data, at, stop, 5)
            if at < 0 or key_length < -1 or key_length > stop - at:
                fault = 4
                break
            key = at
            at += max(key_length, 0)
            value_length, at = _varint(data, at, stop, 5)
            if at < 0 or value_length < -1 or value_length > stop - at:
                fault = 5
                break
            value = at
            at += max(value_length, 0)
            count, at = _varint(data, at, stop, 5)
            if at < 0 or count < 0 or count > stop - at:
                fault = 6
                break
            of_keys = of_values = np.int64(0)
            for _ in range(count):
                size, at = _varint(data, at, stop, 5)
                if at < 0 or size < 0 or size > stop - at:
                    fault = 6
                    break
                at += size
                of_keys += size
                size, at = _varint(data, at, stop, 5)
                if at < 0 or size < -1 or size > stop - at:
                    fault = 6
                    break
                at += max(size, 0)
                of_values += max(size, 0)
            if fault:
                break
            if at != stop:
                fault = 7
                break
            offset = batches[b, BASE] + nth
            if offset < lo or offset >= hi:
                continue
            # Where that overflows, it does so for Kafka's own consumers too.
            millis = batches[b, TIMESTAMP] if batches[b, APPENDED] else batches[b, TIMESTAMP] + delta
            offsets[row] = offset
            if millis > _MAX_MILLIS:
                timestamps[row] = _LATEST
            elif millis < -_MAX_MILLIS:
                timestamps[row] = -_LATEST
            else:
                timestamps[row] = millis * 1000
            if key_length > 0:
                _copy(keys, key_at, data, key, key_length)
                key_at += key_length
            if value_length > 0:
                _copy(values, value_at, data, value, value_length)
                value_at += value_length
            key_valid[row] = key_length >= 0
            value_valid[row] = value_length >= 0
            null_keys += key_length < 0
            null_values += value_length < 0
            headers += count
            header_keys += of_keys
            header_values += of_values
            row += 1
            key_ends[row] = key_at
            value_ends[row] = value_at
            header_ends[row] = headers
        if fault == 0 and at != end:
            fault = 8
        if fault:
            return row, key_at, value_at, null_keys, null_values, headers, header_keys, header_values, fault, b
    none = np.int64(-1)
    return row, key_at, value_at, null_keys, null_values, headers, header_keys, header_values, np.int64(0), none


@compiled(types.int64(_BYTES, _BYTES, _TABLE, types.int64, types.int64, _I32, _U8, _I32, _U8, _U8))
def headers_of(
    raw: Any,
    scratch: Any,
    batches: Any,
    lo: Any,
    hi: Any,
    key_ends: Any,
    keys: Any,
    value_ends: Any,
    values: Any,
    value_valid: Any,
) -> Any:
    """Write the headers of the records that `walk` took, one after the other; the number of null values."""
    header = key_at = value_at = nulls = np.int64(0)
    key_ends[0] = value_ends[0] = 0
    for b in range(batches.shape[0]):
        data = scratch if batches[b, CODEC] else raw
        at, end = batches[b, START], batches[b, END]
        for _ in range(batches[b, COUNT]):
            length, at = _varint(data, at, end, 5)
            stop = at + length
            at += 1
            _, at = _varint(data, at, stop, 10)
            nth, at = _varint(data, at, stop, 5)
            size, at = _varint(data, at, stop, 5)
            at += max(size, 0)
            size, at = _varint(data, at, stop, 5)
            at += max(size, 0)
            offset = batches[b, BASE] + nth
            if lo <= offset < hi:
                count, at = _varint(data, at, stop, 5)
                for _ in range(count):
                    size, at = _varint(data, at, stop, 5)
                    _copy(keys, key_at, data, at, size)
                    key_at += size
                    at += size
                    size, at = _varint(data, at, stop, 5)
                    value_valid[header] = size >= 0
                    nulls += size < 0
                    if size > 0:
                        _copy(values, value_at, data, at, size)
                        value_at += size
                        at += size
                    header += 1
                    key_ends[header] = key_at
                    value_ends[header] = value_at
            at = stop
    return nulls
