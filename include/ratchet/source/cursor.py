"""How far one partition was asked for, and how much to ask for next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.errors import RecordsLost
from ratchet.ledger.work import OffsetRange
from ratchet.source.frames import Frames, Place
from ratchet.source.port import Partition

_LEAST_FETCH = 64 * 2**10
_GUESSED_RECORD = 256
"""Bytes of a record, before any was seen: a small range must not make the broker send megabytes."""


@dataclass
class Cursor:
    """How far one partition was asked for; `ranges` are those still to complete, in order."""

    place: Place
    ranges: deque[OffsetRange]
    position: int
    size: int
    leader: int | None = None
    asked: bool = False
    stalled: float | None = None
    """Since when it does not move."""

    @property
    def partition(self) -> Partition:
        return self.place.topic, self.place.partition

    def move(self, frames: Frames, most: int) -> OffsetRange:
        """Go on behind these batches; the range that they belong to."""
        range_ = self.ranges[0]
        covered = frames.position - max(self.position, int(frames.bases[0]))
        self.stalled = None
        self.position = frames.position
        if self.position >= range_.until_offset:
            self.ranges.popleft()
            if self.ranges:
                self.position = self.ranges[0].from_offset
        if self.ranges:
            # What is left of the range by the size of what was seen, and a little more for batches of other sizes.
            left = (self.ranges[0].until_offset - self.position) * len(frames.records) // max(1, covered)
            self.size = min(most, left + left // 8 + _LEAST_FETCH)
        return range_

    def is_empty(self, log_start: int, last_stable: int) -> bool:
        """Whether an answer without records says that a compacted log has nothing of the rest of the range.

        The broker looks at the last stable offset before it looks for records, so all that is below it was there.
        """
        return log_start <= self.position and self.ranges[0].until_offset <= last_stable

    def skip(self) -> int:
        """Go on behind the range; where it ends."""
        until = self.ranges.popleft().until_offset
        self.stalled = None
        self.position = self.ranges[0].from_offset if self.ranges else until
        return until

    def lost(self, start: int) -> RecordsLost:
        """The error that what lies between the position and the `start` of the log was deleted."""
        range_ = self.ranges[0]
        last = min(start, range_.until_offset) - 1
        return RecordsLost(
            f"{range_}: Kafka no longer has offsets {self.position} to {last}, its log begins at {start}; "
            "a person must decide what they were worth"
        )


def cursors_of(ranges: Sequence[OffsetRange], fetch_bytes: int) -> list[Cursor]:
    """One for each partition; those of empty ranges have nothing to do."""
    by_partition: dict[Partition, list[OffsetRange]] = {}
    for range_ in ranges:
        by_partition.setdefault(range_.place, []).append(range_)
    cursors: list[Cursor] = []
    for (topic, partition), of in by_partition.items():
        of.sort(key=lambda range_: range_.from_offset)
        for before, after in zip(of, of[1:], strict=False):
            if after.from_offset < before.until_offset:
                raise ValueError(f"ranges overlap: {before} and {after}")
        filled = deque(range_ for range_ in of if len(range_))
        first = filled[0] if filled else of[-1]
        guessed = min(fetch_bytes, max(_LEAST_FETCH, _GUESSED_RECORD * len(first)))
        cursors.append(Cursor(Place(topic, partition), filled, first.from_offset, guessed))
    return cursors
