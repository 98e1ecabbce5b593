"""Record batches become Arrow columns exactly; what is broken is in test_source_broken_batches."""

from __future__ import annotations

import subprocess
import sys
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from ratchet.ledger.work import OffsetRange
from ratchet.source import columns
from ratchet.source.columns import java_text
from ratchet.source.cursor import Cursor
from ratchet.source.frames import frames_of
from ratchet.source.interval import stamps_of
from tests.source.batches import (
    APPENDED,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    TRANSACTIONAL,
    ZSTD,
    Batch,
    Record,
    marker,
    rows,
)
from tests.source.decoding import CODECS, DECODER, END, PLACE, decode

MOST = (2**63 - 1) // 1000
"""Of this many milliseconds microseconds are 64 bits."""
octets = st.none() | st.binary(max_size=300) | st.just(b"x" * 20_000)
records = st.builds(
    lambda value, key, millis, headers, gap: (value, key, millis, headers, gap),
    octets,
    octets,
    st.integers(-(10**9), 10**9),
    st.lists(st.tuples(st.text(max_size=20).map(str.encode), octets), max_size=4).map(tuple),
    # Compaction leaves gaps.
    st.sampled_from([0, 0, 0, 1, 200]),
)


@st.composite
def logs(draw) -> list[Batch]:
    """Some batches in order, of every codec, with gaps within and between them."""
    base, found = draw(st.integers(0, 2**40)), []
    for content in draw(st.lists(st.lists(records, max_size=8), min_size=1, max_size=5)):
        at, made = 0, []
        for value, key, millis, headers, gap in content:
            made.append(Record(at + gap, value, key, millis, headers))
            at += gap + 1
        compression, framed = draw(st.sampled_from(list(CODECS.values())))
        last = max(at - 1, 0) + draw(st.sampled_from([0, 0, 3]))
        attributes = draw(st.sampled_from([0, APPENDED]))
        batch = Batch(base, made, compression, last, attributes, framed=framed)
        found.append(batch)
        base = batch.end + draw(st.sampled_from([0, 0, 50]))
    return found


@settings(deadline=None, max_examples=300)
@given(logs(), st.data())
def test_what_is_written_is_read_whole_and_cut_anywhere(log, data):
    content = b"".join(batch.bytes() for batch in log)
    expected = [row for batch in log for row in batch.rows()]
    assert decode(content) == expected
    lo, hi = sorted(data.draw(st.integers(log[0].base, log[-1].end)) for _ in range(2))
    inside = [row for row in expected if lo <= row[0] < hi]
    assert decode(content, lo=lo, hi=hi) == inside
    # A broker begins with the batch that holds the position.
    served = b"".join(batch.bytes() for batch in log if batch.end > lo)
    if served:
        assert decode(served, lo, lo, hi) == inside


def test_pieces_are_of_bounded_size_and_no_batch_is_cut(monkeypatch):
    monkeypatch.setattr(columns, "SIZE", 1000)
    monkeypatch.setattr(columns, "ROWS", 10)
    log = [Batch(20 * n, [Record(i, b"v" * 30 * n) for i in range(20)], (LZ4, NONE)[n % 2]) for n in range(8)]
    found = list(DECODER.decode(frames_of(PLACE, b"".join(b.bytes() for b in log), 0), (), 0, END, 0, PLACE.partition))
    assert [batch.num_rows for batch in found] == [20] * 8
    assert rows(found) == [row for batch in log for row in batch.rows()]


@settings(deadline=None, max_examples=100)
@given(st.lists(records, min_size=1, max_size=20), st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]))
def test_what_another_client_writes_is_read_as_that_client_reads_it(content, compression):
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 2**30)
    for at, (value, key, millis, headers, _) in enumerate(content):
        builder.append(at, 10**12 + millis, key, value, [(k.decode(), v) for k, v in headers])
    data = bytes(builder.build())
    said = list(DefaultRecordBatch(data))
    found = decode(data)
    assert [(o, round(t.timestamp() * 1000), k, v) for o, t, k, v, _ in found] == [
        (r.offset, r.timestamp, r.key, r.value) for r in said
    ]
    assert [[(h["key"], h["value"]) for h in headers or ()] for *_, headers in found] == [list(r.headers) for r in said]


