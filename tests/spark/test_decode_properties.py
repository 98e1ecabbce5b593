"""Any message at all: a row with the values that Python reads in it, or a dead letter with its bytes and a reason.

The messages are generated anew each time; `RATCHET_DECODE_SEED=…` repeats those of a run, `RATCHET_DECODE_MESSAGES=…`
says how many there are for each of the topics.
"""

from __future__ import annotations

import json
import os
import random
import re
from base64 import b64decode
from collections import Counter

import pytest
from kafka import KafkaProducer

from ratchet import Append
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline

from .messages import Message, messages
from .reading import NoRow, agrees, read
from .rig import SINK, Rig, positions, spec_of

SEED = int(os.environ.get("RATCHET_DECODE_SEED") or random.SystemRandom().randrange(10**6))
MESSAGES = int(os.environ.get("RATCHET_DECODE_MESSAGES") or 21_000)
TOPICS = {
    "numbers": {"value": "a smallint, b int, c bigint, d float, e double, f boolean", "key": "k bigint"},
    "decimals": {
        "value": "a decimal(10,2), b decimal(38,10), c decimal(38,0), d decimal(38,38), e decimal(1,0), s string",
        "key": "k decimal(20,4)",
    },
    "texts": {"value": "s string, y binary, t timestamp, d date", "key": "k string"},
    "not null": {
        "value": "a int not null, b decimal(18,6), s string not null, t timestamp not null, y binary",
        "key": "k timestamp not null",
    },
    "deletions": {
        "value": "a bigint, s string, d date, x double, y decimal(5,5)",
        "key": "k decimal(38,10)",
        "tombstones": "delete",
    },
}
REASONS = re.compile(
    r"no value \(a tombstone\)|the value is not valid UTF-8|the value is not one JSON object with the declared types"
    r"|the value holds half of a surrogate pair|column \w+ is no |column \w+ is missing or null"
    r"|column \w+ holds U\+0000|column \w+: an exponent of more than 3 digits"
    r"|column \w+: a decimal is written with a comma|no key$|the key is not a .* in UTF-8 text|the key holds U\+0000"
)
"""How a dead letter's reason begins, as docs/bad-input.md says."""


@pytest.mark.parametrize("kind", TOPICS)
def test_every_message_is_the_row_that_python_reads_or_a_dead_letter_with_its_bytes(rig, kind):
    print(f"RATCHET_DECODE_SEED={SEED}")
    topic = rig.topic(partitions=2)
    declared = TOPICS[kind]
    spec = spec_of(topic, sinks=[Append(SINK, columns=f"{declared['key']}, {declared['value']}")], **declared)
    sent = send(rig, topic, messages(spec.source, MESSAGES, random.Random(f"{SEED} {kind}")))
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    rows, dead = rig.staged(work, SINK), rig.staged(work, DEAD_LETTERS)
    became = positions(rows) + positions(dead)
    unsure = [f"{m}: {became[at]} rows and dead letters" for at, m in sent.items() if became[at] != 1]
    assert not unsure, told(f"{len(unsure)} of {len(sent)} messages", *unsure[:20])
    assert became == Counter(sent.keys())
    assert (vote.records, vote.dead_letters) == (len(sent), len(dead))
    wrong = [fault for row in rows if (fault := fault_of_row(spec, row, sent[place(row)]))]
    wrong += [fault for letter in dead if (fault := fault_of_letter(spec, letter, sent[place(letter)]))]
    assert not wrong, told(f"{len(wrong)} of {len(sent)} messages", *wrong[:20])
    # Else the messages would show little.
    assert min(len(rows), len(dead)) > MESSAGES / 6
    rig.check(spec, work, vote)


def send(rig: Rig, topic: str, made) -> dict[tuple[int, int], Message]:
    """{(partition, offset): the message that is there}."""
    producer = KafkaProducer(bootstrap_servers=rig.kafka["bootstrap.servers"], acks="all", linger_ms=50)
    sent = [
        (m, producer.send(topic, m.value, key=m.key, headers=list(m.headers), partition=number % 2))
        for number, m in enumerate(made)
    ]
    producer.flush()
    at = {(f.get(60).partition, f.get(60).offset): m for m, f in sent}
    producer.close()
    return at


def place(row: dict) -> tuple[int, int]:
    return row["_partition"], row["_offset"]


def fault_of_row(spec: Pipeline, row: dict, message: Message) -> str | None:
    """What is wrong with a row, with the bytes of its message."""
    try:
        expected = read(spec.source, message.key, message.value)
    except NoRow as reason:
        return f"{message}: {reason}, yet it is a row: {row}"
    for column in spec.sink(SINK).fields:
        if not agrees(column, expected[column.name], row[column.name]):
            return f"{message}: {column} is {row[column.name]!r}, Python reads {expected[column.name]!r}"
    return None


def fault_of_letter(spec: Pipeline, letter: dict, message: Message) -> str | None:
    """What is wrong with a dead letter, with the bytes of its message."""
    # PostgreSQL has no U+0000 in JSON, and Spark's base64 has line ends.
    headers = [(k.replace("\x00", "\ufffd"), v) for k, v in message.headers]
    kept = [(h["key"], b64decode(h["value"])) for h in json.loads(letter["headers"] or "[]")]
    if (letter["key"], letter["value"]) != (message.key, message.value):
        return f"{message}: its dead letter has the bytes {letter['key']}, {letter['value']}"
    if kept != headers:
        return f"{message}: its dead letter has the headers {kept}"
    if not REASONS.match(letter["error"]):
        return f"{message}: its dead letter has the reason {letter['error']!r}"
    try:
        return f"{message}: Python reads {read(spec.source, message.key, message.value)}, yet: {letter['error']}"
    except NoRow:
        return None


def told(*lines: str) -> str:
    return "\n".join((f"RATCHET_DECODE_SEED={SEED}", *lines))
