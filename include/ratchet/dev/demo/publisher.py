"""Publishing a topic's content exactly once, also when the demo is killed on the way and started again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from threading import Event
from time import monotonic

from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Sent

from ratchet.dev.demo.content import Content, Message
from ratchet.errors import StackError, UnknownTopic
from ratchet.source.kafka import Kafka

BATCH = 1000
"""Records that are acknowledged before the next are sent."""
SECONDS_TO_SEND = 60
"""How long a batch may take to be acknowledged."""
AT_ONCE = 0.4
"""The part that waits already when the pipeline first looks; the rest comes evenly."""


def make_topic(kafka: Kafka, content: Content) -> dict[int, int]:
    """The topic, created if need be; returns {partition: how many records it holds already}.

    Raises StackError when what it holds cannot be a part of the content.
    """
    try:
        offsets = kafka.offsets(content.topic)
    except UnknownTopic:
        # Kept for ever: the demo's answer must hold whenever it is started again.
        wanted = {"num_partitions": content.partitions, "replication_factor": 1, "configs": {"retention.ms": "-1"}}
        # Pyright's stubs are of an older kafka-python.
        kafka.admin.create_topics({content.topic: wanted}, wait_for_metadata=True)  # pyright: ignore[reportCallIssue]
        offsets = kafka.offsets(content.topic)
    ends = content.ends
    if offsets.stable.keys() != ends.keys() or any(offsets.stable[p] > ends[p] for p in ends):
        raise StackError(
            f"topic {content.topic!r} holds {offsets.stable} records per partition, the demo publishes {ends}: "
            "something else was published to it; `make clean` forgets the demo's state"
        )
    return offsets.stable


def publish(
    properties: dict[str, str],
    content: Content,
    done: dict[int, int],
    seconds: float,
    stop: Event,
    published: Callable[[int], None],
) -> None:
    """Send what is missing, in order, over about `seconds`; `published` is told of acknowledged records.

    The records' order within a partition is fixed and the producer idempotent, so the topic always holds a
    prefix of each partition's records: what is there already, `done`, says where to go on. Returns early when
    `stop` is set; raises StackError when Kafka puts a record elsewhere than the content says.
    """
    missing = len(content) - sum(done.values())
    messages = content.messages(done)
    producer = Producer(
        {
            "bootstrap.servers": properties["bootstrap.servers"],
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "message.timeout.ms": SECONDS_TO_SEND * 1000,
            # Errors alone: a coordinator that has just been started is warned of, and asked again.
            "log_level": 3,
        }
    )
    began, sent = monotonic(), 0
    while batch := list(islice(messages, BATCH)):
        if stop.wait(max(0.0, began + _due(sent / missing) * seconds - monotonic())):
            return
        _send(producer, content.topic, batch)
        sent += len(batch)
        published(len(batch))


def _send(producer: Producer, topic: str, batch: list[Message]) -> None:
    """Return when all of the batch are at their places; raises StackError when one is not."""
    placed: set[tuple[int | None, int | None]] = set()
    faults: list[str] = []

    def delivered(error: KafkaError | None, sent: Sent) -> None:
        if error is not None:
            faults.append(error.str())
        else:
            placed.add((sent.partition(), sent.offset()))

    for message in batch:
        producer.produce(topic, message.value, message.key, message.partition, on_delivery=delivered)
    producer.flush()
    if faults:
        raise StackError(
            f"topic {topic!r}: {len(faults)} records could not be published: {faults[0]}; look at kafka.log below "
            ".state/demo/logs, and start the demo again: it goes on where it stopped"
        )
    for message in batch:
        if (message.partition, message.offset) not in placed:
            raise StackError(
                f"topic {topic!r}, partition {message.partition}: the record that belongs at offset {message.offset} "
                "is elsewhere: somebody else publishes to it; `make clean` forgets the demo's state"
            )


def _due(part: float) -> float:
    """When, as a part of the whole time, this part of the records is to be sent."""
    return max(0.0, part - AT_ONCE) / (1 - AT_ONCE)
