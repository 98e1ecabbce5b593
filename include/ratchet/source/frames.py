"""Record batches as they lie in a fetched piece of a log: where each begins, its header, and its checksum."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c
import numpy as np
import numpy.typing as npt

from ratchet.errors import BrokenBatch
from ratchet.source.codec import Octets

_HEADER = np.dtype(
    [
        ("base", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("format", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
_length_at = struct.Struct(">i").unpack_from
HEADER = _HEADER.itemsize
"""Bytes before a batch's records."""
_BEFORE_LENGTH = 12
"""Bytes that a batch's length does not count."""
_CHECKED_FROM = 21
"""The checksum covers a batch from its attributes on; not its base offset, its length, its leader epoch."""
FORMAT = 2

CODEC, APPENDED, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
"""Bits of a batch's attributes."""


@dataclass(frozen=True)
class Place:
    """A partition, for messages."""

    topic: str
    partition: int

    def broken(self, offset: int, why: str) -> BrokenBatch:
        """The error that names where it is."""
        return BrokenBatch(f"{self.topic}-{self.partition}: the record batch at offset {offset} is broken: {why}")


@dataclass(frozen=True)
class Frames:
    """Complete batches, in order; arrays have one element a batch.

    `ends` are the offsets after each batch's last one, counting those that compaction or a marker took.
    """

    place: Place
    records: bytes
    starts: npt.NDArray[np.int64]
    headers: npt.NDArray[np.void]
    bases: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    attributes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def position(self) -> int:
        """The offset at which to go on reading."""
        return int(self.ends[-1])

    @property
    def leader_epoch(self) -> int:
        """Of the leader that wrote the last batch; -1 where it did not say."""
        return int(self.headers["leader_epoch"][-1])

    @property
    def octets(self) -> Octets:
        """The fetched bytes, read-only."""
        return np.frombuffer(self.records, np.uint8)

    @property
    def payloads(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where each batch's records start and end within `records`."""
        return self.starts + HEADER, self.starts + _BEFORE_LENGTH + self.headers["length"]

    def upto(self, until: int) -> Frames:
        """Without the batches that begin at `until` or later."""
        wanted = int(np.searchsorted(self.bases, until))
        if wanted == len(self):
            return self
        cut = slice(0, wanted)
        return Frames(
            self.place,
            self.records,
            self.starts[cut],
            self.headers[cut],
            self.bases[cut],
            self.ends[cut],
            self.attributes[cut],
        )

    def check(self) -> None:
        """Raise BrokenBatch where a checksum is not that of the bytes."""
        view = memoryview(self.records)
        whole = self.payloads[1].tolist()
        checked = (self.starts + _CHECKED_FROM).tolist()
        for batch, (start, end, crc) in enumerate(zip(checked, whole, self.headers["crc"].tolist(), strict=True)):
            if crc32c.crc32c(view[start:end]) != crc:
                raise self.place.broken(int(self.bases[batch]), "its checksum does not match")


def frames_of(place: Place, records: bytes, position: int) -> Frames:
    """The complete batches in what was fetched from `position`; a batch that is cut off at the end is left out.

    What no checksum covers is held against the order of the log: a batch that begins before the previous one ended, or
    ends before `position`, has a broken base offset. Raises BrokenBatch.
    """
    starts: list[int] = []
    heads: list[bytes] = []
    at, size = 0, len(records)
    while size - at >= HEADER:
        (length,) = _length_at(records, at + 8)
        if records[at + 16] != FORMAT:
            raise place.broken(position if not starts else _base(records, at), _of_format(records[at + 16]))
        if length < HEADER - _BEFORE_LENGTH:
            raise place.broken(_base(records, at), f"its length is {length}")
        if length > size - at - _BEFORE_LENGTH:
            break
        starts.append(at)
        heads.append(records[at : at + HEADER])
        at += _BEFORE_LENGTH + length
    if size and not starts:
        # Brokers cut the end of what they send, but never its first batch.
        raise place.broken(position, "it is longer than what the broker sent")
    headers = np.frombuffer(b"".join(heads), _HEADER)
    bases = headers["base"].astype(np.int64)
    deltas = headers["last_delta"].astype(np.int64)
    # A base near the end of the range of numbers is broken too, and must not wrap around.
    ends = np.where((bases < 0) | (bases > 2**62), np.int64(-1), bases + deltas + 1)
    before = np.concatenate((np.array([np.iinfo(np.int64).min]), ends[:-1]))
    wrong = (deltas < 0) | (headers["count"] < 0) | (bases < before) | (ends <= position)
    if wrong.any():
        batch = int(np.argmax(wrong))
        raise place.broken(
            int(bases[batch]), f"its offsets do not follow those before it, or lie before offset {position}"
        )
    return Frames(
        place, records, np.array(starts, np.int64), headers, bases, ends, headers["attributes"].astype(np.int64)
    )


def _base(records: bytes, at: int) -> int:
    return int.from_bytes(records[at : at + 8], "big", signed=True)


def _of_format(found: int) -> str:
    if found in (0, 1):
        return (
            f'it has message format {found}, which brokers before Kafka 0.11 wrote; Topic(…, reader="spark") reads it'
        )
    return f"message format {found} is not known"
