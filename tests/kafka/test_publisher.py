"""The demo's publisher against a real broker: each record once, whatever happened to the run before."""

from collections import Counter
from dataclasses import replace
from threading import Event
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from ratchet.dev.demo import content
from ratchet.dev.demo.publisher import make_topic, publish
from ratchet.errors import StackError
from ratchet.source.kafka import Kafka
from ratchet.spec.loading import load_pipeline


@pytest.fixture
def planes():
    """The register of aircraft under a topic name of this test's own."""
    return replace(content.planes(load_pipeline("aircraft")), topic=f"planes-{uuid4().hex[:12]}")


@pytest.fixture
def client(kafka_properties):
    with Kafka(kafka_properties) as client:
        yield client


def held(properties: dict[str, str], of: content.Content) -> Counter:
    """Every (partition, offset, key, value) of the topic."""
    reader = KafkaConsumer(bootstrap_servers=properties["bootstrap.servers"], enable_auto_commit=False)
    tps = [TopicPartition(of.topic, p) for p in range(of.partitions)]
    reader.assign(tps)
    reader.seek_to_beginning()
    ends, seen = reader.end_offsets(tps), Counter()
    while any(reader.position(tp) < ends[tp] for tp in tps):
        for records in reader.poll(timeout_ms=100).values():
            seen.update((r.partition, r.offset, r.key, r.value) for r in records)
    reader.close()
    return seen


def test_a_run_that_stopped_on_the_way_is_completed_without_doubles(kafka_properties, client, planes):
    stop = Event()
    publish(kafka_properties, planes, make_topic(client, planes), 0, stop, lambda records: stop.set())
    done = make_topic(client, planes)
    assert 0 < sum(done.values()) < len(planes)
    counted = []
    publish(kafka_properties, planes, done, 0, Event(), counted.append)
    assert sum(counted) == len(planes) - sum(done.values())
    publish(kafka_properties, planes, make_topic(client, planes), 0, Event(), counted.append)
    assert held(kafka_properties, planes) == Counter(map(tuple, planes.messages({})))


def test_records_of_somebody_else_are_noticed(kafka_properties, client, planes):
    done = make_topic(client, planes)
    stranger = KafkaProducer(bootstrap_servers=kafka_properties["bootstrap.servers"])
    stranger.send(planes.topic, b"{}", partition=0).get(timeout=10)
    with pytest.raises(StackError, match="somebody else publishes"):
        publish(kafka_properties, planes, done, 0, Event(), lambda records: None)
    stranger.close()


def test_a_topic_that_holds_too_much_is_refused(kafka_properties, client, planes):
    publish(kafka_properties, planes, make_topic(client, planes), 0, Event(), lambda records: None)
    stranger = KafkaProducer(bootstrap_servers=kafka_properties["bootstrap.servers"])
    stranger.send(planes.topic, b"{}", partition=0).get(timeout=10)
    with pytest.raises(StackError, match="something else was published"):
        make_topic(client, planes)
    stranger.close()
