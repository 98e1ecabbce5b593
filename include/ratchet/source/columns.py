"""Record batches to Arrow: checked, decompressed, walked by compiled code, in pieces of bounded size."""

# The stubs of pyarrow are typed in part only.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ratchet.source import records as compiled
from ratchet.source.aborted import Aborted, committed
from ratchet.source.codec import Octets, Scratch, Undecodable
from ratchet.source.frames import APPENDED, CODEC, Frames
from ratchet.source.port import HEADER, HEADERS, SCHEMA, TIMESTAMP

ROWS = 2**18
"""The most records of several batches that make one Arrow batch; one batch of Kafka's is never cut."""
SIZE = 8 * 2**20
"""Likewise their decompressed bytes: what fits into a processor's cache is decoded half as fast again."""
_SMALLEST = 7
"""Bytes of a record with nothing in it."""
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")

Line = tuple[int, ...]
"""Of a table of batches, with the columns that `records` names."""


class Decoder:
    """Makes Arrow batches with SCHEMA; keeps one buffer for what it decompresses."""

    def __init__(self) -> None:
        self._scratch = Scratch()

    def decode(
        self, frames: Frames, aborted: Aborted, lo: int, hi: int, source: int, partition: int
    ) -> Iterator[pa.RecordBatch]:
        """The committed records with lo <= offset < hi, which carry `source` and `partition`; nothing where there are
        none. Raises BrokenBatch.
        """
        frames = frames.upto(hi)
        frames.check()
        wanted = np.flatnonzero(committed(frames, aborted) & (frames.headers["count"] > 0) & (frames.ends > lo))
        headers, attributes = frames.headers[wanted], frames.attributes[wanted]
        appended = attributes & APPENDED > 0
        starts, ends = frames.payloads
        columns = (
            attributes & CODEC,
            starts[wanted],
            ends[wanted],
            headers["count"],
            frames.bases[wanted],
            headers["last_delta"],
            np.where(appended, headers["max_timestamp"], headers["base_timestamp"]),
            appended,
        )
        rows = size = 0
        table: list[Line] = []
        self._scratch.clear()
        for line in zip(*(column.tolist() for column in columns), strict=True):
            line = self._decompressed(frames, line)
            table.append(line)
            rows += line[compiled.COUNT]
            size += line[compiled.END] - line[compiled.START]
            if rows >= ROWS or size >= SIZE:
                yield from self._columns(frames, table, rows, size, lo, hi, source, partition)
                rows = size = 0
                table = []
                self._scratch.clear()
        if table:
            yield from self._columns(frames, table, rows, size, lo, hi, source, partition)

    def _decompressed(self, frames: Frames, line: Line) -> Line:
        """A batch's line in the table that the walk goes by, which has its codec first, where its records lie now."""
        codec, start, end, count, base, *more = line
        if codec:
            try:
                start, end = self._scratch.add(codec, memoryview(frames.records)[start:end])
            except Undecodable as why:
                raise frames.place.broken(base, str(why)) from why
        if count > (end - start) // _SMALLEST:
            raise frames.place.broken(base, f"{count} records are more than fit into {end - start} bytes")
        return codec, start, end, count, base, *more

    def _columns(
        self, frames: Frames, table: list[Line], rows: int, size: int, lo: int, hi: int, source: int, partition: int
    ) -> Iterator[pa.RecordBatch]:
        batches = np.array(table, np.int64)
        raw, scratch = frames.octets, self._scratch.content
        offsets, timestamps = np.empty(rows, np.int64), np.empty(rows, np.int64)
        key_ends, value_ends = np.empty(rows + 1, np.int32), np.empty(rows + 1, np.int32)
        header_ends = np.empty(rows + 1, np.int32)
        key_valid, value_valid = np.empty(rows, np.uint8), np.empty(rows, np.uint8)
        # As large as they can become: pages that are never written to take no memory.
        keys, values = np.empty(size, np.uint8), np.empty(size, np.uint8)
        columns = offsets, timestamps, key_ends, keys, key_valid, value_ends, values, value_valid, header_ends
        walked: tuple[int, ...] = compiled.walk(raw, scratch, batches, lo, hi, *columns)
        n, key_size, value_size, null_keys, null_values, headers, names_size, contents_size, fault, at = walked
        if fault:
            raise frames.place.broken(int(batches[at, compiled.BASE]), compiled.FAULTS[fault])
        if not n:
            return
        listed: pa.Array[Any] = pa.nulls(0 if headers else n, HEADERS)
        if headers:
            names, contents = np.empty(names_size, np.uint8), np.empty(contents_size, np.uint8)
            name_ends, content_ends = np.empty(headers + 1, np.int32), np.empty(headers + 1, np.int32)
            content_valid = np.empty(headers, np.uint8)
            filled = name_ends, names, content_ends, contents, content_valid
            nulls = int(compiled.headers_of(raw, scratch, batches, lo, hi, *filled))
            name = _text(_binary(headers, name_ends, names, names_size))
            content = _binary(headers, content_ends, contents, contents_size, content_valid, nulls)
            listed = _lists(n, header_ends, pa.StructArray.from_arrays([name, content], fields=list(HEADER)))
        yield pa.RecordBatch.from_arrays(
            [
                _numbers(pa.int16(), np.full(n, source, np.int16)),
                _numbers(pa.int32(), np.full(n, partition, np.int32)),
                _numbers(pa.int64(), offsets[:n]),
                _numbers(TIMESTAMP, timestamps[:n]),
                _binary(n, key_ends, keys, key_size, key_valid, null_keys),
                _binary(n, value_ends, values, value_size, value_valid, null_values),
                listed,
            ],
            schema=SCHEMA,
        )


def _numbers(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array[Any]:
    """A column over these values. Not by `pa.array`, which imports pandas: a quarter of a second."""
    return pa.Array.from_buffers(kind, len(values), [None, _buffer(values)])


def _binary(
    n: int,
    ends: npt.NDArray[np.int32],
    data: Octets,
    size: int,
    valid: Octets | None = None,
    nulls: int = 0,
) -> pa.Array[Any]:
    """A column of bytes over these buffers; without `valid` it has no nulls."""
    # A small part of a large buffer would hold all of it.
    part = data[:size] if 2 * size >= len(data) else data[:size].copy()
    buffers = [
        _bits(valid[:n]) if valid is not None and nulls else None,
        _buffer(ends[: n + 1]),
        _buffer(part),
    ]
    return pa.Array.from_buffers(pa.binary(), n, buffers, nulls)


def _lists(n: int, ends: npt.NDArray[np.int32], items: pa.Array[Any]) -> pa.Array[Any]:
    """A column of lists; an empty one is null."""
    filled = np.diff(ends[: n + 1]) > 0
    buffers: list[pa.Buffer | None] = [_bits(filled), _buffer(ends[: n + 1])]
    nulls = n - int(filled.sum())
    return pa.Array.from_buffers(HEADERS, n, buffers, nulls, children=[items])


def _buffer(array: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(cast(Any, array))


def _bits(valid: npt.NDArray[np.uint8] | npt.NDArray[np.bool_]) -> pa.Buffer:
    return _buffer(np.packbits(valid, bitorder="little"))


def _text(names: pa.Array[Any]) -> pa.Array[Any]:
    """Bytes as the text that Java makes of them."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([java_text(cast(bytes, name)) for name in names.to_pylist()], pa.string())


def java_text(data: bytes) -> str:
    """UTF-8 decoded as Java does: like Python with U+FFFD for what is malformed, but one for a whole surrogate."""
    return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")
