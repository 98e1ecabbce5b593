"""A partition as a person names it: by Kafka's number of it and, where a line is of several topics, the topic."""

from __future__ import annotations

from ratchet.errors import SettingsError
from ratchet.ledger.topics import PER_TOPIC, Topics, of_line


def partition_of(pipeline: str, topics: Topics, topic: str | None, partition: int) -> int:
    """The partition of the line that a person means; SettingsError where that is not clear."""
    if topic is None and len(topics) > 1:
        raise SettingsError(f"{pipeline}: it is of {topics.title}; say of which one by --topic")
    number = 0 if topic is None else topics.number(topic)
    if number is None:
        raise SettingsError(f"{pipeline}: it is of {topics.title}, and {topic!r} is none of them")
    if partition >= PER_TOPIC:
        raise SettingsError(f"{pipeline}: {partition} is no partition of Kafka")
    return of_line(number, partition)
