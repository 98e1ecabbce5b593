"""A topic that gets more partitions under a line that deletes by tombstones: what its producers wrote last is there."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kafka import KafkaProducer
from kafka.admin import NewPartitions

from ratchet import Append, Json, Pipeline, Topic, Upsert
from ratchet.errors import Refused, Repartitioned
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.operate.repartition import repartitioned
from ratchet.operate.verify import recompute, verify
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.spark import slice as slice_module
from tests.source.topics import make_topic
from tests.until import until

from .rig import Rig
from .test_cut_logs import drain

KEYS = [b"k%d" % n for n in range(20)]
BEGUN = 1_700_000_000_000


class Keyed:
    """A topic and its producer, which chooses a partition by the hash of a key; each new one knows all partitions."""

    def __init__(self, rig: Rig, partitions: int):
        self._rig, self.topic = rig, make_topic(rig.kafka, partitions)
        self.last: dict[str, int | None] = {}
        self.written: list[tuple[str, int]] = []
        self._clock = BEGUN

    def send(self, *keys: bytes, gone: bool = False) -> None:
        producer = KafkaProducer(bootstrap_servers=self._rig.kafka["bootstrap.servers"], acks="all")
        for key in keys:
            self._clock += 1
            value = None if gone else self._clock - BEGUN
            body = None if gone else b'{"v": %d}' % value
            producer.send(self.topic, body, key=key, timestamp_ms=self._clock)
            self.last[key.decode()] = value
            self.written += [] if value is None else [(key.decode(), value)]
        producer.flush()
        producer.close()

    def add(self, partitions: int) -> datetime:
        """The topic has so many from here on; the time of it."""
        admin, offsets = self._rig.client.admin, partial(self._rig.client.offsets, self.topic)
        admin.create_partitions({self.topic: NewPartitions(partitions)})
        until("the brokers know of the partitions", lambda: len(offsets().stable) == partitions, 30)
        return datetime.fromtimestamp((self._clock + 1) / 1000, UTC)

    def spec(self) -> Pipeline:
        return Pipeline(
            name="p",
            source=Topic(self.topic, key="k string", value=Json("v int"), tombstones="delete"),
            transform="tests.spark.test_repartitioned:apart",
            sinks=[Append("seen", columns="k string, v int"), Upsert("last", key="k string", columns="v int")],
            max_records=25,
            slice_records=15,
        )


def apart(records: pa.Table) -> dict[str, pa.Table]:
    """An Append knows no deletions."""
    return {"seen": records.filter(pc.invert(records.column("_deleted"))), "last": records}


def is_exact(rig: Rig, topic: Keyed, spec: Pipeline) -> None:
    with psycopg.connect(rig.ledger.url) as conn:
        seen = conn.execute("select k, v from seen").fetchall()
        last = dict(conn.execute("select k, v from last").fetchall())
    assert sorted(seen) == sorted(topic.written)
    assert last == {key: value for key, value in topic.last.items() if value is not None}
    assert [fault for check in verify(rig.ledger, spec) for fault in check.faults] == []
    again = recompute(rig.ledger, spec, lambda works: slice_module.recompute(rig.spark, spec, works, rig.servers))
    assert again.checked and again.faults == ()


@pytest.mark.invariant("I3")
def test_keys_of_a_topic_that_gets_more_partitions_keep_their_last_record(rig):
    topic = Keyed(rig, 2)
    spec = topic.spec()
    topic.send(*KEYS)
    rig.begin(spec, "a0")
    settle(rig.ledger, spec, Run("dag", "a0"), succeeded=False, reason="killed")
    topic.send(*KEYS[:10])
    topic.send(*KEYS[:3], gone=True)
    topic.add(4)
    topic.send(*KEYS[2:18])
    topic.send(*KEYS[5:9], gone=True)
    drained = partial(rig.client.offsets, topic.topic)
    with pytest.raises(Repartitioned, match="has 4 partitions, 2 were there before"):
        drain(rig, spec, "b")
    repartitioned(rig.ledger, spec, drained, "partitions were added", "somebody")
    topic.send(*KEYS[7:])
    drain(rig, spec, "c")
    is_exact(rig, topic, spec)


@pytest.mark.invariant("I3")
def test_keys_that_move_to_a_partition_of_before_are_told_by_their_time(rig):
    topic = Keyed(rig, 2)
    spec = topic.spec()
    migrate(rig.ledger.url, [spec])
    topic.send(*KEYS)
    drain(rig, spec, "a")
    # No sink to which it matters has planned the new partition, and records of a key in two.
    careless = spec.model_copy(update={"sinks": spec.sinks[:1]})
    topic.send(*KEYS[:4])
    since = topic.add(3)
    topic.send(*KEYS[:12])
    topic.send(*KEYS[9:11], gone=True)
    begin(rig.ledger, careless, Run("dag", "b0"), partial(rig.client.offsets, topic.topic), lambda *_: True)
    settle(rig.ledger, careless, Run("dag", "b0"), succeeded=False, reason="a mistake")
    works = rig.begin(spec, "b1")
    for work in works:
        rig.check(spec, work, rig.run(spec, work))
    with pytest.raises(Refused, match=r"last: key k\d+ is in partition .* `ratchet repartitioned p --at TIME"):
        commit(rig.ledger, spec, rig.claim)
    settle(rig.ledger, spec, Run("dag", "b1"), succeeded=False, reason="refused")
    said = repartitioned(rig.ledger, spec, partial(rig.client.offsets, topic.topic), "added", "somebody", since)
    assert said.changes and said.opened is not None
    drain(rig, spec, "c")
    is_exact(rig, topic, spec)
