"""A line of several topics, and what Kafka would say of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ratchet import Accumulate, Append, Json, Pipeline, Topic
from ratchet.errors import UnknownTopic
from ratchet.ledger.topics import Topics, number_of, of_kafka, of_line
from ratchet.source.described import numbered
from ratchet.source.interval import IntervalEnd
from ratchet.source.offsets import KnownLogs, TopicOffsets
from tests.ledger.staging import Log


def spec_of(**source) -> Pipeline:
    """A pipeline of these topics, to which the partition of a key does not matter."""
    return Pipeline(
        name="line",
        source=Topic(key="k string", value=Json("a bigint"), **source),
        transform="tests.ledger.staging:rows_of",
        sinks=[
            Append("rows", columns="a bigint"),
            Accumulate("totals", key="k string", sum="a bigint", min="a bigint", max="a bigint", count="n"),
        ],
        max_records=20,
        slice_records=10,
        max_in_flight=4,
    )


def log(topic_id: str, *stable: int, beginning: int = 0) -> Log:
    """A log of so many partitions, with the last stable offset of each."""
    ends = dict(enumerate(stable))
    return Log(topic_id=topic_id, beginning=dict.fromkeys(ends, beginning), stable=ends)


@dataclass
class Cluster:
    """The topics that are in Kafka; the tests change them, and `spec` is what is asked by."""

    spec: Pipeline
    logs: dict[str, Log] = field(default_factory=dict)

    def offsets(
        self, before: IntervalEnd | None = None, known: KnownLogs | None = None, since: datetime | None = None
    ) -> TopicOffsets:
        known = known or KnownLogs()
        source = self.spec.source
        asked = [*source.names] or sorted(name for name in self.logs if source.wants(name))
        besides = known.topics.names if known.may_lack else ()
        absent = [name for name in asked if name not in self.logs]
        if absent and not known.may_lack:
            raise UnknownTopic(f"there is no topic {absent[0]!r}")
        told = [name for name in dict.fromkeys((*asked, *besides)) if name in self.logs]
        topics = numbered(known.topics, {name: self.logs[name].topic_id for name in told})
        return TopicOffsets(
            topics,
            self._of(topics, told, "beginning"),
            self._of(topics, told, "stable"),
            end=self._of(topics, told, "stable"),
            kept=self._of(topics, told, "kept"),
        )

    def _of(self, topics: Topics, told: list[str], what: str) -> dict[int, int]:
        numbers = {name: topics.number(name) for name in told}
        return {of_line(numbers[name], p): at for name in told for p, at in getattr(self.logs[name], what).items()}


def by_topic(of: dict[int, int]) -> dict[tuple[int, int], int]:
    """{(topic's number, Kafka's partition): what it has}."""
    return {(number_of(p), of_kafka(p)): at for p, at in of.items()}
