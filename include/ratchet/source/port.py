"""The port: what every source of records fulfils, whichever way it reads Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from ratchet.ledger.work import OffsetRange

TIMESTAMP = pa.timestamp("us", "UTC")
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(HEADER)
SCHEMA = pa.schema(
    [
        pa.field("_source", pa.int16(), nullable=False),
        pa.field("_partition", pa.int32(), nullable=False),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("_timestamp", TIMESTAMP, nullable=False),
        pa.field("_key", pa.binary()),
        pa.field("_value", pa.binary()),
        pa.field("_headers", HEADERS),
    ]
)
"""A record as a row; `_partition` is the line's. `_headers` is null where a record has none; `_timestamp` is the
broker's where the topic says so.

Kafka's times are any 64-bit number of milliseconds; one that no number of microseconds holds is the nearest that does,
which is no whole number of milliseconds.

A header's key is text as Java decodes it: malformed UTF-8 becomes U+FFFD.
"""

Partition = tuple[str, int]
"""(topic, partition)."""


@dataclass(frozen=True)
class Origin:
    """What a topic's name stands for: the number in `_source`, and the topic id that its records must come from.

    Without a `topic_id`, it is the id that the name has when a reading begins. Of a topic that is `compacted` a range
    may end in offsets of which the log has nothing any more.
    """

    number: int = 0
    topic_id: str | None = None
    compacted: bool = False


class Reading(Protocol):
    """One pass over some ranges: an iterator of batches with SCHEMA, in offset order within a partition.

    It ends when every range is complete by position, which needs no record at the end of a range. `records`, `reached`
    and `leader_epochs` cover the batches that were handed out so far.
    """

    @property
    def records(self) -> int:
        """How many records were handed out."""
        ...

    @property
    def reached(self) -> Mapping[Partition, int]:
        """The position of each partition: every committed record of its ranges below it was handed out.

        Of several ranges of a partition an empty one leaves it where it is.
        """
        ...

    @property
    def leader_epochs(self) -> Mapping[Partition, int]:
        """The leader epoch of the last batch seen of each partition; absent where the source cannot know it."""
        ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def __next__(self) -> pa.RecordBatch: ...

    def close(self) -> None:
        """Let go of connections; harmless when it has ended by itself."""
        ...


class Source(Protocol):
    """Reads exactly the committed records of ranges of Kafka partitions."""

    def read(self, ranges: Sequence[OffsetRange]) -> Reading:
        """Begin to read. The ranges of one partition must not overlap (ValueError).

        The reading raises RecordsLost when Kafka has deleted records of a range, TopicChanged when the topic was made
        again, UnknownTopic, BrokenBatch, SettingsError when a connection is refused, BrokerUnreachable, and
        IncompleteRead when a range ends past the last stable offset and stays so.
        """
        ...
