"""Any message at all: the rows that Python reads in it, or a dead letter with its bytes and a reason.

The messages are generated anew each time; `RATCHET_DECODE_SEED=…` repeats those of a run.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pyarrow as pa
import pytest

from ratchet.formats.envelope import HEADERS, Envelope
from ratchet.spec.source import Topic
from ratchet.values.documents import staged

from .messages import Message, messages
from .parsing import NoRow
from .reading import Arrived, agrees, read
from .topics import TIMESTAMP, TOPICS

SEED = int(os.environ.get("RATCHET_DECODE_SEED") or random.SystemRandom().randrange(10**6))
BATCH = 4_000


@pytest.mark.parametrize("kind", TOPICS)
def test_every_message_is_the_rows_that_python_reads_or_a_dead_letter(kind):
    check(kind, 2_300)


@pytest.mark.all
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", TOPICS)
def test_a_million_messages_are_what_python_reads(kind):
    check(kind, 112_000)


def check(kind: str, count: int) -> None:
    print(f"RATCHET_DECODE_SEED={SEED}")
    topic, rng = TOPICS[kind], random.Random(f"{SEED} {kind}")
    # As many batches as one: what is beside a message must not matter to it.
    sizes = [BATCH, 1, 7, 500]
    good = bad = 0
    sent = list(messages(topic, count, rng))
    while sent:
        size = rng.choice(sizes)
        batch, sent = sent[:size], sent[size:]
        found = faults(topic, batch)
        good, bad = good + found["good"], bad + found["bad"]
    # Else the messages would show little.
    assert min(good, bad) > count / 8


def batch_of(sent: list[Message]) -> pa.RecordBatch:
    count = len(sent)
    return pa.RecordBatch.from_pydict(
        {
            "_source": pa.array([0] * count, pa.int16()),
            "_partition": pa.array([3] * count, pa.int32()),
            "_offset": pa.array(range(100, 100 + count), pa.int64()),
            "_timestamp": pa.array([TIMESTAMP] * count, pa.timestamp("us", "UTC")),
            "_key": pa.array([m.key for m in sent], pa.binary()),
            "_value": pa.array([m.value for m in sent], pa.binary()),
            "_headers": pa.array([[{"key": k, "value": v} for k, v in m.headers] or None for m in sent], HEADERS),
        }
    )


def faults(topic: Topic, sent: list[Message]) -> Counter:
    """Holds a batch to the reading; how many of its messages were good and bad."""
    opened = Envelope(topic).open(batch_of(sent))
    rows: dict[int, list[dict]] = {}
    for row in opened.rows.to_pylist():
        cells = {c.name: staged(c.type, row[c.name]) for c in topic.columns}
        rows.setdefault(row["_offset"] - 100, []).append(row | cells)
    dead = {row["_offset"] - 100: row for row in opened.dead.to_pylist()}
    empty = {row["_offset"] - 100 for row in opened.empty.to_pylist()}
    assert Counter([*rows, *dead, *empty]) == Counter(range(len(sent))), f"RATCHET_DECODE_SEED={SEED}"
    wrong = [fault for i, m in enumerate(sent) if (fault := fault_of(topic, m, rows.get(i, []), dead.get(i)))]
    assert not wrong, "\n".join(
        (f"RATCHET_DECODE_SEED={SEED}", f"{len(wrong)} of {len(sent)} messages", *(w[:3_000] for w in wrong[:5]))
    )
    return Counter(good=len(rows) + len(empty), bad=len(dead))


def fault_of(topic: Topic, message: Message, rows: list[dict], letter: dict | None) -> str | None:
    """What is wrong with what became of a message."""
    try:
        expected = read(topic, message.value, Arrived(message.key, message.headers, TIMESTAMP))
    except NoRow as reason:
        if letter is None:
            return f"{message}: {reason}, yet it is a row: {rows}"
        kept = letter["_record"]
        if (kept["key"], kept["value"]) != (message.key, message.value) or len(letter["error"]) > 500:
            return f"{message}: its dead letter is {letter}"
        return None
    if letter is not None:
        return f"{message}: Python reads {expected}, yet: {letter['error']}"
    if len(rows) != len(expected) or [row["_n"] for row in rows] != list(range(len(rows))):
        return f"{message}: {len(rows)} rows, Python reads {expected}"
    for row, wanted in zip(rows, expected, strict=True):
        for column in topic.columns:
            if not agrees(column, wanted[column.name], row[column.name]):
                return f"{message}: {column} is {row[column.name]!r}, Python reads {wanted[column.name]!r}"
    return None
