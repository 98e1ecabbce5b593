"""Three brokers, of which the leader is killed or frozen while the columnar source reads: it reads on, exactly."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from ratchet.dev.stack import Stack
from ratchet.errors import BrokerUnreachable
from ratchet.ledger.work import OffsetRange
from ratchet.source import columnar
from ratchet.source.columnar import ColumnarReading, ColumnarSource
from ratchet.source.kafka import Kafka
from tests.source.topics import make_topic, producer, rows, stable_ranges, witnessed, write_everything
from tests.spark.test_three_brokers import BROKERS, came_back, state
from tests.until import until

pytestmark = pytest.mark.cluster
RECORDS = 12_000


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def cluster(scratch, said):
    with Stack(scratch / "three-of-source", {"kafka"}, brokers=3, say=said.append) as stack:
        yield stack


@pytest.fixture
def client(cluster):
    with Kafka(cluster.kafka) as client:
        until("all three brokers have joined", lambda: len(client.admin.describe_cluster()["brokers"]) == 3)
        yield client


def replicated(cluster: Stack, client: Kafka, partitions: int = 1) -> str:
    topic = make_topic(cluster.kafka, partitions, replicas=3)
    in_sync(client, topic)
    return topic


def in_sync(client: Kafka, topic: str) -> None:
    until("every replica is in sync", lambda: all(len(isr) == 3 for _, isr in state(client, topic).values()), 60)


def fill(cluster: Stack, topic: str, partition: int = 0) -> None:
    """12 MB, of which a source that fetches 1 MB has most still to come when the leader dies."""
    sender = producer(cluster.kafka)
    for a in range(RECORDS):
        sender.produce(topic, b"%d " % a + b"x" * 1000, partition=partition)
        sender.poll(0)
    sender.flush()


def is_exact(reading: ColumnarReading, first: list, topic: str, partitions: int = 1) -> None:
    found = Counter(row[:2] for row in [*first, *rows(reading)])
    assert found == Counter((p, o) for p in range(partitions) for o in range(RECORDS))
    assert reading.reached == {(topic, p): RECORDS for p in range(partitions)}


def test_it_is_exact_though_the_leader_is_killed_in_the_middle(cluster, client, said):
    topic = replicated(cluster, client, 3)
    for partition in range(3):
        fill(cluster, topic, partition)
    victim, _ = state(client, topic)[1]
    pid = cluster.pids()[BROKERS[victim]]
    ranges = [OffsetRange(topic, p, 0, RECORDS) for p in range(3)]
    with ColumnarSource(cluster.kafka, fetch_bytes=2**20).read(ranges) as reading:
        first = [row for _ in range(3) for row in rows([next(reading)])]
        assert reading.records < 3 * RECORDS
        os.kill(pid, signal.SIGKILL)
        is_exact(reading, first, topic, 3)
    assert state(client, topic)[1][0] != victim
    # Whoever led before has written everything; a later leader may have written nothing.
    assert set(reading.leader_epochs) == {(topic, p) for p in range(3)}
    until("the broker is started again", lambda: came_back(cluster, said, victim, pid))
    in_sync(client, topic)


def test_it_is_exact_though_the_leader_falls_silent(cluster, client, monkeypatch):
    monkeypatch.setattr(columnar, "ANSWER_SECONDS", 3)
    monkeypatch.setattr("ratchet.source.wire.ANSWER_SECONDS", 3)
    topic = replicated(cluster, client)
    fill(cluster, topic)
    victim, _ = state(client, topic)[0]
    pid = cluster.pids()[BROKERS[victim]]
    with ColumnarSource(cluster.kafka, fetch_bytes=2**20).read([OffsetRange(topic, 0, 0, RECORDS)]) as reading:
        first = rows([next(reading)])
        os.kill(pid, signal.SIGSTOP)
        try:
            is_exact(reading, first, topic)
        finally:
            os.kill(pid, signal.SIGCONT)
    in_sync(client, topic)


def test_every_codec_and_transactions_across_a_change_of_leader(cluster, client, said):
    """Aborted transactions are listed anew by the new leader, also those that began before its first answer."""
    topic = replicated(cluster, client)
    write_everything(cluster.kafka, topic, 1, rounds=4)
    victim, _ = state(client, topic)[0]
    pid = cluster.pids()[BROKERS[victim]]
    ranges = stable_ranges(cluster.kafka, topic)
    reading = ColumnarSource(cluster.kafka, fetch_bytes=1).read(ranges)
    first = rows([next(reading)])
    os.kill(pid, signal.SIGKILL)
    found = [*first, *rows(reading)]
    until("the broker is started again", lambda: came_back(cluster, said, victim, pid))
    in_sync(client, topic)
    assert Counter(found) == Counter(witnessed(cluster.kafka, ranges))


def test_a_partition_whose_brokers_are_all_gone_is_given_up(cluster, client, said, monkeypatch):
    monkeypatch.setattr(columnar, "TAKEOVER_SECONDS", 1)
    topic = make_topic(cluster.kafka, 1, replicas=1)
    fill(cluster, topic)
    victim, _ = state(client, topic)[0]
    pid = cluster.pids()[BROKERS[victim]]
    reading = ColumnarSource(cluster.kafka, fetch_bytes=2**20).read([OffsetRange(topic, 0, 0, RECORDS)])
    first = rows([next(reading)])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(BrokerUnreachable, match=f"{topic}-0|connection to a broker"):
        first += rows(reading)
    assert reading.reached[topic, 0] == reading.records < RECORDS
    until("the broker is started again", lambda: came_back(cluster, said, victim, pid))
