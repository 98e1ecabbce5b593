"""The values that name a piece of work: ranges, runs, claims, tries and votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from ratchet.ledger.topics import Topics, of_kafka


@dataclass(frozen=True, order=True)
class OffsetRange:
    """`[from_offset, until_offset)` of a partition, half-open; `partition` is the line's, offsets are Kafka's."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.from_offset <= self.until_offset:
            raise ValueError(f"not a range: {self}")

    def __len__(self) -> int:
        return self.until_offset - self.from_offset

    @property
    def place(self) -> tuple[str, int]:
        """(topic, Kafka's partition)."""
        return self.topic, of_kafka(self.partition)

    @property
    def where(self) -> str:
        """The partition as Kafka names it, `flights-0`."""
        return f"{self.topic}-{of_kafka(self.partition)}"

    @property
    def told(self) -> OffsetRange:
        """The same with Kafka's partition, for people and other programs; it reads alike."""
        return replace(self, partition=of_kafka(self.partition))

    def __str__(self) -> str:
        return f"{self.where}[{self.from_offset},{self.until_offset})"


def divided(ranges: Sequence[OffsetRange], size: int) -> list[tuple[OffsetRange, ...]]:
    """The ranges in parts of `size` offsets each, but for the last."""
    parts: list[tuple[OffsetRange, ...]] = []
    current: list[OffsetRange] = []
    room = size
    for r in ranges:
        start = r.from_offset
        while start < r.until_offset:
            until = min(r.until_offset, start + room)
            current.append(OffsetRange(r.topic, r.partition, start, until))
            room -= until - start
            start = until
            if room == 0:
                parts.append(tuple(current))
                current, room = [], size
    return [*parts, tuple(current)] if current else parts


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number of things as people read it: `1 dead letter`, `2,000 dead letters`; `many` where an s does not do."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def name_of(txid: int, revision: int = 0) -> str:
    """How people read it: `transaction 5`, or `revision 2 of transaction 5`."""
    return f"revision {revision} of transaction {txid}" if revision else f"transaction {txid}"


def utc(moment: datetime | None) -> str:
    """How people read a moment: `2013-01-01 05:00:00 UTC`; `never` where there is none."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if moment else "never"


def turn_of(head: int) -> int:
    """The txid whose turn it is: only this one may move the head, by being committed or voided."""
    return head + 1


@dataclass(frozen=True)
class Run:
    """One DAG run at one clear: what Airflow repeats is one Run, what a person clears is a new one."""

    dag_id: str
    run_id: str
    clear_number: int = 0

    def __str__(self) -> str:
        return f"{self.run_id}#{self.clear_number}" if self.clear_number else self.run_id


@dataclass(frozen=True)
class Claim:
    """A run's right to work on a transaction; `number` grows with every claim of that transaction."""

    pipeline: str
    txid: int
    epoch: int
    number: int
    revision: int = 0

    def __str__(self) -> str:
        return name_of(self.txid, self.revision)


@dataclass(frozen=True)
class SliceToken:
    """One try at one slice of one epoch; only the highest try can write or vote.

    `nonce` is the random number of the try: where a restored ledger gives the same numbers again, for other ranges, it
    tells the old try from the new one.
    """

    pipeline: str
    txid: int
    epoch: int
    slice: int
    try_number: int
    revision: int = 0
    nonce: int = 0

    @property
    def numbers(self) -> tuple[int, int, int, int, int, int]:
        """(txid, revision, epoch, slice, try, nonce), as they are handed to a submitted driver."""
        return self.txid, self.revision, self.epoch, self.slice, self.try_number, self.nonce

    @property
    def dotted(self) -> str:
        """The numbers as an application is named by them, `5.0.1.0.2`."""
        return ".".join(map(str, self.numbers[:-1]))

    def __str__(self) -> str:
        return f"{name_of(self.txid, self.revision)}, slice {self.slice}"


@dataclass(frozen=True)
class Tag:
    """One attempt of a Spark task."""

    partition: int
    attempt: int


@dataclass(frozen=True)
class SinkVote:
    """What one slice has written for one sink: the writers that count, their rows and their checksum."""

    writers: tuple[int, ...]
    rows: int
    checksum: int


@dataclass(frozen=True)
class Absent:
    """A declared field that no message had, the column that is null for it, and the names that are most like it."""

    column: str
    field: str
    nearest: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"column {self.column} is null everywhere, as no message has a field {self.field}"
        return f"{said}; there is {' and '.join(self.nearest)} (camelCase?)" if self.nearest else said


@dataclass(frozen=True)
class Vote:
    """A slice's durable word that its results are written.

    `ranges` are those that the job has worked on. `reached` maps a partition to the position reached (the offset after
    the last one covered); `sinks` maps a sink's name to its part; `dead_letters` counts the rows written for them.
    `absent` are the declared fields that no good message of the slice had, None where it had no good message; `cut`
    counts the moments that lost digits beyond microseconds. `kept_tombstones` is how long Kafka keeps those of a
    compacted topic, as it said after the slice was read.
    """

    records: int
    ranges: tuple[OffsetRange, ...]
    sinks: dict[str, SinkVote]
    dead_letters: int
    reached: dict[int, int]
    code_hash: str
    application_id: str
    seconds: dict[str, float]
    absent: tuple[Absent, ...] | None = None
    cut: int = 0
    kept_tombstones: timedelta | None = None


Relation = tuple[str, str]
"""(schema, name) of a table that rows are written into."""


@dataclass(frozen=True)
class SliceWork:
    """All that a job needs to know of its slice.

    `relations` maps a sink to the table that its rows are written into, `source` is the number that they carry.
    `topics` are those of that source.
    `lineages` are the leader epochs of the logs that were planned: {partition: ((leader epoch, first offset), ...)}.
    `releases` is None where Kafka has the records; those of a release are dead letters whose errors contain that text.
    """

    token: SliceToken
    ranges: tuple[OffsetRange, ...]
    relations: dict[str, Relation]
    txn_time: datetime
    topics: Topics
    source: int
    lineages: Mapping[int, tuple[tuple[int, int], ...]]
    releases: str | None = None
