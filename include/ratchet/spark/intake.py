"""The intake of a task: the records of its part of a slice, by the columnar source, or as Spark's source hands them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ratchet.errors import IncompleteRead, SettingsError
from ratchet.formats.envelope import Envelope, Opened
from ratchet.ledger.topics import PER_TOPIC, Topics
from ratchet.ledger.work import OffsetRange, divided
from ratchet.source.columnar import ColumnarSource
from ratchet.source.letters import Letters
from ratchet.source.port import Origin
from ratchet.source.properties import check_for_spark, unfit_for_columnar
from ratchet.spark.servers import Servers
from ratchet.spark.tally import Tally
from ratchet.spec.source import Topic

PART_OFFSETS = 250_000
"""A slice of fewer offsets, as one of the default size, is read by one task; a second one costs more than it saves."""
MOST_PARTS = 16
"""So many tasks at most share a slice; parallel slices use the rest of a cluster."""


@dataclass(frozen=True)
class Intake:
    """What tasks read of a slice and how they open it, carried to the workers by value; `topics` are those of the plan.

    With `parts` each task is given numbers of parts and reads those itself; without, its batches are records already.
    Those of a release are `letters`, and Kafka is not asked.
    """

    topic: Topic
    topics: Topics
    servers: Servers
    key_required: bool
    parts: tuple[tuple[OffsetRange, ...], ...] | None
    private: bool = False
    letters: Letters | None = None

    def __repr__(self) -> str:
        # The servers' settings hold passwords, and Spark may print a plan.
        return f"Intake({self.topic.title}, {self.parts})"

    def batches(self, given: Iterator[pa.RecordBatch], tally: Tally) -> Iterator[pa.RecordBatch]:
        """The records of a task, counted; raises what a source raises."""
        if self.parts is None:
            for batch in given:
                if batch.num_rows:
                    tally.read(batch)
                    tally.passed_by(batch)
                    yield batch
            return
        for numbers in given:
            for number in numbers.column(0).to_pylist():
                yield from self._part(self.parts[number], tally)
                tally.parts.add(number)

    def _part(self, ranges: Sequence[OffsetRange], tally: Tally) -> Iterator[pa.RecordBatch]:
        """The records of a part; IncompleteRead unless the source has come to the end of each range."""
        if self.letters is not None:
            for batch in self.letters.read(ranges):
                tally.read(batch)
                yield batch
            return
        compacted = self.topic.compacted
        origins = {name: Origin(0, topic_id, compacted) for name, topic_id in self.topics.ids.items()}
        reading = ColumnarSource(self.servers.kafka, origins).read(ranges)
        try:
            for batch in reading:
                tally.read(batch)
                yield batch
        finally:
            reading.close()
        for r in ranges:
            position = reading.reached.get(r.place, r.from_offset)
            if position < r.until_offset:
                raise IncompleteRead(f"the source stopped at offset {position} of {r}; the slice is tried again")

    def _names(self, partitions: pa.Int32Array) -> pa.StringArray:
        """The topic of each of these partitions of the line."""
        numbers = partitions.to_numpy() // PER_TOPIC
        return pa.array(self.topics.names, pa.string()).take(pa.array(numbers))

    def opened(self, given: Iterator[pa.RecordBatch], tally: Tally) -> Iterator[Opened]:
        """Rows and dead letters of a task's records, batch by batch, counted."""
        envelope = Envelope(
            self.topic,
            key_required=self.key_required,
            private=self.private,
            endpoints=self.servers.endpoints,
            topics_of=self._names,
        )
        for batch in self.batches(given, tally):
            opened = envelope.open(batch)
            tally.opened(opened)
            yield opened


def spark_instead(topic: Topic, kafka: Mapping[str, str]) -> str | None:
    """Why Spark's Kafka source reads a topic instead of the columnar one, in a line; None where the columnar one does.

    The spec and the properties of the connection decide, before anything is read: every try gives the same answer, and
    what goes wrong while the columnar source reads is an error. SettingsError where Spark's cannot read either.
    """
    why = "the spec names it" if topic.reader == "spark" else unfit_for_columnar(kafka)
    if why is not None:
        if topic.compacted:
            raise SettingsError(
                f"topic {topic.title} is compacted, and Spark's Kafka source, which this connection asks for, takes "
                f"what compaction removed for a loss: {why}; correct the connection"
            )
        check_for_spark(kafka)
    return why


def parts_of(ranges: Sequence[OffsetRange]) -> tuple[tuple[OffsetRange, ...], ...]:
    """The parts of a slice that tasks read, of nearly equal size."""
    total = sum(map(len, ranges))
    count = max(1, min(MOST_PARTS, round(total / PART_OFFSETS)))
    return tuple(divided(ranges, -(-total // count))) if total else ()
