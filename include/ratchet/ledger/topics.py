"""A line's topics, and its partitions: a topic's number in the line and Kafka's partition of it, as one integer.

Plans, votes and rows know a partition of the line alone. Of the first topic it is Kafka's own, so a line of one topic
has no other numbers. Only this module takes the integer apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

PER_TOPIC = 1_000_000
"""So many partitions of the line belong to each topic; a topic of Kafka has fewer by far."""
MOST_TOPICS = 2_000
"""So many topics at most fit into the 31 bits of a partition of the line."""
_NAMED = 3

T = TypeVar("T")


def number_of(partition: int) -> int:
    """The number of the topic that a partition of the line is of."""
    return partition // PER_TOPIC


def of_kafka(partition: int) -> int:
    """Kafka's number of a partition of the line."""
    return partition % PER_TOPIC


def of_line(number: int, partition: int) -> int:
    """The partition of the line that Kafka's `partition` of the topic with this number is."""
    return number * PER_TOPIC + partition


@dataclass(frozen=True)
class LineTopic:
    """A topic of a line: `topic_id` is Kafka's, "" where it is not known; of one that is `left` nothing is planned."""

    name: str
    topic_id: str
    left: bool = False


@dataclass(frozen=True)
class Topics:
    """The topics of a line. Each one's place here is its number, which it keeps: others come behind it, none goes."""

    of: tuple[LineTopic, ...] = ()

    @classmethod
    def one(cls, name: str, topic_id: str = "") -> Topics:
        """Of a line of one topic."""
        return cls((LineTopic(name, topic_id),))

    @classmethod
    def read(cls, stored: Iterable[Mapping[str, Any]]) -> Topics:
        """From the form in which the ledger has them."""
        return cls(tuple(LineTopic(each["topic"], each["id"], bool(each.get("left"))) for each in stored))

    @property
    def stored(self) -> list[dict[str, Any]]:
        """`[{"topic": …, "id": …}, …]`, with `"left": true` where one is left."""
        return [{"topic": each.name, "id": each.topic_id, **({"left": True} if each.left else {})} for each in self.of]

    def __len__(self) -> int:
        return len(self.of)

    def __iter__(self) -> Iterator[LineTopic]:
        return iter(self.of)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, by number."""
        return tuple(each.name for each in self.of)

    @property
    def ids(self) -> dict[str, str]:
        """{name: Kafka's id}, of those whose id is known."""
        return {each.name: each.topic_id for each in self.of if each.topic_id}

    @property
    def present(self) -> Topics:
        """Those that are taken, in the same places; the others without an id."""
        return Topics(tuple(replace(each, topic_id="") if each.left else each for each in self.of))

    def is_left(self, partition: int) -> bool:
        """Whether nothing is planned of this partition of the line any more."""
        number = number_of(partition)
        return number < len(self.of) and self.of[number].left

    def number(self, name: str) -> int | None:
        """The number of the topic with this name."""
        return next((number for number, each in enumerate(self.of) if each.name == name), None)

    def name(self, partition: int) -> str:
        """The topic that a partition of the line is of."""
        return self.of[number_of(partition)].name

    def place(self, partition: int) -> tuple[str, int]:
        """(topic, Kafka's partition) of a partition of the line."""
        return self.name(partition), of_kafka(partition)

    def partition(self, topic: str, partition: int) -> int:
        """The partition of the line; KeyError where the line does not know the topic."""
        number = self.number(topic)
        if number is None:
            raise KeyError(topic)
        return of_line(number, partition)

    def said(self, partition: int) -> str:
        """A partition of the line as Kafka names it, `orders-eu-3`."""
        return f"{self.name(partition)}-{of_kafka(partition)}"

    def places(self, of: Mapping[int, T]) -> dict[tuple[str, int], T]:
        """{(topic, Kafka's partition): what there is of it}."""
        return {self.place(partition): what for partition, what in of.items()}

    def by_topic(self, of: Mapping[int, T]) -> dict[str, dict[int, T]]:
        """{topic: {Kafka's partition: what there is of it}}."""
        found: dict[str, dict[int, T]] = {}
        for partition, what in sorted(of.items()):
            found.setdefault(self.name(partition), {})[of_kafka(partition)] = what
        return found

    @property
    def title(self) -> str:
        """How people read them: `topic orders`, or `topics orders-eu, orders-us`."""
        return titled([each.name for each in self.of if each.topic_id and not each.left] or self.names)


def titled(names: Sequence[str]) -> str:
    """How people read names of topics, of many the first."""
    said = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return f"topic {said}" if len(names) == 1 else f"topics {said}"
