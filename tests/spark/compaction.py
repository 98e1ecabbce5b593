"""Topics that Kafka compacts while a test runs, what is left of them, and lines that read them."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ratchet import Json, Pipeline, Topic, Upsert
from ratchet.ledger.work import OffsetRange, Run
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.source.columnar import ColumnarSource
from ratchet.source.port import Origin
from tests.until import until

from .rig import Rig

DAY = 24 * 3600 * 1000


def clean_often(properties: Mapping[str, str]) -> None:
    """Let the broker's cleaner look for work all the time."""
    entry = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=AlterConfigOpType.SET)
    _alter(properties, ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry]))


def keep_tombstones(properties: Mapping[str, str], topic: str, milliseconds: int) -> None:
    value = ConfigEntry("delete.retention.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET)
    _alter(properties, ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[value]))


def _alter(properties: Mapping[str, str], resource: ConfigResource) -> None:
    admin = AdminClient({"bootstrap.servers": properties["bootstrap.servers"]})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


class Compacted:
    """A topic of segments of one record each, which Kafka compacts up to the last one."""

    def __init__(self, rig: Rig, partitions: int = 1, kept_ms: int = DAY, policy: str = "compact"):
        self.rig, self.partitions = rig, partitions
        self.name = f"compacted-{uuid4().hex[:12]}"
        configs = {
            "cleanup.policy": policy,
            "segment.ms": "1",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": str(kept_ms),
        }
        made = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        rig.client.admin.create_topics({self.name: made}, wait_for_metadata=True)
        # It outlives the broker, and would say so.
        settings = {"acks": "all", "linger.ms": 0, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": rig.kafka["bootstrap.servers"], **settings})
        self.last: dict[str, str] = {}
        """{key: its last value}, of those that are not deleted."""

    def put(self, key: str, value: str | None) -> None:
        """One record, in a segment of its own; without a value it is a tombstone."""
        said = None if value is None else b'{"v": "%s"}' % value.encode()
        self._producer.produce(self.name, said, key=key.encode(), partition=sum(key.encode()) % self.partitions)
        assert self._producer.flush(30) == 0
        self.last.pop(key, None)
        if value is not None:
            self.last[key] = value

    def left(self, partition: int = 0) -> list[tuple[int, str, bool]]:
        """(offset, key, whether it has a value) of what is there."""
        found = self.rig.client.offsets(self.spec.source)
        range_ = OffsetRange(self.name, partition, found.beginning[partition], found.stable[partition])
        origins = {self.name: Origin(compacted=True)}
        with ColumnarSource(self.rig.kafka, origins).read([range_]) as reading:
            return [
                (row["_offset"], row["_key"].decode(), row["_value"] is not None)
                for batch in reading
                for row in batch.to_pylist()
            ]

    def clean(self) -> None:
        """Wait until all but the last segment of each partition is compacted."""

        def is_clean() -> bool:
            for partition in range(self.partitions):
                keys = [key for _, key, _ in self.left(partition)[:-1]]
                if len(set(keys)) < len(keys):
                    return False
            return True

        until("the topic is compacted", is_clean, 60)

    @property
    def spec(self) -> Pipeline:
        return Pipeline(
            name="p",
            source=Topic(self.name, key="k string", value=Json("v string"), tombstones="delete", compacted=True),
            sinks=[Upsert("last", key="k string", columns="v string")],
            max_records=1_000,
            slice_records=1_000,
            max_in_flight=4,
        )

    def take(self, run: str) -> None:
        """A run that commits what is there."""
        works = self.rig.begin(self.spec, run)
        self.finish(run, works)

    def finish(self, run: str, works) -> None:
        """The slices, the commit and the end of a run that has begun."""
        for work in works:
            self.rig.check(self.spec, work, self.rig.run(self.spec, work))
        assert isinstance(commit(self.rig.ledger, self.spec, self.rig.claim), Committed)
        settle(self.rig.ledger, self.spec, Run("dag", run), succeeded=True)

    def rows(self) -> dict[str, str]:
        """{key: value} of the table."""
        with psycopg.connect(self.rig.ledger.url) as conn:
            return dict(conn.execute("select k, v from last").fetchall())
