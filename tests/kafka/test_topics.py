"""What the brokers hold of many topics, and how old records are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from ratchet.source.topics import Topics
from tests.until import until

BEGUN = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture
def admin(kafka_properties):
    admin = KafkaAdminClient(bootstrap_servers=kafka_properties["bootstrap.servers"])
    yield admin
    admin.close()


def test_ends_retention_sizes_and_times_of_many_topics_are_asked_for_together(kafka_properties, admin):
    settings = {"retention.ms": "-1", "retention.bytes": "123456"}
    admin.create_topics([NewTopic("held", 2, 1, topic_configs=settings), NewTopic("other", 1, 1)])
    producer = KafkaProducer(bootstrap_servers=kafka_properties["bootstrap.servers"])
    for number in range(20):
        at = BEGUN + timedelta(minutes=number)
        producer.send("held", b"x" * 100, partition=0, timestamp_ms=int(at.timestamp() * 1000))
    producer.flush()
    producer.close()
    with Topics(kafka_properties) as brokers:
        assert brokers.ends([]) == {} and brokers.times({}) == {}
        found = brokers.ends(["held", "other", "none"])
        assert sorted(found) == ["held", "other"]
        held, other = found["held"], found["other"]
        assert (held.beginning, held.stable) == ({0: 0, 1: 0}, {0: 20, 1: 0})
        assert (held.retention_ms, held.retention_bytes) == (None, 123456)
        assert (other.retention_ms, other.retention_bytes) == (7 * 86_400_000, None)
        assert held.bytes[0] > 2_000 and held.bytes[1] == 0 and held.topic_id != other.topic_id
        assert brokers.times({("held", 0): 7}) == {("held", 0): BEGUN + timedelta(minutes=7)}
        # Of a record that retention took meanwhile, the first that is left tells; of none, nothing does.
        admin.delete_records({TopicPartition("held", 0): 10})
        until("the records are gone", lambda: brokers.ends(["held"])["held"].beginning[0] == 10)
        times = brokers.times({("held", 0): 7, ("held", 1): 0})
        assert times == {("held", 0): BEGUN + timedelta(minutes=10)}
