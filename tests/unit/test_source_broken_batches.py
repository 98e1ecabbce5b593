"""A record batch that is not whole is BrokenBatch, or left for the next fetch; it never gives a wrong record."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ratchet.errors import BrokenBatch
from ratchet.source import codec
from ratchet.source.frames import frames_of
from tests.source.batches import (
    APPENDED,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    Batch,
    Malformed,
    Record,
    compressed,
    read,
    sealed,
    varint,
    written,
)
from tests.source.decoding import CODECS, PLACE, decode


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


def test_a_header_without_a_key_is_broken():
    body = b"\x00" + varint(0) * 2 + varint(-1) * 2 + varint(1) + varint(-1) + varint(0)
    with pytest.raises(BrokenBatch, match="headers of a record"):
        decode(sealed(Batch(0, [Record(0)]), varint(len(body)) + body, 1))
