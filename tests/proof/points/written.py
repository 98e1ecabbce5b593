"""What was written, by those that know nothing of the hook: PostgreSQL's own log, and Kafka's topic of offsets."""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition

from .inject.ratchet_points.naming import fingerprint
from .points import read_trace

DATABASE = "ratchet"
OFFSETS = "__consumer_offsets"
_LINE = re.compile(r"^(\d+)\|([^|]*)\|([^>]*)> ([A-Z]+):  (.*)$")
_SAID = re.compile(r"^(?:statement|execute [^:]+): (.*)$", re.DOTALL)


class Logged(NamedTuple):
    """A statement of which PostgreSQL's log tells: its process, who had said so, and its text."""

    backend: int
    application: str
    statement: str


def logged(log: Path) -> Iterator[Logged]:
    """Every statement in the ledger's database that PostgreSQL has begun to execute."""
    entry: list[str] = []
    head: tuple[int, str, str] | None = None
    for line in [*log.read_text(errors="replace").splitlines(), "0|||> LOG:  end"]:
        if found := re.match(r"^(\d+)\|([^|]*)\|([^>]*)> ", line):
            said = _SAID.match("\n".join(entry)) if head and head[1] == DATABASE else None
            if said:
                yield Logged(head[0], head[2], said.group(1))
            parts = _LINE.match(line)
            is_statement = parts is not None and parts.group(4) == "LOG"
            head = (int(found.group(1)), found.group(2), found.group(3)) if is_statement else None
            entry = [parts.group(5)] if is_statement else []
        else:
            entry.append(line)


def unseen(log: Path, trace: Path) -> list[Logged]:
    """The statements that PostgreSQL has executed and that no point stands for, told apart by its process.

    What this very process asks, to look at the tables, is none of the stack's.
    """
    # The log first: what is said meanwhile is then in the trace, which tells of it before.
    executed = list(logged(log))
    statements = [p for p in read_trace(trace) if p.point.side == "before" and p.backend is not None]
    seen = Counter((p.backend, p.statement) for p in statements)
    mine = {p.backend for p in statements if p.pid == os.getpid()}
    found = []
    for said in executed:
        key = (said.backend, fingerprint(said.statement.encode()))
        if seen[key]:
            seen[key] -= 1
        elif said.backend not in mine:
            found.append(said)
    return found


def group_writes(kafka: dict[str, str]) -> Counter[str]:
    """{consumer group: how often offsets of it were written}, read from the topic in which Kafka keeps them, if any."""
    reader = KafkaConsumer(bootstrap_servers=kafka["bootstrap.servers"], enable_auto_commit=False)
    # What is written at once has a record for each partition, all of one time.
    found: set[tuple[str, int]] = set()
    try:
        partitions = [TopicPartition(OFFSETS, p) for p in reader.partitions_for_topic(OFFSETS) or ()]
        if not partitions:
            return Counter()
        reader.assign(partitions)
        reader.seek_to_beginning(*partitions)
        ends = reader.end_offsets(partitions)
        while any(reader.position(tp) < end for tp, end in ends.items()):
            for records in reader.poll(timeout_ms=1000).values():
                found.update((group, r.timestamp) for r in records if (group := _group_of(r.key, r.value)))
    finally:
        reader.close()
    return Counter(group for group, _ in found)


def group_points(trace: Path) -> Counter[str]:
    """{consumer group: how often the hook saw its offsets being set}."""
    sets = (
        p
        for p in read_trace(trace)
        if p.point.side == "before" and "SET the offsets of a consumer group" in p.point.name
    )
    return Counter(f"ratchet-{p.pipeline}" for p in sets)


def _group_of(key: bytes | None, value: bytes | None) -> str | None:
    """The group of a record that sets an offset; other records tell of members, or are deletions."""
    if not key or value is None or struct.unpack(">h", key[:2])[0] not in (0, 1):
        return None
    (length,) = struct.unpack(">h", key[2:4])
    return key[4 : 4 + length].decode()
