"""Record batches become Arrow columns exactly, or BrokenBatch; nothing else, whatever is in them."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from ratchet.errors import BrokenBatch
from ratchet.ledger.work import OffsetRange
from ratchet.source import codec, columns
from ratchet.source.columns import Decoder, java_text
from ratchet.source.cursor import Cursor
from ratchet.source.frames import Place, frames_of
from ratchet.source.port import SCHEMA
from tests.source.batches import (
    APPENDED,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    TRANSACTIONAL,
    ZSTD,
    Batch,
    Malformed,
    Record,
    compressed,
    marker,
    read,
    rows,
    sealed,
    varint,
    written,
)

PLACE = Place("t", 7)
END = 2**62
CODECS = {
    "none": (NONE, False),
    "gzip": (GZIP, False),
    "snappy": (SNAPPY, False),
    "framed snappy": (SNAPPY, True),
    "lz4": (LZ4, False),
    "zstd": (ZSTD, False),
}
DECODER = Decoder()


def decode(data: bytes, position: int = 0, lo: int = 0, hi: int = END, aborted=()) -> list[tuple]:
    frames = frames_of(PLACE, data, position)
    found = list(DECODER.decode(frames, aborted, lo, hi, 4))
    assert all(batch.schema.equals(SCHEMA) and batch.num_rows for batch in found)
    assert all(set(batch.column("_source").to_pylist()) == {4} for batch in found)
    assert all(set(batch.column("_partition").to_pylist()) == {7} for batch in found)
    return rows(found)


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
    found = list(DECODER.decode(frames_of(PLACE, b"".join(b.bytes() for b in log), 0), (), 0, END, 0))
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


def sample(compression: int, framed: bool) -> list[Batch]:
    """Batches of several records, one, and none that is left, with keys, headers, nulls and gaps."""
    first = [
        Record(i, b"value %d" % i * 9, b"key" if i % 2 else None, i, ((b"h", None), (b"", b"x"))) for i in range(9)
    ]
    return [
        Batch(100, first, compression, framed=framed),
        Batch(109, [Record(0, None, b"")], compression, framed=framed),
        Batch(110, [], compression, last=4, framed=framed),
        Batch(115, [Record(1, b""), Record(3, b"end" * 30)], compression, last=5, attributes=APPENDED, framed=framed),
    ]


@pytest.mark.parametrize("how", CODECS)
def test_a_tail_that_is_cut_off_is_left_for_the_next_fetch(how):
    log = sample(*CODECS[how])
    content = b"".join(batch.bytes() for batch in log)
    ends = [sum(len(batch.bytes()) for batch in log[:n]) for n in range(5)]
    for size in range(1, len(content)):
        whole = sum(end <= size for end in ends[1:])
        if not whole:
            with pytest.raises(BrokenBatch, match="t-7: the record batch at offset 100 is broken: it is longer"):
                frames_of(PLACE, content[:size], 100)
            continue
        frames = frames_of(PLACE, content[:size], 100)
        assert frames.position == log[whole - 1].end and len(frames) == whole
        assert decode(content[:size], 100) == [row for batch in log[:whole] for row in batch.rows()]


@pytest.mark.parametrize("how", CODECS)
def test_no_damage_gives_a_wrong_record(how):
    log = sample(*CODECS[how])
    sizes = [len(batch.bytes()) for batch in log]
    starts = [sum(sizes[:n]) for n in range(4)]
    content = b"".join(batch.bytes() for batch in log)
    expected = [row for batch in log for row in batch.rows()]
    # The offset of a batch and its leader's epoch are under no checksum: what the broker adds when it appends.
    epochs = {start + at for start in starts for at in range(12, 16)}
    bases = {start + at for start in starts for at in range(8)}
    chance = random.Random(how)
    told = 0
    for _ in range(800):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        changed = {at for at in range(len(content)) if damaged[at] != content[at]}
        try:
            found = decode(bytes(damaged), 100)
        except BrokenBatch as error:
            assert str(error).startswith("t-7: the record batch at offset ")
            told += 1
            continue
        if changed <= epochs:
            assert found == expected
        elif changed <= epochs | bases:
            # A last batch that says it is further on looks like one behind a hole; the next one would tell.
            assert [rest for _, *rest in found] == [rest for _, *rest in expected]
            assert all(now >= before for (now, *_), (before, *_) in zip(found, expected, strict=True))
            assert found[-1][0] > expected[-1][0]
        else:
            # A length that reaches beyond what was sent makes a batch look cut off, for the next fetch to bring.
            whole = frames_of(PLACE, bytes(damaged), 100)
            assert len(whole) < 4 and found == expected[: len(found)]
            assert found == [row for batch in log[: len(whole)] for row in batch.rows()]
    assert told > 600


@pytest.mark.parametrize("how", ["none", "lz4"])
def test_a_checksum_that_is_right_does_not_save_what_the_format_forbids(how):
    batch = replace(sample(NONE, False)[0], codec=CODECS[how][0])
    good = b"".join(map(written, batch.records))
    chance = random.Random(3)
    read_, broken = 0, 0
    for _ in range(3000):
        payload = bytearray(good)
        for _ in range(chance.choice([1, 1, 2])):
            payload[chance.randrange(len(payload))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        count = chance.choice([9, 9, 9, 9, 8, 10, 0, 2**31 - 1])
        data = sealed(batch, compressed(bytes(payload), batch.codec, False), count)
        try:
            expected = read(bytes(payload), count, 8) if count else []
        except Malformed:
            with pytest.raises(BrokenBatch, match="t-7: the record batch at offset 100 is broken"):
                decode(data, 100)
            broken += 1
        else:
            found = decode(data, 100)
            assert [(o - 100, k, v) for o, _, k, v, _ in found] == [(r.at, r.key, r.value) for r in expected]
            said = [[h["value"] for h in headers or ()] for *_, headers in found]
            assert said == [[v for _, v in r.headers] for r in expected]
            read_ += 1
    assert read_ > 500 and broken > 500


def test_compressed_bytes_that_are_none_are_broken():
    for compression in (GZIP, SNAPPY, LZ4, ZSTD, 5, 7):
        for payload in (b"", b"no", b"\x82SNAPPY\x00" + b"\x00" * 8 + b"\x7f\xff\xff\xff", b"\xff" * 40):
            data = sealed(Batch(5, [Record(0)], compression), payload, 1)
            with pytest.raises(BrokenBatch, match="offset 5 is broken"):
                decode(data)


@pytest.mark.parametrize("how", CODECS)
def test_a_batch_that_grows_beyond_reason_is_broken(how, monkeypatch):
    compression, framed = CODECS[how]
    if compression == NONE:
        return
    data = Batch(0, [Record(0, bytes(30 * 2**20))], compression, framed=framed).bytes()
    assert len(data) < 2**22
    assert decode(data)[0][3] == bytes(30 * 2**20)
    monkeypatch.setattr(codec, "LARGEST", 20 * 2**20)
    with pytest.raises(BrokenBatch, match="20,971,520 bytes"):
        decode(data)


def test_damage_outside_of_the_range_does_not_matter():
    log = sample(LZ4, False)
    broken = bytearray(log[1].bytes())
    broken[-1] ^= 1
    content = log[0].bytes() + bytes(broken)
    assert decode(content, 100, hi=109) == log[0].rows()
    with pytest.raises(BrokenBatch, match="offset 109"):
        decode(content, 100, hi=110)


@pytest.mark.parametrize("at", range(4))
def test_a_length_below_that_of_null_is_broken(at):
    lengths = [-1, -1, 0, -1]
    for length, good in ((-1, True), (-2, False)):
        lengths[at] = length
        body = b"\x00" + varint(0) * 2 + varint(lengths[0]) + varint(lengths[1])
        body += varint(1) + varint(max(lengths[2], 0) if good else lengths[2]) + varint(lengths[3])
        data = sealed(Batch(0, [Record(0)]), varint(len(body)) + body, 1)
        if good:
            assert decode(data)[0][2:] == (None, None, [{"key": "", "value": None}])
        else:
            with pytest.raises(BrokenBatch):
                decode(data)


def test_old_message_formats_are_refused_by_name():
    data = bytearray(Batch(5, [Record(0)]).bytes())
    for old in (0, 1):
        data[16] = old
        with pytest.raises(BrokenBatch, match=rf'offset 3 is broken: it has message format {old}, .*reader="spark"'):
            decode(bytes(data), 3)
    data[16] = 9
    with pytest.raises(BrokenBatch, match="message format 9 is not known"):
        decode(bytes(data), 3)


def test_batches_that_are_not_in_order_are_broken():
    first, second = Batch(10, [Record(0), Record(1)]), Batch(12, [Record(0)])
    assert len(decode(first.bytes() + second.bytes(), 10)) == 3
    for content in (second.bytes() + first.bytes(), first.bytes() + replace(second, base=11).bytes()):
        with pytest.raises(BrokenBatch, match="do not follow"):
            decode(content, 10)
    with pytest.raises(BrokenBatch, match="before offset 12"):
        decode(first.bytes(), 12)
    for base in (-5, 2**63 - 2):
        with pytest.raises(BrokenBatch):
            decode(replace(first, base=base).bytes())


def test_timestamps():
    log = [
        Batch(0, [Record(0, millis=5)], timestamp=-1),
        Batch(1, [Record(0, millis=5), Record(1)], timestamp=2**62, latest=1000, attributes=APPENDED),
    ]
    assert [row[1].timestamp() for row in decode(b"".join(b.bytes() for b in log))] == [0.004, 1, 1]
    for timestamp in (2**62, -(2**62)):
        with pytest.raises(BrokenBatch, match="timestamp of a record is out of range"):
            decode(Batch(0, [Record(0)], timestamp=timestamp).bytes())


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


def test_a_header_without_a_key_is_broken():
    body = b"\x00" + varint(0) * 2 + varint(-1) * 2 + varint(1) + varint(-1) + varint(0)
    with pytest.raises(BrokenBatch, match="headers of a record"):
        decode(sealed(Batch(0, [Record(0)]), varint(len(body)) + body, 1))


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
print(*(batch.num_rows for batch in Decoder().decode(frames, (), 0, 9, 0)), "pandas" in sys.modules)
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