def test_timestamps():
    log = [
        Batch(0, [Record(0, millis=5)], timestamp=-1),
        Batch(1, [Record(0, millis=5), Record(1)], timestamp=2**62, latest=1000, attributes=APPENDED),
    ]
    assert [row[1].timestamp() for row in decode(b"".join(b.bytes() for b in log))] == [0.004, 1, 1]


stamps = st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**13), 10**13) | st.sampled_from([-1, 0, MOST, MOST + 1])


@settings(deadline=None, max_examples=300)
@given(stamps, st.lists(stamps, min_size=1, max_size=5), st.none() | stamps, st.sampled_from([NONE, LZ4]))
def test_any_time_of_a_record_is_kept_or_the_nearest_there_is(base, deltas, appended, codec):
    """A producer may stamp a record with any number; no such record keeps the others from being read."""
    of = [Record(at, b"v", millis=delta) for at, delta in enumerate(deltas)]
    how = {} if appended is None else {"latest": appended, "attributes": APPENDED}
    (found,) = DECODER.decode(
        frames_of(PLACE, Batch(0, of, codec, timestamp=base, **how).bytes(), 0), (), 0, END, 0, PLACE.partition
    )
    found.validate(full=True)
    # Java adds 64-bit numbers so.
    sums = [(base + delta + 2**63) % 2**64 - 2**63 if appended is None else appended for delta in deltas]
    nearest = [max(-(2**63) + 1, min(2**63 - 1, millis * 1000)) for millis in sums]
    assert found.column("_timestamp").cast("int64").to_pylist() == nearest
    assert found.column("_offset").to_pylist() == list(range(len(deltas)))
    assert next(stamps_of([found])).millis.tolist() == [micros // 1000 for micros in nearest]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("h\u00e9\U0001f600".encode(), "h\u00e9\U0001f600"),
        (b"\xff", "\ufffd"),
        (b"a\xc3", "a\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82x", "\ufffdx"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0x", "\ufffdx"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xe2\xed\xbf\xbf", "\ufffd\ufffd"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xe0\x80", "\ufffd\ufffd"),
    ],
)
def test_keys_of_headers_are_text_as_java_decodes_it(data, text):
    assert java_text(data) == text
    found = decode(Batch(0, [Record(0, headers=((data, b"v"), (b"k", None))), Record(1)]).bytes())
    assert [row[4] for row in found] == [[{"key": text, "value": b"v"}, {"key": "k", "value": None}], None]


# Transactions


@st.composite
def transactions(draw) -> tuple[list[Batch], list[tuple], list[tuple[int, int]]]:
    """Batches of three transactional producers and a plain one, interleaved; what counts of it; what was aborted."""
    log, counting, aborted = [], [], []
    open_: dict[int, list[Batch]] = {}
    base = 0
    for step in draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["write", "write", "abort", "commit"])))):
        producer, what = step
        if producer == 3 or what == "write":
            compression = draw(st.sampled_from([NONE, LZ4]))
            made = [Record(i, b"%d" % (base + i)) for i in range(draw(st.integers(1, 4)))]
            transactional = producer < 3
            batch = Batch(
                base,
                made,
                compression,
                producer=producer if transactional or draw(st.booleans()) else -1,
                attributes=TRANSACTIONAL if transactional else 0,
            )
            if transactional:
                open_.setdefault(producer, []).append(batch)
            else:
                counting += batch.rows()
        else:
            batch = marker(base, producer, what == "commit")
            written_ = open_.pop(producer, [])
            if what == "commit":
                counting += [row for part in written_ for row in part.rows()]
            elif written_:
                aborted.append((producer, written_[0].base))
        log.append(batch)
        base = batch.end
    # What is undecided lies past the last stable offset, and no broker sends it.
    if open_:
        stable = min(parts[0].base for parts in open_.values())
        log = [batch for batch in log if batch.base < stable]
        counting = [row for row in counting if row[0] < stable]
    return log, sorted(counting), aborted


