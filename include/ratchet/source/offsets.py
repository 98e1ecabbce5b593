"""What a topic holds at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ratchet.ledger.work import utc
from ratchet.source.interval import Ahead
from ratchet.source.lineage import Lineage

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
class TopicOffsets:
    """What a topic holds now, per partition.

    `beginning` is the first offset that is still there; `stable` is the last stable offset: every record
    below it belongs to a Kafka transaction that is decided. `wanted` is where a data interval ends, if one was
    given, and `ahead` what is stamped too late to be true before that. `topic_id` tells a topic from a later one with
    the same name.

    `since` is where records of a time begin, if one was given: each one before it is older, and where none is of that
    time or later it is the end.

    `end` is the high watermark, and `undecided` what keeps a last stable offset below it.

    Where it was asked for, `lineages` are the leader epochs of each partition's log. Where that is another log than the
    known one, `kept` says up to which offset it is the same.
    """

    topic: str
    topic_id: str
    beginning: dict[int, int]
    stable: dict[int, int]
    wanted: dict[int, int] | None = None
    end: Mapping[int, int] = field(default_factory=dict[int, int])
    lineages: Mapping[int, Lineage] = field(default_factory=dict[int, Lineage])
    kept: Mapping[int, int] = field(default_factory=dict[int, int])
    undecided: Mapping[int, Undecided] = field(default_factory=dict[int, Undecided])
    ahead: Mapping[int, Ahead] = field(default_factory=dict[int, Ahead])
    since: Mapping[int, int] | None = None

    def same(self, partition: int, until: int) -> int:
        """Up to which offset, at most `until`, a partition's log is there, and the one that was known."""
        end = self.end.get(partition, self.stable.get(partition, 0))
        return min(until, end, self.kept.get(partition, until))

    def stamped_ahead(self) -> str | None:
        """Which records have times that are too late to be true, and how these are treated."""
        said = [
            f"{found.records:,} records of {self.topic}-{partition} from offset {found.offset} on are {found}"
            if found.records > 1
            else f"the record at offset {found.offset} of {self.topic}-{partition} is {found}"
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
            said.append(
                f"{self.end[partition] - held.offset:,} offsets of {self.topic}-{partition} from {held.offset} on wait "
                f"for a Kafka transaction of producer {held.producer_id} (epoch {held.epoch}), which wrote last at "
                f"{utc(held.wrote_at)}"
            )
            if held.hangs:
                ends = f"abort --topic {self.topic} --partition {partition} --start-offset {held.offset}"
                said[-1] += (
                    f" and may hang: if its producer is gone, `kafka-transactions.sh --bootstrap-server … {ends}` ends "
                    "it, and its records are not taken"
                )
        return "; ".join(said) or None
