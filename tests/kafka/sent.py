"""A pipeline whose rows go to a Kafka topic too, and what a reader of that topic is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from sqlalchemy import select

from ratchet import Append, Json, KafkaTopic, Pipeline, Topic
from ratchet.destinations.kafka_marks import key_of
from ratchet.destinations.kafka_producer import HEADER
from ratchet.destinations.port import Destination, Mark, Outside, Owner
from ratchet.errors import SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.follow import look
from ratchet.sinks.lookup import sink_of
from ratchet.spec.subscription import MARKS
from ratchet.values.endpoint import Endpoint
from tests.ledger.staging import Log, do, start


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    said: dict[str, str | int]
    """What its header tells of it."""

    @property
    def place(self) -> tuple[int, int, int, int]:
        """(txid, partition, offset, n) of the row."""
        return self.said["txid"], self.said["partition"], self.said["offset"], self.said["n"]


def read(properties: dict[str, str], topic: str, *, level: str = "read_committed", partitions: int = 3) -> list[Record]:
    """Every record of a topic up to where such a reader comes, by partition and offset."""
    settings = {"group.id": "witness", "isolation.level": level, "enable.auto.commit": False}
    # At the end brokers would wait half a second for more, before they say that it is the end.
    settings |= {"enable.partition.eof": True, "fetch.wait.max.ms": 20}
    reader = Consumer({"bootstrap.servers": properties["bootstrap.servers"], **settings})
    reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found, ended = [], set()
    while len(ended) < partitions:
        message = reader.poll(30)
        assert message is not None, "no answer"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
            continue
        headers = dict(message.headers() or ())
        said = json.loads(headers.pop(HEADER, b"{}"))
        assert not headers
        found.append(Record(message.partition(), message.offset(), message.key(), message.value(), said))
    reader.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


def spec_of(topic: str, name: str = "line", **changed) -> Pipeline:
    to = KafkaTopic(topic, key="k")
    return Pipeline(
        name=name,
        source=Topic("t", value=Json("a bigint")),
        transform="tests.ledger.staging:rows_of",
        sinks=[Append(f"rows_of_{name}", columns="k string, a bigint", to=to)],
        max_records=20,
        slice_records=10,
        **changed,
    )


def made(partition: int, offset: int) -> dict[str, list[dict]]:
    """The row of a record: one of three keys, or none."""
    return {"k": ("x", "y", "z", None)[offset % 4], "a": 100 * partition + offset}


@dataclass
class Sent:
    """A ledger with a pipeline, and its topic."""

    ledger: Ledger
    properties: dict[str, str]
    spec: Pipeline
    log: Log = field(default_factory=lambda: Log(stable={0: 200, 1: 200}))
    opened: list[str] = field(default_factory=list)
    registries: dict[str, Endpoint] = field(default_factory=dict)

    @property
    def destination(self) -> KafkaTopic:
        return self.spec.sinks[0].destinations[0]

    @property
    def topic(self) -> str:
        return self.destination.name

    def opens(self, destination: Destination, owner: Owner) -> AbstractContextManager[Outside]:
        self.opened.append(destination.address)
        return destination.open(owner, json.dumps(self.properties), self.registries)

    def prepare(self, run: str, make: Callable = made) -> Begun:
        """A transaction that can be committed; every record gives the row that `make` says."""
        begun = start(self.ledger, self.spec, self.log, run)
        do(self.ledger, self.spec, begun, lambda p, o: {self.spec.sinks[0].name: [make(p, o)]})
        return begun

    def commit(self, begun: Begun):
        outcome = commit(self.ledger, self.spec, begun.claim, self.opens)
        assert isinstance(outcome, Committed), outcome
        return outcome

    def run(self, run: str, make: Callable = made) -> Begun:
        """A transaction that is committed, and sent."""
        begun = self.prepare(run, make)
        self.commit(begun)
        return begun

    def only_commit(self, run: str, make: Callable = made) -> None:
        """A transaction that is committed, and that no destination has."""
        begun = self.prepare(run, make)
        with pytest.raises(SettingsError, match="no connection to it is known here"):
            commit(self.ledger, self.spec, begun.claim)

    def look(self) -> Mark | None:
        """What somebody sees who does not send."""
        with self.ledger.begin() as conn:
            (of,) = steps.destinations_of(conn, self.spec.name)
        return look(self.ledger, self.spec, self.opens, of)

    def records(self, level: str = "read_committed") -> list[Record]:
        return read(self.properties, self.topic, level=level)

    def rows(self) -> list[tuple]:
        """(txid, partition, offset, n, *columns) of what the ledger has, in the order of the line."""
        sink = sink_of(self.spec, self.spec.sinks[0].name)
        of = sink.target.c
        place = [of._txid, of._partition, of._offset, of._n]
        with self.ledger.begin() as conn:
            found = conn.execute(select(*place, *(of[c.name] for c in sink.fields)).order_by(*place))
            return [tuple(row) for row in found]

    def is_whole(self) -> None:
        """The topic has every row of the ledger once, those of a key in the order of the line."""
        rows, records = self.rows(), self.records()
        assert sorted(record.place for record in records) == [row[:4] for row in rows]
        for key in {row[4] for row in rows} - {None}:
            of_key = [record for record in records if record.key == key.encode()]
            assert [record.place for record in of_key] == [row[:4] for row in rows if row[4] == key]
            assert len({record.partition for record in of_key}) == 1
        values = {record.place: json.loads(record.value) for record in records}
        assert values == {row[:4]: {"k": row[4], "a": row[5]} for row in rows}

    @property
    def mark(self) -> dict | None:
        found = [r for r in read(self.properties, MARKS, partitions=1) if r.key == key_of(self.spec.name, self.topic)]
        return json.loads(found[-1].value) if found and found[-1].value else None

    def write_mark(self, value: bytes | None, key: bytes | None = None) -> None:
        """What somebody else writes among the marks."""
        producer = Producer({"bootstrap.servers": self.properties["bootstrap.servers"]})
        producer.produce(MARKS, value, key or key_of(self.spec.name, self.topic), partition=0)
        assert producer.flush(30) == 0


def sending(ledger: Ledger, properties: dict[str, str], spec: Pipeline) -> Sent:
    migrate(ledger.url, [spec])
    return Sent(ledger, properties, spec)
