"""Three brokers, of which one is killed: the slice gives exactly what was planned, and the broker comes back."""

from __future__ import annotations

import os
import signal
from collections import Counter
from uuid import uuid4

import pytest
from kafka import KafkaProducer
from pyspark.sql import functions as F

from ratchet import Append, Json, Pipeline, Topic
from ratchet.dev.stack import Stack
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import OffsetRange
from ratchet.source.kafka import Kafka
from ratchet.source.properties import client_settings
from ratchet.spark.engine import connect_session
from tests.spark.rig import SINK, Rig, address, positions
from tests.until import until

pytestmark = pytest.mark.cluster
BROKERS = {1: "kafka", 2: "kafka-2", 3: "kafka-3"}
RECORDS = 12_000
VICTIM: dict[str, int] = {}
"""The process that the transform below kills."""


def kill_midway(df):
    """Every record; at the one in the middle, on the worker, the victim is killed."""
    pid = VICTIM["pid"]

    def at_middle(a: int) -> int:
        if a == RECORDS // 2:
            os.kill(pid, signal.SIGKILL)
        return a

    return {SINK: df.withColumn("a", F.udf(at_middle, "int")("a"))}


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def cluster(scratch, said):
    with Stack(scratch / "three-brokers", {"kafka"}, brokers=3, say=said.append) as stack:
        yield stack


@pytest.fixture
def rig(spark_connect, ledger_url, cluster):
    connected = connect_session(spark_connect.spark, "tests", uuid4().hex)
    with connected as session, Kafka(cluster.kafka) as client, Ledger(ledger_url) as ledger:
        until("all three brokers have joined", lambda: len(client.admin.describe_cluster()["brokers"]) == 3)
        yield Rig(session, ledger, cluster.kafka, client)


def make_topic(client: Kafka, partitions: int = 1) -> str:
    name = f"three-{uuid4().hex[:12]}"
    wanted = {name: {"num_partitions": partitions, "replication_factor": 3}}
    client.admin.create_topics(wanted, wait_for_metadata=True)
    until("every replica is in sync", lambda: all(len(isr) == 3 for _, isr in state(client, name).values()))
    return name


def state(client: Kafka, topic: str) -> dict[int, tuple[int, set[int]]]:
    """{partition: (leader, in-sync replicas)}."""
    (found,) = client.admin.describe_topics([topic])
    return {p["partition_index"]: (p["leader_id"], set(p["isr_nodes"])) for p in found["partitions"]}


def came_back(cluster: Stack, said: list[str], broker: int, before: int) -> bool:
    """Whether the supervisor has started a broker again that was killed, and has said so."""
    name = BROKERS[broker]
    now = cluster.pids()[name]
    return now != before and f"{name} was started again (process {now})" in said


@pytest.mark.invariant("I1")
def test_a_slice_is_exact_though_the_leader_is_killed_while_it_is_read(rig, cluster, said):
    topic = make_topic(rig.client)
    producer = KafkaProducer(**client_settings(cluster.kafka), acks="all", linger_ms=20, batch_size=2**18)
    for a in range(RECORDS):
        # 12 MB, which a reader fetches by 1 MB: when the leader dies, half of it is still to come.
        producer.send(topic, b'{"a": %d, "pad": "%s"}' % (a, b"x" * 1000), partition=0)
    producer.flush()
    producer.close()
    spec = Pipeline(
        name="p",
        source=Topic(topic, value=Json("a int")),
        transform=address(kill_midway),
        sinks=[Append(SINK, columns="a int")],
        slice_records=RECORDS,
        max_records=RECORDS,
    )
    (work,) = rig.begin(spec)
    assert work.ranges == (OffsetRange(topic, 0, 0, RECORDS),)
    leader, _ = state(rig.client, topic)[0]
    before = cluster.pids()[BROKERS[leader]]
    VICTIM["pid"] = before
    vote = rig.run(spec, work)
    now, in_sync = state(rig.client, topic)[0]
    assert now != leader
    assert vote.records == RECORDS
    rows = rig.written(work, SINK)
    assert positions(rows) == Counter((0, o) for o in range(RECORDS))
    assert all(row["a"] == row["_offset"] for row in rows)
    rig.check(spec, work, vote)
    until("the broker is started again", lambda: came_back(cluster, said, leader, before))
    until("every replica is in sync again", lambda: len(state(rig.client, topic)[0][1]) == 3, 60)


def test_the_client_waits_for_the_new_leader_and_the_new_coordinator(rig, cluster, said):
    client = rig.client
    topic = make_topic(client, partitions=3)
    for partition in range(3):
        rig.send(topic, *[b"a"] * 10, partition=partition)
    client.mirror("watched", {(topic, 0): 1})
    before = client.offsets(topic)
    # The coordinator of the group; with three partitions it leads one of the topic's too.
    until("every replica of the offsets is in sync", lambda: len(state(client, "__consumer_offsets")[0][1]) == 3, 60)
    victim, _ = state(client, "__consumer_offsets")[0]
    (led,) = [p for p, (leader, _) in state(client, topic).items() if leader == victim]
    pid = cluster.pids()[BROKERS[victim]]
    os.kill(pid, signal.SIGKILL)
    assert client.offsets(topic) == before
    assert state(client, topic)[led][0] != victim
    assert client.committed_records_between(OffsetRange(topic, led, 2, 10)) == 8
    client.mirror("watched", {(topic, 0): 2, (topic, 1): 7})
    assert client.mirrored("watched", [topic]) == {(topic, 0): 2, (topic, 1): 7}
    until("the broker is started again", lambda: came_back(cluster, said, victim, pid))
