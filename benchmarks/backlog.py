"""The waiting backlog: topics with records in lz4, JSON of 77 bytes or Avro, filled once, and what they add up to.

Record `n` of a topic is made by a formula, so what a contestant has to leave behind is known without reading it back.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from confluent_kafka import Producer
from fastavro import parse_schema, schemaless_writer

from ratchet import Avro, Json
from ratchet.errors import StackError, UnknownTopic
from ratchet.formats.port import Format
from ratchet.ledger.work import OffsetRange
from ratchet.protocol.plan import plan
from ratchet.source.kafka import Kafka

COLUMNS = "id bigint, account string, amount double, score int, kind string"
Form = Literal["json", "avro"]
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "payment",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "account", "type": "string"},
            {"name": "amount", "type": "double"},
            {"name": "score", "type": "int"},
            {"name": "kind", "type": "string"},
        ],
    }
)
"""Of values in Avro, which have no frame."""
_PARSED = parse_schema(json.loads(SCHEMA))
BYTES = 77
"""Of a value in JSON."""
PARTITIONS = 4
ACCOUNTS = 1_000
KINDS = ("card", "cash", "wire")
CAP = 500_000
"""The most records of a transaction, and of a micro-batch."""
_FIRST_ID = 1_000_000
_PRODUCER = {"compression.type": "lz4", "linger.ms": 100, "batch.size": 1_000_000, "acks": 1}
_WAITING = 1_000_000
"""The most records that the producer keeps."""


@dataclass(frozen=True)
class Backlog:
    """A topic of `records` records; every id comes `times` times, once in each equal part of the topic."""

    kafka: dict[str, str]
    records: int
    times: int = 1
    partitions: int = PARTITIONS
    form: Form = "json"

    @property
    def topic(self) -> str:
        divided = f"_{self.partitions}" if self.partitions != PARTITIONS else ""
        return f"bench_{self.records}_{self.times}{divided}" + ("_avro" if self.form == "avro" else "")

    @property
    def format(self) -> Format:
        """The format of its values, as a spec has it."""
        return Json(COLUMNS) if self.form == "json" else Avro(COLUMNS, schema=SCHEMA)

    @property
    def part(self) -> int:
        """The records in which each id comes once."""
        return self.records // self.times

    @property
    def cap(self) -> int:
        """The most records of a transaction, which never reaches from one part into the next."""
        return min(CAP, self.part)

    def fill(self) -> None:
        """Make the topic; StackError if there is one with other records."""
        if self.part % self.partitions or self.part % self.cap:
            raise StackError(
                f"{self.part:,} records are no whole number of transactions, or not to be divided by {self.partitions}"
            )
        with Kafka(self.kafka) as client:
            try:
                client.offsets(self.topic)
            except UnknownTopic:
                made = ((n % self.partitions, self._value(n)) for n in range(self.records))
                produce(self.kafka, self.topic, made, self.partitions)
            held = sum(client.offsets(self.topic).stable.values())
        if held != self.records:
            raise StackError(f"topic {self.topic} holds {held:,} records, not {self.records:,}; delete it")

    @cached_property
    def plans(self) -> list[list[OffsetRange]]:
        """The ranges of each transaction, as begin plans them one after the other."""
        with Kafka(self.kafka) as client:
            offsets = client.offsets(self.topic)
        found: list[list[OffsetRange]] = []
        previous: dict[int, int] = {}
        while ranges := plan(previous, offsets, self.cap):
            found.append(ranges)
            previous |= {r.partition: r.until_offset for r in ranges}
        return found

    @cached_property
    def ids(self) -> np.ndarray:
        """The id of each record."""
        return _FIRST_ID + np.arange(self.records) % self.part

    @cached_property
    def scores(self) -> np.ndarray:
        """The score of each record: the same whenever its id comes."""
        return 100 + self.ids % 900

    @cached_property
    def cents(self) -> np.ndarray:
        """A hundred times the amount of each record."""
        return 100_000 + np.arange(self.records) * 31 % 900_000

    @cached_property
    def accounts(self) -> np.ndarray:
        """The number of each record's account."""
        return self.ids * 919 % ACCOUNTS

    def _value(self, n: int) -> bytes:
        number = _FIRST_ID + n % self.part
        cents = 100_000 + n * 31 % 900_000
        if self.form == "avro":
            written = io.BytesIO()
            words = f"a-{10_000 + number * 919 % ACCOUNTS}", KINDS[number % len(KINDS)]
            cells = {"id": number, "account": words[0], "amount": cents / 100, "kind": words[1]}
            schemaless_writer(written, _PARSED, {**cells, "score": 100 + number % 900})
            return written.getvalue()
        value = b'{"id":%d,"account":"a-%d","amount":%d.%02d,"score":%d,"kind":"%s"}' % (
            number,
            10_000 + number * 919 % ACCOUNTS,
            *divmod(cents, 100),
            100 + number % 900,
            KINDS[number % len(KINDS)].encode(),
        )
        assert len(value) == BYTES, value
        return value


def account(number: int) -> str:
    """An account as records name it."""
    return f"a-{10_000 + number}"


def produce(
    kafka: Mapping[str, str],
    topic: str,
    values: Iterable[tuple[int, bytes]],
    partitions: int,
    settings: Mapping[str, object] | None = None,
) -> None:
    """Make a topic that keeps these (partition, value) for ever, in batches as large as producers send."""
    with Kafka(dict(kafka)) as client:
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": {"retention.ms": "-1"}}
        client.admin.create_topics({topic: wanted}, wait_for_metadata=True)
    brokers = {"bootstrap.servers": kafka["bootstrap.servers"], "queue.buffering.max.messages": _WAITING}
    producer = Producer({**brokers, **_PRODUCER, **(settings or {})})
    for partition, value in _patiently(producer, values):
        producer.produce(topic, value, partition=partition)
    producer.flush()


def _patiently(producer: Producer, values: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The values, no faster than the producer sends them."""
    for n, value in enumerate(values):
        if n % 1_000 == 0:
            producer.poll(0)
            while len(producer) > _WAITING // 2:
                producer.poll(0.1)
        yield value
