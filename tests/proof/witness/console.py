"""A topic as Kafka's own console consumer reads it: a program in Java that shares nothing with the product."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, TopicPartition
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from ratchet.dev.stack import CHECKOUT, prerequisites

_BYTE = re.compile(rb"\\x([0-9A-F]{2})")

Record = tuple[int, int, bytes | None, bytes | None]
"""A partition, an offset, a key, a value."""


class Unread(Exception):
    """The console consumer has not read all that is in the topic, so nothing can be said of the sinks."""


def read(kafka: Mapping[str, str], topic: str, idle_seconds: float = 10) -> Iterator[Record]:
    """The committed records of a topic, from its beginning to its end, in order within each partition.

    `kafka` are client properties by their Java names. The consumer ends when it gets nothing for `idle_seconds`. Raises
    Unread, after the last record, unless it has then committed the last stable offset of every partition, printed what
    it says it did, and all transactions are decided; this also before the first.
    """
    begun = _decided(kafka, topic)
    for seconds in (idle_seconds, 3 * idle_seconds):
        group, last = f"witness-{uuid4().hex}", {}
        # The first group of a broker waits until the topic of offsets is made, which must not count as idle time.
        _committed(kafka, topic, group, begun)
        yield from _printed(kafka, topic, group, last, seconds)
        # On a machine that is busy its time may be over before it was given its partitions.
        is_empty = all(first == end for first, end in begun.values())
        if last or is_empty or any(_committed(kafka, topic, group, begun).values()):
            break
    _check_end(kafka, topic, group, last)


def _printed(
    kafka: Mapping[str, str], topic: str, group: str, last: dict[int, int], idle_seconds: float
) -> Iterator[Record]:
    """What the console consumer prints; `last` is {partition: offset} of the last record of each."""
    null, printed = uuid4().hex.encode(), 0
    command = _command(kafka, topic, group, null.decode(), idle_seconds)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, bufsize=2**20
        )
        try:
            for line in process.stdout:
                place, offset, key, value = line.rstrip(b"\n").split(b"\t")
                record = int(place[10:]), int(offset[7:]), _bytes(key, null), _bytes(value, null)
                if record[1] <= last.get(record[0], -1):
                    raise Unread(f"{topic}-{record[0]}: offset {record[1]} follows {last[record[0]]}")
                last[record[0]] = record[1]
                printed += 1
                yield record
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    if status or f"Processed a total of {printed} messages" not in said:
        raise Unread(f"{topic}: the console consumer ended with {status} after {printed} records: {said[-2000:]}")


def is_decided(kafka: Mapping[str, str], topic: str) -> bool:
    """Whether every Kafka transaction that has written to the topic is committed or aborted."""
    return ends(kafka, topic, "read_committed") == ends(kafka, topic, "read_uncommitted")


def _command(kafka: Mapping[str, str], topic: str, group: str, null: str, idle_seconds: float) -> list[str]:
    jars = prerequisites.jars(CHECKOUT, "broker")
    properties = {**kafka, "auto.offset.reset": "earliest", "max.poll.records": "5000", "fetch.min.bytes": "1"}
    servers = properties.pop("bootstrap.servers")
    # This deserializer prints what is not printable ASCII, and the backslash, as \xHH.
    exact = "org.apache.kafka.common.serialization.BytesDeserializer"
    formatted = {
        **{f"print.{part}": "true" for part in ("partition", "offset", "key", "value")},
        **{f"{part}.deserializer": exact for part in ("key", "value")},
        "null.literal": null,
    }
    return [
        *(str(_java()), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", str(jars[0].parent / "*")),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", servers, "--topic", topic, "--group", group, "--from-beginning"),
        *("--isolation-level", "read_committed", "--timeout-ms", str(int(idle_seconds * 1000))),
        *(f"--command-property={name}={value}" for name, value in properties.items()),
        *(f"--formatter-property={name}={value}" for name, value in formatted.items()),
    ]


@cache
def _java() -> Path:
    return prerequisites.java()


def _bytes(printed: bytes, null: bytes) -> bytes | None:
    if b"\\" in printed:
        return _BYTE.sub(lambda found: bytes.fromhex(found[1].decode()), printed)
    return None if printed == null else printed


def _check_end(kafka: Mapping[str, str], topic: str, group: str, last: Mapping[int, int]) -> None:
    """Unread unless the group's offsets, which go past markers and aborted records, are where the topic ends."""
    high = _decided(kafka, topic)
    reached = _committed(kafka, topic, group, high)
    if reached != {p: end for p, (_, end) in high.items()}:
        raise Unread(f"{topic} ends at {high}, and the console consumer has come to {reached}")
    if any(start for start, _ in high.values()):
        raise Unread(f"{topic} has lost its beginning: {high}")
    if any(offset >= high[p][1] for p, offset in last.items()):
        raise Unread(f"{topic} ends at {high}, and the console consumer has printed {dict(last)}")


def _decided(kafka: Mapping[str, str], topic: str) -> dict[int, tuple[int, int]]:
    """The ends of a topic; Unread if they are not those that readers of committed records see."""
    stable, high = (ends(kafka, topic, isolation) for isolation in ("read_committed", "read_uncommitted"))
    if stable != high:
        raise Unread(f"{topic}: a Kafka transaction is undecided: stable up to {stable}, written up to {high}")
    return high


def ends(kafka: Mapping[str, str], topic: str, isolation: str) -> dict[int, tuple[int, int]]:
    """{partition: (first offset, last stable offset, or the end where the isolation is read_uncommitted)}."""
    consumer = Consumer({**kafka, "group.id": "witness", "isolation.level": isolation})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30) for p in sorted(partitions)}
    finally:
        consumer.close()


def _committed(kafka: Mapping[str, str], topic: str, group: str, partitions: Iterable[int]) -> dict[int, int]:
    """{partition: offset} of a consumer group; 0 where it has none, as in a partition that is empty."""
    consumer = Consumer({**kafka, "group.id": group})
    try:
        wanted = [TopicPartition(topic, p) for p in partitions]
        # A broker that has just begun to coordinate a group says for a moment that it does not.
        found = Retrying(retry=retry_if_exception_type(KafkaException), stop=stop_after_delay(30), reraise=True)(
            lambda: consumer.committed(wanted, timeout=30)
        )
        return {at.partition: max(0, at.offset) for at in found}
    finally:
        consumer.close()
