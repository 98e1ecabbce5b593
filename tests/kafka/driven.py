"""Lines over real topics, of which tests do what runs would: records come, a run begins, its transaction commits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kafka import KafkaProducer

from ratchet import Pipeline
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.source.kafka import Kafka
from tests.ledger.staging import always_active, do


def send(
    properties: dict[str, str], topic: str, records: int, *, partitions: int = 1, at_ms: int | None = None
) -> None:
    """So many records `{"a": n}`, in turn to each of the first partitions."""
    producer = KafkaProducer(bootstrap_servers=properties["bootstrap.servers"], acks="all")
    for n in range(records):
        producer.send(topic, b'{"a": %d}' % n, partition=n % partitions, timestamp_ms=at_ms)
    producer.flush()
    producer.close()


@dataclass
class Driven:
    """A ledger and a broker."""

    ledger: Ledger
    client: Kafka
    properties: dict[str, str]

    def begin(self, spec: Pipeline, run: str) -> Begun:
        """A run's begin, which must give a transaction."""
        offsets = partial(self.client.offsets, spec.source)
        begun = begin(self.ledger, spec, Run(spec.name, run), offsets, always_active)
        assert isinstance(begun, Begun), begun
        return begun

    def finish(self, spec: Pipeline, begun: Begun, run: str) -> None:
        """Its slices, its commit and its end."""
        do(self.ledger, spec, begun, lambda p, o: {spec.sinks[0].name: [{"a": o}]})
        commit(self.ledger, spec, begun.claim)
        settle(self.ledger, spec, Run(spec.name, run), succeeded=True)
