"""The waiting backlog: a topic of two partitions with so many JSON records of 77 bytes, filled once."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from ratchet.dev.stack import CHECKOUT, prerequisites
from ratchet.errors import StackError, UnknownTopic
from ratchet.ledger.work import OffsetRange
from ratchet.protocol.plan import plan
from ratchet.source.kafka import Kafka

COLUMNS = "id bigint, account string, amount double, score int, kind string"
BYTES = 77
PARTITIONS = 2
_DISTINCT = 100_000


def fill(properties: dict[str, str], records: int, home: Path) -> str:
    """The name of the topic that holds exactly `records` records; StackError if it holds others."""
    topic = f"bench_{records}"
    with Kafka(properties) as kafka:
        try:
            kafka.offsets(topic)
        except UnknownTopic:
            kafka.admin.create_topics(
                {topic: {"num_partitions": PARTITIONS, "replication_factor": 1, "configs": {"retention.ms": "-1"}}},
                wait_for_metadata=True,
            )
            _produce(properties, topic, records, _payloads(home))
        held = sum(kafka.offsets(topic).stable.values())
    if held != records:
        raise StackError(f"topic {topic} holds {held:,} records, not {records:,}; remove {home} and try again")
    return topic


def plans(properties: dict[str, str], topic: str, cap: int) -> list[list[OffsetRange]]:
    """The ranges of each transaction of at most `cap` records, as begin plans them one after the other."""
    with Kafka(properties) as kafka:
        offsets = kafka.offsets(topic)
    found: list[list[OffsetRange]] = []
    previous: dict[int, int] = {}
    while ranges := plan(previous, offsets, cap):
        found.append(ranges)
        previous |= {r.partition: r.until_offset for r in ranges}
    return found


def _payloads(home: Path) -> Path:
    """A file of distinct values, one a line, each of exactly BYTES bytes."""
    file = home / "payloads.jsonl"
    chance = random.Random(7)
    kinds = ("card", "cash", "wire")
    with file.open("w") as out:
        for number in range(_DISTINCT):
            account, amount = chance.randrange(10_000, 100_000), chance.randrange(100_000, 1_000_000) / 100
            line = (
                f'{{"id":{1_000_000 + number},"account":"a-{account}","amount":{amount:.2f},'
                f'"score":{chance.randrange(100, 1000)},"kind":"{chance.choice(kinds)}"}}'
            )
            if len(line) != BYTES:
                raise ValueError(f"a record of {len(line)} bytes: {line}")
            out.write(line + "\n")
    return file


def _produce(properties: dict[str, str], topic: str, records: int, payloads: Path) -> None:
    jars = prerequisites.jars(CHECKOUT, "broker")
    command = [str(prerequisites.java()), "-Xmx512m", "-cp", str(jars[0].parent / "*")]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records)]
    command += ["--throughput", "-1", "--payload-file", str(payloads)]
    command += ["--bootstrap-server", properties["bootstrap.servers"], "--command-property"]
    command += ["compression.type=lz4", "batch.size=131072", "linger.ms=20", "acks=all"]
    # Else the partitions' sizes would follow the broker's moods.
    command += ["partitioner.adaptive.partitioning.enable=false"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise StackError(f"the backlog was not produced: {(done.stderr or done.stdout).strip()[-500:]}")
