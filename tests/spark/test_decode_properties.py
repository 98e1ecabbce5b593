"""Any message at all, through Kafka, Spark and the stage: the rows that Python reads in it, or a dead letter.

The messages are generated anew each time; `RATCHET_DECODE_SEED=…` repeats those of a run, `RATCHET_DECODE_MESSAGES=…`
says how many there are for each of the topics. `tests/formats/test_messages.py` has many more, without the servers.
"""

from __future__ import annotations

import json
import os
import random
import re
from base64 import b64decode

import pytest
from kafka import KafkaProducer

from ratchet import Append, Pipeline, Topic
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.formats.messages import Message, messages
from tests.formats.test_messages import fault_of
from tests.formats.topics import TIMESTAMP, TOPICS

from .rig import SINK, Rig, address, every

SEED = int(os.environ.get("RATCHET_DECODE_SEED") or random.SystemRandom().randrange(10**6))
MESSAGES = int(os.environ.get("RATCHET_DECODE_MESSAGES") or 600)
REASONS = re.compile(
    r"no value \(a tombstone\)$|no key$|(the value|the key|row \d+|key row \d+): found .*, wanted "
    r"|(row \d+, |key row \d+, )?(key )?column [\w.\[\]'\\ -].*: found .*, wanted ",
    re.DOTALL,
)
"""How a dead letter's reason begins, as docs/bad-input.md says."""


@pytest.mark.parametrize("kind", TOPICS)
def test_every_message_is_the_rows_that_python_reads_or_a_dead_letter_with_its_bytes(rig, kind):
    print(f"RATCHET_DECODE_SEED={SEED}")
    name = rig.topic(partitions=2)
    declared = TOPICS[kind]
    source = Topic(name, value=declared.value, key=declared.key, tombstones=declared.tombstones)
    columns = ", ".join(f"{c.name} {c.type}" for c in source.columns)
    spec = Pipeline(name="p", source=source, transform=address(every), sinks=[Append(SINK, columns=columns)])
    sent = send(rig, name, messages(source, MESSAGES, random.Random(f"{SEED} {kind}")))
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    staged, dead = rig.written(work, SINK), rig.written(work, DEAD_LETTERS)
    rows: dict[tuple[int, int], list[dict]] = {}
    for row in sorted(staged, key=lambda r: r["_n"]):
        rows.setdefault(place(row), []).append(row)
    letters = {place(row): row for row in dead}
    assert len(letters) == len(dead) and rows.keys() | letters.keys() <= sent.keys()
    assert (vote.records, vote.dead_letters) == (len(sent), len(dead))
    faults = (fault(source, message, rows.get(at, []), letters.get(at)) for at, message in sent.items())
    wrong = [said[:3_000] for said in faults if said]
    assert not wrong, "\n".join((f"RATCHET_DECODE_SEED={SEED}", f"{len(wrong)} of {len(sent)} messages", *wrong[:10]))
    # Else the messages would show little.
    assert min(len(rows), len(dead)) > MESSAGES / 8
    rig.check(spec, work, vote)


def send(rig: Rig, topic: str, made) -> dict[tuple[int, int], Message]:
    """{(partition, offset): the message that is there}."""
    producer = KafkaProducer(bootstrap_servers=rig.kafka["bootstrap.servers"], acks="all", linger_ms=50)
    at = int(TIMESTAMP.timestamp() * 1000)
    sent = [
        (
            m,
            producer.send(topic, m.value, key=m.key, headers=list(m.headers), partition=number % 2, timestamp_ms=at),
        )
        for number, m in enumerate(made)
    ]
    producer.flush()
    found = {(f.get(60).partition, f.get(60).offset): m for m, f in sent}
    producer.close()
    return found


def place(row: dict) -> tuple[int, int]:
    return row["_partition"], row["_offset"]


def fault(source: Topic, message: Message, rows: list[dict], letter: dict | None) -> str | None:
    """What is wrong with what became of a message."""
    if letter is None:
        return fault_of(source, message, rows, None)
    kept = [
        (h["key"] if "key" in h else b64decode(h["key_base64"]).decode(), b64decode(h["value"]))
        for h in json.loads(letter["headers"] or "[]")
    ]
    if kept != [*message.headers]:
        return f"{message}: its dead letter has the headers {kept}"
    if not REASONS.match(letter["error"]):
        return f"{message}: its dead letter has the reason {letter['error']!r}"
    if rows:
        return f"{message}: it is a row and a dead letter"
    return fault_of(source, message, [], {"_record": letter, "error": letter["error"]})
