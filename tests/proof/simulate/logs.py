"""Kafka's logs in a schedule: the records of topics, which of these the spec names, and where the line begins.

A record's place is here its topic and Kafka's partition as one number, which is the same whatever numbers the line has
given to its topics: what a transform makes of a record depends on the place alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ratchet.ledger.work import SliceWork
from ratchet.source.described import numbered
from ratchet.source.offsets import KnownLogs, TopicOffsets
from ratchet.spec.source import Beginning, Topic
from tests.proof.reference import PER_TOPIC, Make

NAMES = ("t", "u", "v")
"""The topics that there may be."""
TOLD = (
    r"^line: topic \w of the line is none of the spec's topics, .+; nothing was planned; put it back",
    r"^line: the ledger's ranges are of topics? .+, the spec's topic is .+; nothing was planned; ",
    r"^line: the ledger's ranges are of topics? .+, not of ",
    r"^line: Kafka has every offset that is needed; there is no loss to accept$",
    r"^line: a run has planned meanwhile; nothing was accepted; look again$",
    r"^the ledger has nothing of pipeline line yet$",
)
"""What a step may be told where the spec does not name the topics that the line has."""
Names = Sequence[str]
"""The topics of a line, by their numbers in it."""


def place_of(topic: str, partition: int) -> int:
    """The place of Kafka's partition of a topic."""
    return NAMES.index(topic) * PER_TOPIC + partition


def place_in(line: Names, partition: int) -> int:
    """The place of a partition of the line."""
    return place_of(line[partition // PER_TOPIC], partition % PER_TOPIC)


def of_line(make: Make, line: Names) -> Make:
    """What a transform makes of the record at an offset of a partition of the line."""
    return lambda partition, offset: make(place_in(line, partition), offset)


@dataclass
class Logs:
    """What Kafka has, by place, and what the spec that is deployed says of it."""

    stable: dict[int, int]
    named: tuple[str, ...]
    """The topics that the spec names, or that its pattern matches."""
    empty: set[tuple[int, int]] = field(default_factory=set)
    """The (place, offset) that hold no record, but a marker or what was aborted."""
    rule: str = "earliest"
    """Where the specs say that the line begins."""
    since: dict[int, int] = field(default_factory=dict)
    """How far the logs reached when nobody could have begun them yet."""
    halves: dict[int, int] = field(default_factory=dict)
    """The offsets that the specs name, where they do."""

    @classmethod
    def of(cls, source: Topic, topics: Iterable[str], partitions: int) -> Logs:
        """Without records, and with the topics that the source names or matches."""
        here = [*topics]
        stable = {place_of(topic, partition): 0 for topic in here for partition in range(partitions)}
        return cls(stable, tuple(source.names) or tuple(filter(source.wants, here)))

    @property
    def topics(self) -> list[str]:
        """Those that Kafka has."""
        return sorted({NAMES[place // PER_TOPIC] for place in self.stable})

    def places(self, topic: str) -> list[int]:
        """Those of a topic."""
        return [place for place in self.stable if NAMES[place // PER_TOPIC] == topic]

    @property
    def wanted(self) -> dict[int, int]:
        """How far the logs reach that the spec means."""
        return {place: self.stable[place] for topic in self.named for place in self.places(topic)}

    def come(self, place: int, number: int, *, empty: bool = False) -> None:
        """So many offsets come to a log, of records or of none."""
        first = self.stable[place]
        self.stable[place] += number
        self.empty |= {(place, offset) for offset in range(first, first + number)} if empty else set()

    def name(self, topic: str) -> None:
        """Put a topic to the spec, before the others: its place in the list is not its number in the line."""
        self.named = (topic, *self.named)
        self.since = {place: self.stable[place] for place in self.places(topic)} | self.since

    def unname(self, topic: str) -> None:
        """Take a topic from the spec."""
        self.named = tuple(name for name in self.named if name != topic)

    def begins(self, by: str) -> None:
        """From here on the line may begin, by this rule."""
        self.rule, self.since = by, dict(self.stable)
        self.halves = {place: at // 2 for place, at in self.stable.items()} if by == "offsets" else {}

    def has_begun(self, source: Topic, starts: dict[int, int], joined: Collection[str]) -> bool:
        """Whether a line that starts at these places has begun as its specs say, and other topics have `joined` it so.

        All partitions of its topics have a start; a topic that nobody has taken records from may have come too late.
        """
        of = {place: NAMES[place // PER_TOPIC] for place in starts}
        needed = {place for topic in of.values() for place in self.places(topic)}
        needed |= {place for place, at in self.wanted.items() if at}
        rules = {place: source.join if topic in joined else self.rule for place, topic in of.items()}
        return starts.keys() == needed and all(self._may_start(rules[p], p, at) for p, at in starts.items())

    def _may_start(self, rule: str, place: int, at: int) -> bool:
        if rule == "latest":
            return self.since.get(place, 0) <= at <= self.stable[place]
        return at == (self.halves.get(place, 0) if rule == "offsets" else 0)

    def declared(self, source: Topic) -> Topic:
        """The source of the spec that is deployed, with what it names by now."""
        named = {"pattern": "|".join(self.named)} if source.pattern else {"name": self.named}
        if len(self.named) == 1 and not source.pattern:
            named = {"name": self.named[0]}
        several = source.model_copy(update=named)
        return several.model_copy(update={"begin": self._begin(several)})

    def _begin(self, source: Topic) -> Beginning:
        if self.rule != "offsets":
            return self.rule
        of = {t: {p % PER_TOPIC: self.halves.get(p, 0) for p in self.places(t)} for t in self.named}
        return of if source.is_several else of[self.named[0]]

    def asked_by(self, source: Topic) -> Callable[..., TopicOffsets]:
        """Asks Kafka as a process does that has this source in its spec."""
        return partial(self._offsets, source)

    def _offsets(self, source: Topic, before: object = None, known: KnownLogs | None = None) -> TopicOffsets:
        """What Kafka says; nothing of it is from `before` any time that it is asked about."""
        known = known or KnownLogs()
        meant = source.names or tuple(filter(source.wants, self.topics))
        told = dict.fromkeys((*meant, *(known.topics.names if known.may_lack else ())))
        topics = numbered(known.topics, {name: f"id of {name}" for name in told})
        places = {topics.partition(name, p % PER_TOPIC): p for name in told for p in self.places(name)}
        nothing = dict.fromkeys(places, 0)
        stable = {partition: self.stable[place] for partition, place in places.items()}
        return TopicOffsets(topics, nothing, stable, nothing if before else None)

    def records(self, line: Names, ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
        """The (partition, offset) of every record in ranges of (partition, from, until) of the line."""
        at = [(partition, offset) for partition, start, until in ranges for offset in range(start, until)]
        return [(p, offset) for p, offset in at if (place_in(line, p), offset) not in self.empty]

    def records_of(self, works: Iterable[SliceWork]) -> list[tuple[int, int]]:
        """Those of slices, which are read by the names of topics."""
        of = [(r, (place_of(*r.place), offset)) for work in works for r in work.ranges for offset in _offsets_of(r)]
        return [(r.partition, at[1]) for r, at in of if at not in self.empty]


def _offsets_of(r) -> range:
    return range(r.from_offset, r.until_offset)
