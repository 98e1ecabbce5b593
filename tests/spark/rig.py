"""A topic, a ledger and a session of Spark, what a run does with them, and the spec and records of most such tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

import psycopg
from kafka import KafkaProducer
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from ratchet import Append, Json, Pipeline, Sql, Topic
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run, SliceWork, Vote
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.votes import cast_vote, take_try
from ratchet.sinks.checksum import MODULUS, row_hash
from ratchet.sinks.lookup import sink_of
from ratchet.source.kafka import Kafka
from ratchet.spark.servers import Servers
from ratchet.spark.slice import run_slice
from ratchet.values.endpoint import Endpoint

SINK = "rows"


def every(df):
    """Every record into the one sink."""
    return {SINK: df}


@dataclass
class Rig:
    """A topic, a ledger and a session, and what a run does with them."""

    spark: object
    ledger: Ledger
    kafka: dict[str, str]
    client: Kafka
    endpoints: dict[str, Endpoint] = field(default_factory=dict)

    @property
    def servers(self) -> Servers:
        return Servers(self.kafka, self.endpoints)

    def topic(self, partitions: int = 1) -> str:
        name = f"slice-{uuid4().hex[:12]}"
        self.client.admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1}})
        return name

    def send(self, topic: str, *values: bytes | None, partition: int = 0, keys=None, headers=None) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.kafka["bootstrap.servers"], acks="all", max_request_size=4 * 2**20
        )
        for i, value in enumerate(values):
            key = keys[i] if keys else None
            producer.send(topic, value, key=key, partition=partition, headers=headers or [])
        producer.flush()
        producer.close()

    def begin(self, spec: Pipeline, run_id: str = "run", clears: int = 0) -> list[SliceWork]:
        """Plan a transaction, or revise that of a run that is cleared, and take the first try at each of its slices."""
        migrate(self.ledger.url, [spec])
        run = Run("dag", run_id, clears)
        begun = begin(self.ledger, spec, run, partial(self.client.offsets, spec.source), lambda *_: True)
        assert isinstance(begun, Begun), begun
        self.claim = begun.claim
        return [self.retry(spec, part.number) for part in begun.slices]

    def retry(self, spec: Pipeline, number: int = 0) -> SliceWork:
        work = take_try(self.ledger, spec, self.claim, number)
        assert isinstance(work, SliceWork), work
        return work

    def run(self, spec: Pipeline, work: SliceWork) -> Vote:
        return run_slice(self.spark, spec, work, self.ledger.url, self.servers)

    def written(self, work: SliceWork, sink: str) -> list[dict]:
        """All that is written of a slice's transaction, by whomever."""
        with psycopg.connect(self.ledger.url, row_factory=dict_row) as conn:
            conn.execute("set time zone 'UTC'")
            # What is voted for of jsonb is its text.
            conn.adapters.register_loader("jsonb", TextLoader)
            return conn.execute(
                sql.SQL("select * from {} where _txid = %s").format(sql.Identifier(*work.relations[sink])),
                [work.token.txid],
            ).fetchall()

    def check(self, spec: Pipeline, work: SliceWork, vote: Vote) -> None:
        """The vote says of each sink what is written, by writers, rows and checksum, and the ledger accepts it."""
        for name, said in vote.sinks.items():
            columns = sink_of(spec, name).written
            rows = [r for r in self.written(work, name) if r["_writer"] in said.writers]
            assert len(rows) == said.rows, name
            assert sum(row_hash(columns, [r[c.name] for c in columns]) for r in rows) % MODULUS == said.checksum, name
        cast_vote(self.ledger, spec, work.token, vote)


def address(transform: Callable) -> str:
    """A module's transform as a spec names it."""
    return f"{transform.__module__}:{transform.__name__}"


def spec_of(
    topic: str | list[str],
    transform: Callable | Sql | None = every,
    value: str = "a int, b string",
    sinks=None,
    **given,
) -> Pipeline:
    source = {k: given.pop(k) for k in ("key", "tombstones", "reader") if k in given}
    return Pipeline(
        name="p",
        source=Topic(topic, value=Json(value), **source),
        transform=address(transform) if callable(transform) else transform,
        sinks=sinks or [Append(SINK, columns=value)],
        **{"max_records": 100_000, "slice_records": 100_000, **given},
    )


def numbered(values) -> list[bytes]:
    return [b'{"a": %d}' % v for v in values]


def positions(rows: list[dict]) -> Counter:
    return Counter((r["_partition"], r["_offset"]) for r in rows)


def content(rows: list[dict]) -> Counter:
    return Counter((r["_partition"], r["_offset"], r["a"]) for r in rows)
