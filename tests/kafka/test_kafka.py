"""What Kafka says of a topic, asked of a real broker."""

import re
import subprocess
import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from ratchet.dev.stack import CHECKOUT, prerequisites
from ratchet.errors import BrokerUnreachable, CompactedTopic, GroupHasMembers, IncompleteRead, UnknownTopic
from ratchet.ledger.work import OffsetRange
from ratchet.source.kafka import Kafka
from tests.until import until


def send(properties: dict[str, str], topic: str, values: list[bytes], partition: int = 0, **settings) -> None:
    producer = KafkaProducer(bootstrap_servers=properties["bootstrap.servers"], acks="all", **settings)
    for value in values:
        producer.send(topic, value, partition=partition)
    producer.flush()
    producer.close()


class Transaction:
    """A Kafka transaction that the test ends when it wants to; its records are there, and undecided."""

    def __init__(self, properties: dict[str, str], topic: str, values: list[bytes]):
        self.name = uuid4().hex
        self.producer = KafkaProducer(
            bootstrap_servers=properties["bootstrap.servers"], transactional_id=self.name, acks="all"
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


def by_hand(properties: dict[str, str], tool: str, *arguments: str) -> str:
    """What one of Kafka's own command-line tools prints."""
    jars = str(prerequisites.jars(CHECKOUT, "broker")[0].parent / "*")
    command = [str(prerequisites.java()), "-cp", jars, f"org.apache.kafka.tools.{tool}"]
    command += ["--bootstrap-server", properties["bootstrap.servers"], *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def placed(topic: str, offsets: dict[int, int]) -> dict[tuple[str, int], int]:
    return {(topic, partition): at for partition, at in offsets.items()}


def mirrored(client: Kafka, group: str, topic: str) -> dict[int, int]:
    return {partition: at for (_, partition), at in client.mirrored(group, [topic]).items()}


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
    assert found.topics.names == (topic,)
    assert found.beginning == {0: 0, 1: 1, 2: 0}
    assert found.stable == {0: 0, 1: 2, 2: 0}


@pytest.mark.invariant("I2")
def test_stable_offsets_stop_before_an_undecided_transaction(kafka_properties, client, make_topic):
    topic = make_topic()
    send(kafka_properties, topic, [b"plain"])
    open_ = Transaction(kafka_properties, topic, [b"x", b"y"])
    send(kafka_properties, topic, [b"behind"])
    assert client.offsets(topic).stable == {0: 1}
    open_.end(commit=True)
    wait_until_stable(client, topic, 5)


def test_an_undecided_transaction_is_said_and_one_that_hangs_can_be_ended_as_the_message_says(
    kafka_properties, client, make_topic, monkeypatch
):
    topic = make_topic()
    send(kafka_properties, topic, [b"plain"])
    open_ = Transaction(kafka_properties, topic, [b"x", b"y"])
    send(kafka_properties, topic, [b"behind"])
    found = client.offsets(topic)
    assert found.stable == {0: 1} and found.end == {0: 4} and set(found.undecided) == {0}
    producer = client.admin.describe_transactions([open_.name])[open_.name].producer_id
    assert found.undecided[0].producer_id == producer
    assert datetime.now(UTC) - found.undecided[0].wrote_at < timedelta(minutes=1)
    said = found.held_back()
    assert said.startswith(f"3 offsets of {topic}-0 from 1 on wait for a Kafka transaction of producer ")
    assert "hang" not in said and found.held_back(only_hanging=True) is None
    monkeypatch.setattr("ratchet.source.offsets.HANGS_AFTER", timedelta(0))
    advice = re.search(r"`kafka-transactions.sh --bootstrap-server … (.*)`", found.held_back(only_hanging=True))
    by_hand(kafka_properties, "TransactionsCommand", *advice[1].split())
    wait_until_stable(client, topic, 5)
    assert client.offsets(topic).undecided == {}
    assert client.committed_records_between(OffsetRange(topic, 0, 0, 5)) == 2
    open_.producer.close()


@pytest.mark.invariant("I1")
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
    monkeypatch.setattr("ratchet.source.kafka.TIMEOUT_MS", 2_000)
    topic = make_topic()
    send(kafka_properties, topic, [b"only"])
    with pytest.raises(IncompleteRead, match="offset 1"):
        client.committed_records_between(OffsetRange(topic, 0, 0, 2))


# Offsets for monitoring tools


def described(properties: dict[str, str], group: str) -> dict[tuple[str, int], tuple[int, int]]:
    """{(topic, partition): (committed offset, lag)} as Kafka's own command-line tool sees the group."""
    tool = "consumer.group.ConsumerGroupCommand"
    said = by_hand(properties, tool, "--describe", "--offsets", "--group", group)
    rows = [line.split() for line in said.splitlines() if line.startswith(f"{group} ")]
    return {(row[1], int(row[2])): (int(row[3]), int(row[5])) for row in rows if row[3] != "-"}


@pytest.mark.invariant("I11")
def test_a_group_shows_exactly_the_offsets_that_are_mirrored(kafka_properties, client, make_topic):
    topic, other, group = make_topic(3), make_topic(), f"ratchet-{uuid4().hex}"
    send(kafka_properties, topic, [b"a"] * 5)
    send(kafka_properties, topic, [b"b"] * 3, partition=1)
    assert mirrored(client, group, topic) == {}
    client.mirror(group, placed(topic, {0: 4, 1: 3}))
    client.mirror(group, placed(other, {0: 0}))
    assert mirrored(client, group, topic) == {0: 4, 1: 3}
    assert described(kafka_properties, group) == {(topic, 0): (4, 1), (topic, 1): (3, 0), (other, 0): (0, 0)}
    # Exactly what is given, back as well; what is not given stays.
    client.mirror(group, placed(topic, {0: 2}))
    client.mirror(group, placed(topic, {}))
    assert mirrored(client, group, topic) == {0: 2, 1: 3}
    assert mirrored(client, group, other) == {0: 0}


def test_offsets_of_a_group_with_live_members_are_left_alone(kafka_properties, client, make_topic):
    topic, group = make_topic(), f"ratchet-{uuid4().hex}"
    send(kafka_properties, topic, [b"a"] * 5)
    client.mirror(group, placed(topic, {0: 1}))
    member = KafkaConsumer(group_id=group, bootstrap_servers=kafka_properties["bootstrap.servers"])
    try:
        # Known before it joins: kafka-python 3.0.12 can hang when a topic becomes known while it is joining.
        member.partitions_for_topic(topic)
        member.subscribe([topic])
        until("the group's member has its partition", lambda: member.poll(timeout_ms=100) or member.assignment())
        with pytest.raises(GroupHasMembers, match=f"{group}.*live members.*stop its consumers"):
            client.mirror(group, placed(topic, {0: 3}))
        assert mirrored(client, group, topic) == {0: 1}
    finally:
        member.close(autocommit=False)
    client.mirror(group, placed(topic, {0: 3}))
    assert mirrored(client, group, topic) == {0: 3}


def test_offsets_of_a_partition_that_is_not_there_are_not_mirrored(kafka_properties, client, make_topic):
    topic, group = make_topic(), f"ratchet-{uuid4().hex}"
    with pytest.raises(UnknownTopic, match=f"{topic}-1, {topic}-7 at .* is not there; no offset was set"):
        client.mirror(group, placed(topic, {0: 0, 1: 0, 7: 2}))
    with pytest.raises(UnknownTopic, match="absent"):
        client.mirror(group, placed("absent", {0: 0}))
    assert mirrored(client, group, topic) == {}


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
    before = client.offsets(topic).topics.ids[topic]
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
    assert client.offsets(topic).topics.ids[topic] != before


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
