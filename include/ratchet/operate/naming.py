"""A partition as a person names it: by Kafka's number of it and, where a line is of several topics, the topic."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.errors import SettingsError
from ratchet.ledger.topics import PER_TOPIC, Topics, of_line

TOPIC, PARTITION = "_topic", "_partition"
"""The columns by which a row's record is named; the first one is the views' alone."""


def key_in_line(pipeline: str, topics: Topics, key: Mapping[str, str]) -> dict[str, str]:
    """{column: value} of rows with the line's partition in place of Kafka's and its topic.

    SettingsError where a topic has no partition beside it, and where a partition may be of several topics.
    """
    given = dict(key)
    topic, partition = given.pop(TOPIC, None), given.pop(PARTITION, None)
    if topic is None and partition is None:
        return given
    if partition is None or not (partition.isascii() and partition.isdecimal()):
        raise SettingsError(f"{pipeline}: {TOPIC} and {PARTITION} name a partition of Kafka: a topic and a number")
    if topic is None and len(topics) > 1:
        raise SettingsError(
            f"{pipeline}: it is of {topics.title}, each of which may have a partition {partition}; say of which one, "
            f"as {TOPIC}={topics.names[0]}"
        )
    return {**given, PARTITION: str(partition_of(pipeline, topics, topic, int(partition)))}


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
