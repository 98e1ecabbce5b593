"""What is committed and sent to a destination, beside Structured Streaming's own sinks for the same."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.backlog import COLUMNS, Backlog
from benchmarks.bench import Aim, Bench, Contestant, Figures, Work
from benchmarks.drain import drained
from benchmarks.streaming import Sink
from ratchet import Append, DeltaLake, Files, Iceberg, Json, KafkaTopic
from ratchet.destinations.port import Destination
from ratchet.errors import StageMismatch
from ratchet.formats.port import Use, decoder_of
from ratchet.ledger.work import OffsetRange
from ratchet.protocol.follow import Open
from ratchet.source.columnar import ColumnarSource
from ratchet.source.kafka import Kafka

_SENT = "bench_sent_"
"""Topics that are sent to begin so; producers that stay warm ask for them as long as they are used."""
RATCHET, STREAMING, LOOP, ALONE = "ratchet", "Structured Streaming", "a bare loop", "ratchet, no destination"


def _measure(sink: Sink | None, work: Callable[[Bench, Backlog], dict[str, float]], bench: Bench) -> Figures:
    """ratchet with the destination and without, and the others that there are, by turns."""
    contestants: list[Contestant] = [partial(work, bench), partial(_alone, bench)]
    if sink is not None:
        contestants.append(partial(_streaming, bench, sink))
    if sink == "kafka":
        contestants.append(partial(_loop, bench))
    figures = bench.alternate(bench.backlog(bench.records), contestants)
    with Kafka(bench.stack.kafka) as client:
        client.admin.delete_topics([topic for topic in client.admin.list_topics() if topic.startswith(_SENT)])
    return figures


def _alone(bench: Bench, backlog: Backlog) -> dict[str, float]:
    seconds, _ = drained(bench.stack, backlog, Append("bench_sent", columns=COLUMNS))
    return {ALONE: seconds}


def _drained(bench: Bench, backlog: Backlog, to: Destination, by: str = "") -> dict[str, float]:
    opens: Open = lambda destination, owner: destination.open(owner, by)  # noqa: E731
    seconds, _ = drained(bench.stack, backlog, Append("bench_sent", columns=COLUMNS, to=to), opens=opens)
    return {RATCHET: seconds}


def _kafka(bench: Bench, backlog: Backlog) -> dict[str, float]:
    topic = _topic(bench)
    took = _drained(bench, backlog, KafkaTopic(topic, key="account"), json.dumps(bench.stack.kafka))
    _check(_of_topic(bench, topic), backlog)
    return took


def _parquet(bench: Bench, backlog: Backlog) -> dict[str, float]:
    place = _place(bench)
    took = _drained(bench, backlog, Files(str(place)))
    _check(ds.dataset(place / "data", format="parquet").to_table(), backlog)
    return took


def _delta(bench: Bench, backlog: Backlog) -> dict[str, float]:
    place = _place(bench)
    took = _drained(bench, backlog, DeltaLake(str(place)))
    _check(_of_delta(place), backlog)
    return took


def _iceberg(bench: Bench, backlog: Backlog) -> dict[str, float]:
    place = _place(bench)
    place.mkdir()
    uri = bench.url.replace("postgresql://", "postgresql+psycopg://")
    properties = {"type": "sql", "uri": uri, "warehouse": place.as_uri()}
    name = f"bench.sent_{time.time_ns()}"
    took = _drained(bench, backlog, Iceberg(name, catalog="lakehouse"), json.dumps(properties))
    table = SqlCatalog("lakehouse", **properties).load_table(name)
    _check(table.scan().to_arrow(), backlog)
    return took


def _streaming(bench: Bench, sink: Sink, backlog: Backlog) -> dict[str, float]:
    if sink == "kafka":
        topic = _topic(bench)
        seconds = bench.driver.send(backlog, sink, topic)
        found = _of_topic(bench, topic)
    else:
        place = _place(bench)
        seconds = bench.driver.send(backlog, sink, str(place))
        found = _of_delta(place) if sink == "delta" else _of_streaming(place)
    _check(found, backlog)
    return {STREAMING: seconds}


def _loop(bench: Bench, backlog: Backlog) -> dict[str, float]:
    """Values as they are, in transactions of as many records; nothing is decoded, and no key is found."""
    topic = _topic(bench)
    producer = Producer(
        {
            "bootstrap.servers": bench.stack.kafka["bootstrap.servers"],
            "transactional.id": f"bench-loop-{time.time_ns()}",
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.init_transactions()
    started = time.monotonic()
    for ranges in backlog.plans:
        producer.begin_transaction()
        for batch in ColumnarSource(bench.stack.kafka).read(ranges):
            for value in batch.column("_value").to_pylist():
                while True:
                    try:
                        producer.produce(topic, value)
                        break
                    except BufferError:
                        producer.poll(0.1)
        producer.commit_transaction()
    seconds = time.monotonic() - started
    _check(_of_topic(bench, topic), backlog)
    return {LOOP: seconds}


def _topic(bench: Bench) -> str:
    """A new one."""
    topic = f"{_SENT}{time.time_ns()}"
    with Kafka(bench.stack.kafka) as client:
        client.admin.create_topics({topic: {"num_partitions": 4, "replication_factor": 1}}, wait_for_metadata=True)
    return topic


def _place(bench: Bench) -> Path:
    """A directory that is not there; that of the contestant before is removed."""
    place = bench.stack.home / "sent"
    shutil.rmtree(place, ignore_errors=True)
    return place


def _of_topic(bench: Bench, topic: str) -> pa.Table:
    with Kafka(bench.stack.kafka) as client:
        stable = client.offsets(topic).stable
        ranges = [OffsetRange(topic, partition, 0, until) for partition, until in stable.items() if until]
        decoder = decoder_of(Json(COLUMNS), Use())
        read = [decoder.decode(b.column("_value")).columns for b in ColumnarSource(bench.stack.kafka).read(ranges)]
    return pa.Table.from_batches(read)


def _of_delta(place: Path) -> pa.Table:
    return pa.table(DeltaTable(place).to_pyarrow_table())


def _of_streaming(place: Path) -> pa.Table:
    """What its log says; readers of all files would see those of a batch that failed as well."""
    return ds.dataset(place, format="parquet", exclude_invalid_files=False).to_table()


def _check(found: pa.Table, backlog: Backlog) -> None:
    """StageMismatch unless it is every record of the backlog once."""
    cents = pc.cast(pc.round(pc.multiply(found["amount"], 100)), pa.int64())
    sums = [pc.sum(found["id"]).as_py(), pc.sum(found["score"]).as_py(), pc.sum(cents).as_py()]
    said = [found.num_rows, pc.count_distinct(found["id"]).as_py(), *sums]
    wanted = [backlog.records, backlog.records, *(int(n.sum()) for n in (backlog.ids, backlog.scores, backlog.cents))]
    if said != wanted:
        raise StageMismatch(f"(rows, ids, sums of id, score, cents) are {said}, and should be {wanted}")


_SERVERS = frozenset({"postgres", "kafka", "connect"})
KAFKA = Work(
    "Kafka to Kafka",
    _SERVERS,
    partial(_measure, "kafka", _kafka),
    (Aim(RATCHET, "times as fast as", 1, STREAMING), Aim(RATCHET, "times as fast as", 0.7, LOOP)),
)
PARQUET = Work(
    "Kafka to Parquet",
    _SERVERS,
    partial(_measure, "parquet", _parquet),
    (Aim(RATCHET, "times as fast as", 2, STREAMING),),
)
DELTA = Work(
    "Kafka to Delta Lake",
    _SERVERS,
    partial(_measure, "delta", _delta),
    (Aim(RATCHET, "times as fast as", 2, STREAMING),),
)
ICEBERG = Work("Kafka to Iceberg", _SERVERS, partial(_measure, None, _iceberg), ())
