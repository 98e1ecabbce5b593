"""What the topics of a line hold at one moment, and what is known of their logs when that is asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from ratchet.ledger.topics import Topics, number_of
from ratchet.ledger.work import OffsetRange, utc
from ratchet.source.interval import Ahead
from ratchet.source.lineage import Lineage

T = TypeVar("T")
HANGS_AFTER = timedelta(minutes=15)
"""How long a producer may write nothing before its open transaction is taken to hang: as long as brokers let it be open
by default, `transaction.max.timeout.ms`."""


@dataclass(frozen=True)
class Undecided:
    """A Kafka transaction in one partition that is neither committed nor aborted: from which offset, and whose."""

    offset: int
    producer_id: int
    epoch: int
    wrote_at: datetime
    """When its producer last wrote there."""

    @property
    def hangs(self) -> bool:
        """Whether its producer has been silent for so long that it will hardly decide it."""
        return datetime.now(UTC) - self.wrote_at > HANGS_AFTER


@dataclass(frozen=True)
class KnownLogs:
    """What is known when Kafka is asked: the line's topics by number and, where they are wanted, their leader epochs.

    Where some `may_lack`, the known topics are asked for besides those that a spec names, and may be gone.
    """

    topics: Topics = field(default_factory=Topics)
    lineages: Mapping[int, Lineage] | None = None
    may_lack: bool = False


@dataclass(frozen=True)
class TopicOffsets:
    """What the topics of a line hold now, per partition of the line.

    `beginning` is the first offset that is still there; `stable` is the last stable offset: every record
    below it belongs to a Kafka transaction that is decided. `wanted` is where a data interval ends, if one was
    given, and `ahead` what is stamped too late to be true before that. The id of each of `topics` tells it from a later
    one with the same name; one that was not asked for, or is not there, has none.

    `since` is where records of a time begin, if one was given: each one before it is older, and where none is of that
    time or later it is the end.

    `kept_tombstones` is how long compaction leaves a tombstone; None where the topics are not compacted.

    `end` is the high watermark, and `undecided` what keeps a last stable offset below it.

    Where it was asked for, `lineages` are the leader epochs of each partition's log. Where that is another log than the
    known one, `kept` says up to which offset it is the same.
    """

    topics: Topics
    beginning: dict[int, int]
    stable: dict[int, int]
    wanted: dict[int, int] | None = None
    end: Mapping[int, int] = field(default_factory=dict[int, int])
    lineages: Mapping[int, Lineage] = field(default_factory=dict[int, Lineage])
    kept: Mapping[int, int] = field(default_factory=dict[int, int])
    undecided: Mapping[int, Undecided] = field(default_factory=dict[int, Undecided])
    ahead: Mapping[int, Ahead] = field(default_factory=dict[int, Ahead])
    since: Mapping[int, int] | None = None
    kept_tombstones: timedelta | None = None

    @property
    def title(self) -> str:
        """How people read the topics."""
        return self.topics.title

    def range(self, partition: int, from_offset: int, until_offset: int) -> OffsetRange:
        """A range of a partition of the line."""
        return OffsetRange(self.topics.name(partition), partition, from_offset, until_offset)

    def of(self, numbers: Collection[int]) -> TopicOffsets:
        """Those of the topics with these numbers alone; the others are as if they had not been asked for."""

        def only(held: Mapping[int, T]) -> dict[int, T]:
            return {p: what for p, what in held.items() if number_of(p) in numbers}

        topics = tuple(
            each if number in numbers else replace(each, topic_id="") for number, each in enumerate(self.topics)
        )
        return TopicOffsets(
            Topics(topics),
            only(self.beginning),
            only(self.stable),
            None if self.wanted is None else only(self.wanted),
            only(self.end),
            only(self.lineages),
            only(self.kept),
            only(self.undecided),
            only(self.ahead),
            None if self.since is None else only(self.since),
            self.kept_tombstones,
        )

    def same(self, partition: int, until: int) -> int:
        """Up to which offset, at most `until`, a partition's log is there, and the one that was known."""
        end = self.end.get(partition, self.stable.get(partition, 0))
        return min(until, end, self.kept.get(partition, until))

    def stamped_ahead(self) -> str | None:
        """Which records have times that are too late to be true, and how these are treated."""
        said = [
            f"{found.records:,} records of {self.topics.said(partition)} from offset {found.offset} on are {found}"
            if found.records > 1
            else f"the record at offset {found.offset} of {self.topics.said(partition)} is {found}"
            for partition, found in sorted(self.ahead.items())
        ]
        if not said:
            return None
        treated = "more than max_future from now, so each is taken with its neighbours as if of their time"
        return f"{'; '.join(said)}: {treated}"

    def held_back(self, *, only_hanging: bool = False) -> str | None:
        """Which records wait behind Kafka transactions that are not decided, since when, and for which producer."""
        said: list[str] = []
        for partition, held in sorted(self.undecided.items()):
            if only_hanging and not held.hangs:
                continue
            where = self.topics.said(partition)
            said.append(
                f"{self.end[partition] - held.offset:,} offsets of {where} from {held.offset} on wait "
                f"for a Kafka transaction of producer {held.producer_id} (epoch {held.epoch}), which wrote last at "
                f"{utc(held.wrote_at)}"
            )
            if held.hangs:
                topic, at = self.topics.place(partition)
                ends = f"abort --topic {topic} --partition {at} --start-offset {held.offset}"
                said[-1] += (
                    f" and may hang: if its producer is gone, `kafka-transactions.sh --bootstrap-server … {ends}` ends "
                    "it, and its records are not taken"
                )
        return "; ".join(said) or None
