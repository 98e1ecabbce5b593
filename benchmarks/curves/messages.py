"""An Append of messages of 50 bytes to 100 KB: a number, and a text that fills the rest."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.backlog import PARTITIONS, produce
from benchmarks.bench import Bench
from benchmarks.curves.curve import Curve, Points, by_turns
from benchmarks.drain import Drain
from benchmarks.table import SLICE, check_range, renew
from ratchet import Append, Json, Pipeline, Topic
from ratchet.errors import UnknownTopic
from ratchet.source.kafka import Kafka

SIZES = (50, 100, 500, 1_000, 10_000, 100_000)
VOLUME = 200_000_000
"""The bytes of each topic; smaller messages are at most a quarter of the bench's records."""
SINK = Append("bench_messages", columns="id bigint, text string")


def measure(bench: Bench) -> Points:
    """In MB of JSON a second, since rows say nothing of messages that differ two thousandfold."""
    return by_turns(bench, "Append", {size: partial(_rate, bench, size) for size in SIZES})


def _rate(bench: Bench, size: int) -> float:
    records = min(bench.records // 4, VOLUME // size) // PARTITIONS * PARTITIONS
    topic = f"bench_messages_{size}_{records}"
    _fill(bench, topic, size, records)
    spec = Pipeline(
        name=f"bench_messages_{time.time_ns() // 10**6}",
        source=Topic(topic, value=Json("id bigint, text string")),
        sinks=[SINK],
        max_records=2 * SLICE,
        slice_records=SLICE,
        max_in_flight=2,
    )
    renew(bench.url, spec)
    seconds = Drain(bench.url, bench.stack.kafka, bench.stack.spark, spec).run()
    until = dict.fromkeys(range(PARTITIONS), records // PARTITIONS)
    check_range(bench.url, SINK.name, dict.fromkeys(until, 0), until)
    return records * size / seconds / 1e6


def _fill(bench: Bench, topic: str, size: int, records: int) -> None:
    with Kafka(bench.stack.kafka) as client:
        try:
            client.offsets(topic)
        except UnknownTopic:
            made = ((n % PARTITIONS, _value(n, size)) for n in range(records))
            produce(bench.stack.kafka, topic, made, PARTITIONS)


def _value(n: int, size: int) -> bytes:
    head, foot = b'{"id":%d,"text":"' % (10**7 + n), b'"}'
    # Text that does not shrink to nothing: every message has other words.
    words = b"%x " % (n * 2_654_435_761 % 2**32)
    room = size - len(head) - len(foot)
    return head + (words * (room // len(words) + 1))[:room] + foot


CURVE = Curve("Bytes of a message", "bytes", "MB/s", frozenset({"postgres", "kafka", "connect"}), measure)
