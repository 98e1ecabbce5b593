"""What a topic holds at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ratchet.source.lineage import Lineage


@dataclass(frozen=True)
class TopicOffsets:
    """What a topic holds now, per partition.

    `beginning` is the first offset that is still there; `stable` is the last stable offset: every record
    below it belongs to a Kafka transaction that is decided. `wanted` ends each partition earlier, where a time was
    given: no record below it is of that time or later. `topic_id` tells a topic from a later one with
    the same name.

    Where it was asked for: `end` is the high watermark, which may be above the last stable offset; `lineages` are the
    leader epochs of each partition's log. Where that is another log than the known one, `kept` says up to which offset
    it is the same.
    """

    topic: str
    topic_id: str
    beginning: dict[int, int]
    stable: dict[int, int]
    wanted: dict[int, int] | None = None
    end: Mapping[int, int] = field(default_factory=dict[int, int])
    lineages: Mapping[int, Lineage] = field(default_factory=dict[int, Lineage])
    kept: Mapping[int, int] = field(default_factory=dict[int, int])

    def same(self, partition: int, until: int) -> int:
        """Up to which offset, at most `until`, a partition's log is there, and the one that was known."""
        end = self.end.get(partition, self.stable.get(partition, 0))
        return min(until, end, self.kept.get(partition, until))
