"""Where a data interval ends in each partition: at the first record of a later time, absurd times left out.

Kafka tells the first entry of a log whose timestamp is not before a time. That may be a record that was stamped in 2099
by mistake, one of an aborted transaction, or a marker, which has the time of its writing; until the interval reaches
its time, nothing behind it would be taken. So Kafka's answer is where the look at the records themselves begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ratchet.ledger.topics import Topics
from ratchet.ledger.work import OffsetRange

FIRST_LOOK = 1_000
"""Offsets of each partition that are looked at first: mostly the very first of them is it."""
_GROWTH = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class IntervalEnd:
    """Up to which time a run takes records, and where the first one that is later has to be looked for.

    A record of `at` or later ends the interval in its partition. One that is stamped later than `latest` does not: it
    is taken with its neighbours. What lies below `starts` is planned, and a plan takes at most `most` offsets, so that
    no more of them are looked at. `reader` is that of the spec's topic.
    """

    at: datetime
    latest: datetime
    starts: Mapping[int, int]
    most: int
    reader: Literal["columnar", "spark"] = "columnar"

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ValueError(f"{self.at} has no time zone")

    @property
    def since(self) -> int:
        """`at` as Kafka counts."""
        return millis(self.at)

    @property
    def last(self) -> int:
        """`latest`, likewise."""
        return (self.latest - _EPOCH) // _MILLISECOND


def millis(at: datetime) -> int:
    """A time as Kafka counts: whole milliseconds since 1970, of which it means other things by negative ones."""
    return max(0, -((_EPOCH - at) // _MILLISECOND))


class Stamps(NamedTuple):
    """Offsets of some records of a partition, ascending, and their times in milliseconds since 1970."""

    partition: int
    offsets: npt.NDArray[np.int64]
    millis: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ahead:
    """Records of a partition that are stamped too late to be true: the first one's offset and time, and how many."""

    offset: int
    millis: int
    records: int

    def __str__(self) -> str:
        # Years may have more digits than a datetime can hold.
        time = str(np.datetime64(self.millis, "ms")).replace("T", " ").partition(".")[0]
        return f"stamped {time} UTC" if self.records == 1 else f"stamped so, the first {time} UTC"


Read = Callable[[list[OffsetRange]], Iterator[Stamps]]
"""The committed records of ranges, each of another partition, in order within it."""


def interval_ends(
    topics: Topics, end: IntervalEnd, found: Mapping[int, int], stable: Mapping[int, int], read: Read
) -> tuple[dict[int, int], dict[int, Ahead]]:
    """({partition: the offset at which the interval ends}, what is stamped absurdly late below it).

    `found` is Kafka's answer for `end.since`, -1 where no entry is so late. Behind the first look at it, what is
    planned is passed over. The offset is that of the first committed record of the time from `at` to `latest`, the last
    stable offset where there is none; or, where that would be more than a plan takes, how far was looked.
    """
    position = {p: at for p, at in found.items() if 0 <= at < stable[p]}
    ends = {p: at for p, at in stable.items() if p not in position}
    ahead: dict[int, Ahead] = {}
    size, known = FIRST_LOOK, 0
    while position and known < end.most:
        ranges = [OffsetRange(topics.name(p), p, at, min(at + size, stable[p])) for p, at in sorted(position.items())]
        ends |= _ends_within(ranges, end, ahead, read)
        for r in ranges:
            start = end.starts.get(r.partition, 0)
            # Only what a plan could take: where an interval ends early, others are looked at further.
            known += max(0, ends.get(r.partition, r.until_offset) - max(r.from_offset, start))
            position[r.partition] = max(r.until_offset, start)
        ends |= {p: stable[p] for p, at in position.items() if p not in ends and at >= stable[p]}
        position = {p: at for p, at in position.items() if p not in ends}
        size = max(FIRST_LOOK, min(size * _GROWTH, (end.most - known) // max(1, len(position))))
    return ends | position, ahead


def _ends_within(ranges: list[OffsetRange], end: IntervalEnd, ahead: dict[int, Ahead], read: Read) -> dict[int, int]:
    """The ends that lie in these ranges; what is stamped absurdly late before them is added to `ahead`."""
    ends: dict[int, int] = {}
    stamps: Any = read(ranges)
    with closing(stamps):
        for partition, offsets, millis in stamps:
            if partition in ends:
                continue
            later = np.flatnonzero((millis >= end.since) & (millis <= end.last))
            if len(later):
                ends[partition] = int(offsets[later[0]])
            upto = later[0] if len(later) else len(offsets)
            absurd = np.flatnonzero((millis[:upto] > end.last) & (offsets[:upto] >= end.starts.get(partition, 0)))
            if len(absurd):
                first = ahead.get(partition, Ahead(int(offsets[absurd[0]]), int(millis[absurd[0]]), 0))
                ahead[partition] = Ahead(first.offset, first.millis, first.records + len(absurd))
            if len(ends) == len(ranges):
                break
    return ends


def stamps_of(batches: Iterable[Any]) -> Iterator[Stamps]:
    """Of Arrow batches of `port.SCHEMA`, each of one partition."""
    for batch in batches:
        micros = batch.column("_timestamp").view("int64").to_numpy()
        yield Stamps(batch.column("_partition")[0].as_py(), batch.column("_offset").to_numpy(), micros // 1000)
