"""How long Kafka keeps records, and so how soon those that are unread may be gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ratchet.ledger.work import OffsetRange
from ratchet.source.columnar import ColumnarSource
from ratchet.source.offsets import TopicOffsets
from ratchet.source.port import Origin


@dataclass(frozen=True)
class Retention:
    """What Kafka keeps of each partition: records for a `time`, and so many bytes; None where there is no limit."""

    time: timedelta | None
    size: int | None

    @classmethod
    def said(cls, millis: str | None, size: str | None) -> Retention:
        """Of the topic's settings, in which -1 is no limit."""
        time = timedelta(milliseconds=int(millis)) if millis and int(millis) >= 0 else None
        return cls(time, int(size) if size and int(size) >= 0 else None)


def oldest(kafka: Mapping[str, str], offsets: TopicOffsets, starts: Mapping[int, int]) -> dict[int, datetime]:
    """{partition: the time of its first committed record from `starts` on}, of those that have any.

    Kafka deletes whole segments by their newest records, so a record stays for its retention at least. Raises what the
    columnar source does.
    """
    found: dict[int, datetime] = {}
    for partition, at in starts.items():
        until = offsets.stable.get(partition, at)
        first = max(at, offsets.beginning.get(partition, at))
        if first >= until:
            continue
        source = ColumnarSource(kafka, {offsets.topic: Origin(0, offsets.topic_id)})
        with source.read([OffsetRange(offsets.topic, partition, first, until)]) as reading:
            batch = next((batch for batch in reading if batch.num_rows), None)
        if batch is not None:
            found[partition] = batch.column("_timestamp")[0].as_py()
    return found