@settings(deadline=None, max_examples=400)
@given(transactions(), st.randoms(use_true_random=False))
def test_aborted_records_and_markers_are_left_out(made, chance):
    log, counting, aborted = made
    if not log:
        return
    chance.shuffle(aborted)
    assert decode(b"".join(batch.bytes() for batch in log), aborted=aborted) == counting
    # From the middle on: the broker still lists the transactions that began before.
    at = chance.randrange(len(log))
    served = b"".join(batch.bytes() for batch in log[at:])
    ends = {(producer, first): end_of(log, producer, first) for producer, first in aborted}
    listed = [one for one in aborted if ends[one] > log[at].base]
    assert decode(served, log[at].base, aborted=listed) == [row for row in counting if row[0] >= log[at].base]


def end_of(log: list[Batch], producer: int, first: int) -> int:
    """The end of the marker that ended a transaction; END where it lies past the last stable offset."""
    return next((b.end for b in log if b.base > first and b.producer == producer and b.attributes & 0x20), END)


def test_what_is_not_transactional_is_not_aborted():
    log = [Batch(n, [Record(0, b"%d" % n)], attributes=a, producer=1) for n, a in enumerate([TRANSACTIONAL, 0])]
    assert [row[3] for row in decode(b"".join(b.bytes() for b in log), aborted=[(1, 0)])] == [b"1"]


def test_a_marker_that_compaction_emptied_ends_nothing():
    log = [
        Batch(0, [Record(0, b"a")], attributes=TRANSACTIONAL, producer=1),
        Batch(1, [], attributes=TRANSACTIONAL | 0x20, producer=1, last=0),
        Batch(2, [Record(0, b"b")]),
    ]
    assert [row[3] for row in decode(b"".join(b.bytes() for b in log), aborted=[(1, 0)])] == [b"b"]


def test_importing_the_source_loads_no_compiled_code():
    script = "import sys, ratchet.source.columnar; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_compiled_code_that_can_be_kept_nowhere_is_compiled_all_the_same():
    """And a process that only reads does not import what it does not need."""
    script = """
import sys
from numba.core import caching
caching.CompileResultCacheImpl._locator_classes = []
from ratchet.source.columnar import Cursor
from ratchet.source.columns import Decoder
from ratchet.source.frames import Place, frames_of
frames = frames_of(Place("t", 0), bytes.fromhex(sys.argv[1]), 0)
print(*(batch.num_rows for batch in Decoder().decode(frames, (), 0, 9, 0, 0)), "pandas" in sys.modules)
"""
    data = Batch(0, [Record(at) for at in range(9)]).bytes()
    done = subprocess.run([sys.executable, "-c", script, data.hex()], capture_output=True, text=True, check=True)
    assert done.stdout == "9 False\n"


def test_a_cursor_that_moves_stands_still_no_longer_and_asks_for_what_is_left():
    ranges = [OffsetRange("t", 7, 0, 1_000), OffsetRange("t", 7, 5_000, 5_010)]
    cursor = Cursor(PLACE, deque(ranges), 0, 100, stalled=5.0)
    data = Batch(0, [Record(at, bytes(1_000)) for at in range(100)]).bytes()
    assert cursor.move(frames_of(PLACE, data, 0), 2**30) is ranges[0]
    assert cursor.stalled is None and cursor.position == 100
    assert 900_000 < cursor.size < 1_200_000
    assert cursor.move(frames_of(PLACE, replace_base(data, 950), 100), 2**30) is ranges[0]
    assert list(cursor.ranges) == [ranges[1]] and cursor.position == 5_000
    assert cursor.size < 100_000
    assert cursor.move(frames_of(PLACE, replace_base(data, 5_000), 5_000), 50) is ranges[1]
    assert not cursor.ranges


def replace_base(data: bytes, base: int) -> bytes:
    return base.to_bytes(8, "big") + data[8:]
