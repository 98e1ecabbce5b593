"""Record batches written and read byte by byte, slowly and plainly, to hold the compiled decoder against."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import cramjam
import crc32c
import lz4.frame
import pyarrow as pa
import zstandard

HEADER = struct.Struct(">qiibIhiqqqhii")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
APPENDED, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20


@dataclass(frozen=True)
class Record:
    """`at` is its place in the batch, `millis` its delta to the batch's first timestamp."""

    at: int
    value: bytes | None = b""
    key: bytes | None = None
    millis: int = 0
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class Batch:
    base: int
    records: Sequence[Record]
    codec: int = NONE
    last: int | None = None
    """The delta of its last offset, where that is not the last record's."""
    attributes: int = 0
    timestamp: int = 1_700_000_000_000
    latest: int = 1_700_000_100_000
    producer: int = -1
    leader_epoch: int = 3
    framed: bool = field(default=False)
    """Snappy as Java frames it."""

    @property
    def end(self) -> int:
        last = self.last if self.last is not None else max((r.at for r in self.records), default=0)
        return self.base + last + 1

    def bytes(self) -> bytes:
        payload = compressed(b"".join(map(written, self.records)), self.codec, self.framed)
        return sealed(self, payload, len(self.records))

    def rows(self) -> list[tuple]:
        """(offset, timestamp, key, value, headers) of every record, as a source gives them."""
        return [
            (
                self.base + r.at,
                EPOCH
                + timedelta(milliseconds=self.latest if self.attributes & APPENDED else self.timestamp + r.millis),
                r.key,
                r.value,
                [{"key": k.decode(), "value": v} for k, v in r.headers] or None,
            )
            for r in self.records
        ]


def marker(base: int, producer: int, commit: bool) -> Batch:
    """The control batch that ends a transaction."""
    key = struct.pack(">hh", 0, 1 if commit else 0)
    record = Record(0, struct.pack(">hi", 0, 0), key)
    return Batch(base, [record], attributes=CONTROL | TRANSACTIONAL, producer=producer)


def sealed(batch: Batch, payload: bytes, count: int) -> bytes:
    """The batch with this payload and a checksum that is right."""
    last = batch.end - batch.base - 1
    tail = struct.pack(
        ">hiqqqhii",
        batch.attributes | batch.codec,
        last,
        batch.timestamp,
        batch.latest,
        batch.producer,
        0 if batch.producer >= 0 else -1,
        0 if batch.producer >= 0 else -1,
        count,
    )
    body = tail + payload
    return struct.pack(">qiibI", batch.base, 9 + len(body), batch.leader_epoch, 2, crc32c.crc32c(body)) + body


def written(record: Record) -> bytes:
    body = b"\x00" + varint(record.millis) + varint(record.at) + lengthy(record.key) + lengthy(record.value)
    body += varint(len(record.headers))
    for key, value in record.headers:
        body += lengthy(key) + lengthy(value)
    return varint(len(body)) + body


def varint(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def lengthy(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def compressed(data: bytes, codec: int, framed: bool) -> bytes:
    if codec == GZIP:
        return gzip.compress(data)
    if codec == LZ4:
        return lz4.frame.compress(data)
    if codec == ZSTD:
        # As producers write it: a stream that does not state its size.
        return zstandard.ZstdCompressor(write_content_size=False).compress(data)
    if codec == SNAPPY and framed:
        blocks = [data[at : at + 500] for at in range(0, len(data), 500)]
        packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
        return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(p)) + p for p in packed)
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    return data


class Malformed(Exception):
    """The plain reader cannot read it."""


def read(payload: bytes, count: int, last: int) -> list[Record]:
    """The records of an uncompressed payload; Malformed where anything is not as the format says."""
    reader = _Reader(payload)
    records: list[Record] = []
    before = -1
    for _ in range(count):
        length = reader.varint(5)
        if length < 1 or reader.at + length > len(payload):
            raise Malformed("length")
        inner = _Reader(payload[reader.at : reader.at + length])
        reader.at += length
        inner.take(1)
        millis, at = inner.varint(10), inner.varint(5)
        if not before < at <= last:
            raise Malformed("offset")
        before = at
        key, value = inner.lengthy(), inner.lengthy()
        headers = []
        number = inner.varint(5)
        if number < 0:
            raise Malformed("headers")
        for _ in range(number):
            name = inner.lengthy()
            if name is None:
                raise Malformed("header without a key")
            headers.append((name, inner.lengthy()))
        if inner.at != length:
            raise Malformed("end")
        records.append(Record(at, value, key, millis, tuple(headers)))
    if reader.at != len(payload):
        raise Malformed("rest")
    return records


class _Reader:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, length: int) -> bytes:
        if self.at + length > len(self.data):
            raise Malformed("short")
        self.at += length
        return self.data[self.at - length : self.at]

    def varint(self, most: int) -> int:
        found = 0
        for nth in range(most):
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << (7 * nth)
            if byte < 0x80:
                value = ((found & (2**64 - 1)) >> 1) ^ -(found & 1)
                if most == 5 and not -(2**31) <= value < 2**31:
                    raise Malformed("number")
                return value
        raise Malformed("number")

    def lengthy(self) -> bytes | None:
        length = self.varint(5)
        if length < -1:
            raise Malformed("length")
        return None if length < 0 else self.take(length)


def rows(batches: Sequence[pa.RecordBatch]) -> list[tuple]:
    """(offset, timestamp, key, value, headers) of what a source gave, in its order."""
    found = []
    for batch in batches:
        batch.validate(full=True)
        names = ("_offset", "_timestamp", "_key", "_value", "_headers")
        found += zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    return found
