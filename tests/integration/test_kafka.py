"""What Kafka says of a topic, asked of a real broker."""

import time
from uuid import uuid4

import pytest
from kafka import KafkaProducer, TopicPartition

from ratchet.errors import BrokerUnreachable, CompactedTopic, IncompleteRead, UnknownTopic
from ratchet.kafka import Kafka
from ratchet.transaction import OffsetRange


@pytest.fixture
def client(kafka_properties):
    with Kafka(kafka_properties) as client:
        yield client


@pytest.fixture
def make_topic(client):
    """Make a topic with a new name, these partitions and configs; returns its name."""

    def make(partitions: int = 1, name: str | None = None, **configs: str) -> str:
        name = name or f"topic-{uuid4().hex[:12]}"
        named = {key.replace("_", "."): value for key, value in configs.items()}
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": named}
        client.admin.create_topics({name: wanted}, wait_for_metadata=True)
        return name

    return make


def send(properties: dict[str, str], topic: str, values: list[bytes], partition: int = 0, **settings) -> None:
    producer = KafkaProducer(bootstrap_servers=properties["bootstrap.servers"], acks="all", **settings)
    for value in values:
        producer.send(topic, value, partition=partition)
    producer.flush()
    producer.close()


class Transaction:
    """A Kafka transaction that the test ends when it wants to; its records are there, and undecided."""

    def __init__(self, properties: dict[str, str], topic: str, values: list[bytes]):
        self.producer = KafkaProducer(
            bootstrap_servers=properties["bootstrap.servers"], transactional_id=uuid4().hex, acks="all"
        )
        self.producer.init_transactions()
        self.producer.begin_transaction()
        for value in values:
            self.producer.send(topic, value, partition=0)
        self.producer.flush()

    def end(self, commit: bool) -> None:
        if commit:
            self.producer.commit_transaction()
        else:
            self.producer.abort_transaction()
        self.producer.close()


def wait_until_stable(client: Kafka, topic: str, offset: int) -> None:
    """The broker writes markers after it has answered the producer; wait for them, 10 s at most."""
    deadline = time.monotonic() + 10
    while (found := client.offsets(topic).stable) != {0: offset}:
        assert time.monotonic() < deadline, f"{topic} is stable up to {found}, not {offset}"


def test_offsets_of_every_partition(kafka_properties, client, make_topic):
    topic = make_topic(3)
    send(kafka_properties, topic, [b"a", b"b"], partition=1)
    client.admin.delete_records({TopicPartition(topic, 1): 1})
    found = client.offsets(topic)
    assert found.topic == topic
    assert found.beginning == {0: 0, 1: 1, 2: 0}
    assert found.stable == {0: 0, 1: 2, 2: 0}


def test_stable_offsets_stop_before_an_undecided_transaction(kafka_properties, client, make_topic):
    topic = make_topic()
    send(kafka_properties, topic, [b"plain"])
    open_ = Transaction(kafka_properties, topic, [b"x", b"y"])
    send(kafka_properties, topic, [b"behind"])
    assert client.offsets(topic).stable == {0: 1}
    open_.end(commit=True)
    wait_until_stable(client, topic, 5)


def test_a_range_that_ends_in_markers_and_aborted_records_is_counted(kafka_properties, client, make_topic):
    topic = make_topic()
    send(kafka_properties, topic, [b"1", b"2"])  # 0, 1
    Transaction(kafka_properties, topic, [b"3", b"4"]).end(commit=True)  # 2, 3, marker 4
    Transaction(kafka_properties, topic, [b"lost"] * 3).end(commit=False)  # 5 to 7, marker 8
    wait_until_stable(client, topic, 9)

    def count(begin: int, until: int) -> int:
        return client.committed_records_between(OffsetRange(topic, 0, begin, until))

    assert count(0, 9) == 4
    assert count(0, 5) == 4
    assert count(1, 3) == 2
    assert count(4, 5) == 0
    assert count(6, 7) == 0
    assert count(6, 9) == 0
    assert count(3, 3) == 0


def test_a_range_that_is_not_there_is_no_count(kafka_properties, client, make_topic, monkeypatch):
    monkeypatch.setattr("ratchet.kafka.TIMEOUT_MS", 2_000)
    topic = make_topic()
    send(kafka_properties, topic, [b"only"])
    with pytest.raises(IncompleteRead, match="offset 1"):
        client.committed_records_between(OffsetRange(topic, 0, 0, 2))


def test_an_unknown_topic_is_named_with_its_broker_and_not_created(kafka_properties, client):
    for _ in range(2):
        with pytest.raises(UnknownTopic, match=f"'absent' at {kafka_properties['bootstrap.servers']}"):
            client.offsets("absent")


def test_a_compacted_topic_is_refused(client, make_topic):
    topic = make_topic(cleanup_policy="compact,delete")
    with pytest.raises(CompactedTopic, match="cleanup.policy=compact,delete"):
        client.offsets(topic)


def test_a_topic_made_again_has_another_id(client, make_topic):
    topic = make_topic()
    before = client.offsets(topic).topic_id
    client.admin.delete_topics([topic])
    deadline = time.monotonic() + 30
    while True:
        try:
            make_topic(name=topic)
            break
        except Exception:
            # The broker deletes in its own time; until then the name is taken.
            if time.monotonic() > deadline:
                raise
    assert client.offsets(topic).topic_id != before


def test_an_unreachable_broker_is_said_within_fifteen_seconds():
    started = time.monotonic()
    with pytest.raises(BrokerUnreachable, match="127.0.0.1:9"), Kafka({"bootstrap.servers": "127.0.0.1:9"}) as client:
        client.offsets("any")
    assert time.monotonic() - started < 15


def test_a_look_at_the_offsets_is_quick(kafka_properties, make_topic):
    topic = make_topic(4)
    took = []
    for _ in range(5):
        started = time.monotonic()
        with Kafka(kafka_properties) as client:
            client.offsets(topic)
        took.append(time.monotonic() - started)
    assert sorted(took)[2] < 0.15
