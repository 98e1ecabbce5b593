"""What a record of a topic becomes: a row of the declared types, exactly, or a dead letter with its bytes."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime

import pytest

from ratchet import Append, Upsert
from ratchet.errors import TransformError
from ratchet.spec.pipeline import DEAD_LETTERS

from .rig import SINK, content, numbered, positions, spec_of

GOOD = {
    b'{"a": 1, "b": "x"}': (1, "x"),
    b' {"b": "y", "a": -2147483648, "c": [1]}\n': (-2147483648, "y"),
    b'{"b": "z"}': (None, "z"),
    b'{"a": null}': (None, None),
    b"{}": (None, None),
    '{"b": "h\u00e9 \\u20ac"}'.encode(): (None, "h\u00e9 \u20ac"),
    b'{"b": "\\ud83d\\ude00 \\\\ud800"}': (None, "\U0001f600 \\ud800"),
}
BAD = [
    None,
    b"",
    b" ",
    b"null",
    b"5",
    b'"text"',
    b"true",
    b'[{"a": 1}]',
    b"[]",
    b'{"a": 1',
    b'{"a": 1}]',
    b'{"a": 1} trailing',
    b'{"a": 1} {"a": 2}',
    b'{"a": 1}{"a": 2}',
    b'{"a": 1},{"a": 2}',
    b'{"a": 1},',
    b',{"a": 1}',
    b'{"a": 1},null',
    b'{"a": 1}],"x":[',
    b'{"a": 1}],"v":[{"a": 2}',
    b'{"a": 1}],"ratchet_end":true}',
    b'{"a": 1}],"ratchet_end":true} trailing',
    b'],"v":[{"a": 1}',
    b"{'a': 1}",
    b"{a: 1}",
    b'{"a": 1.5}',
    b'{"a": 1.0}',
    b'{"a": 2147483648}',
    b'{"a": 99999999999999999999}',
    b'{"a": "1"}',
    b'{"a": true}',
    b'{"a": {}}',
    b'{"a": NaN}',
    b'{"b": "\xff"}',
    b'{"b": "\xed\xa0\x80"}',
    b'{"b": "\\u0000"}',
    b'\xef\xbb\xbf{"a": 1}',
    b'{"a": 1 /* no */}',
    b"\x00",
    b'{"b": "\\ud800"}',
    b'{"b": "\\udc00 x"}',
]


@pytest.mark.invariant("I1")
def test_every_record_is_a_row_or_a_dead_letter_with_its_bytes(rig):
    topic = rig.topic()
    keys = [b"k"] * (len(GOOD) + len(BAD))
    rig.send(topic, *GOOD, *BAD, keys=keys, headers=[("h", b"\x00\x01"), ("none", b"")])
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    rows = {r["_offset"]: (r["a"], r["b"]) for r in rig.written(work, SINK)}
    dead = rig.written(work, DEAD_LETTERS)
    letters = {r["_offset"]: r["value"] for r in dead}
    values = [*GOOD, *BAD]
    assert {values[o]: row for o, row in rows.items()} == GOOD
    assert letters == dict(enumerate(BAD, len(GOOD)))
    assert len(dead) == len(BAD) == vote.dead_letters
    assert all(r["error"] for r in dead)
    assert [h["key"] for h in json.loads(dead[0]["headers"])] == ["h", "none"]
    assert vote.records == len(values)
    rig.check(spec, work, vote)


def first_column(df):
    return {SINK: df.select("a", "_partition", "_offset")}


def test_a_field_that_the_transform_does_not_use_is_checked_too(rig):
    topic = rig.topic()
    rig.send(topic, b'{"a": 1, "c": 1}', b'{"a": 2, "c": "no"}', b'{"a": 3}', b'{"a": 4, "c": 1.5}')
    spec = spec_of(topic, first_column, value="a int, c int", sinks=[Append(SINK, columns="a int")])
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert content(rig.written(work, SINK)) == Counter([(0, 0, 1), (0, 2, 3)])
    assert positions(rig.written(work, DEAD_LETTERS)) == Counter([(0, 1), (0, 3)])
    rig.check(spec, work, vote)


def test_not_null_columns(rig):
    topic = rig.topic()
    rig.send(topic, b'{"a": 1}', b'{"a": null}', b"{}")
    spec = spec_of(topic, value="a int not null")
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert content(rig.written(work, SINK)) == Counter([(0, 0, 1)])
    dead = rig.written(work, DEAD_LETTERS)
    assert positions(dead) == Counter([(0, 1), (0, 2)])
    assert all("column a" in r["error"] for r in dead)


def test_a_decimal_is_never_rounded(rig):
    topic = rig.topic()
    texts = ["1.50", "1.500", "-0.01", "12345678.9", "1e2", "1.005", "123456789.00", "1e9", '"x"', "99999999.999"]
    rig.send(topic, *(b'{"d": %s}' % t.encode() for t in texts))
    spec = spec_of(topic, value="d decimal(10,2)")
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    expected = {0: "1.50", 1: "1.50", 2: "-0.01", 3: "12345678.90", 4: "100.00"}
    assert {r["_offset"]: str(r["d"]) for r in rig.written(work, SINK)} == expected
    assert positions(rig.written(work, DEAD_LETTERS)) == Counter((0, o) for o in range(5, 10))


def test_times_that_postgresql_cannot_hold_are_dead_letters(rig):
    topic = rig.topic()
    texts = ["2013-01-01T05:00:00Z", "-5000-01-01T00:00:00Z", "+294247-01-01T00:00:00Z", "nope"]
    texts += ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:30:00-01:00"]
    rig.send(topic, *(b'{"t": "%s"}' % t.encode() for t in texts))
    spec = spec_of(topic, value="t timestamp")
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert {r["_offset"]: r["t"] for r in rig.written(work, SINK)} == {0: datetime(2013, 1, 1, 5, tzinfo=UTC)}


def keyed(df):
    return {SINK: df}


def test_keys(rig):
    topic = rig.topic()
    keys = [b"1", None, b"x", b"", b"\xff", b"99999999999", b"-7"]
    rig.send(topic, *numbered(range(len(keys))), keys=keys)
    spec = spec_of(topic, value="a int", key="k int", sinks=[Append(SINK, columns="k int, a int")])
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert {r["_offset"]: r["k"] for r in rig.written(work, SINK)} == {0: 1, 1: None, 6: -7}
    assert {r["_offset"]: r["key"] for r in rig.written(work, DEAD_LETTERS)} == {o: keys[o] for o in (2, 3, 4, 5)}


def test_a_key_with_a_nul_is_a_dead_letter(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(2)), keys=[b"a\x00b", b"c"])
    spec = spec_of(topic, value="a int", key="k string", sinks=[Append(SINK, columns="k string, a int")])
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert content(rig.written(work, SINK)) == Counter([(0, 1, 1)])


def test_tombstones_delete(rig):
    topic = rig.topic()
    rig.send(topic, b'{"a": 1}', b'{"a": 2}', None, None, b"", b'{"a": 3}', keys=[b"x", b"y", b"x", b"y", b"z", None])
    sinks = [Upsert(SINK, key="k string", columns="a int not null")]
    spec = spec_of(topic, value="a int not null", key="k string", tombstones="delete", sinks=sinks)
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    rows = {r["k"]: (r["_offset"], r["a"], r["_deleted"]) for r in rig.written(work, SINK)}
    assert rows == {"x": (2, None, True), "y": (3, None, True)}
    assert positions(rig.written(work, DEAD_LETTERS)) == Counter([(0, 4), (0, 5)])


def without_deletions(df):
    return {SINK: df.select("k", "a", "_partition", "_offset")}


def test_a_transform_that_loses_deletions_is_refused(rig):
    topic = rig.topic()
    rig.send(topic, b'{"a": 1}', None, keys=[b"x", b"x"])
    sinks = [Upsert(SINK, key="k string", columns="a int")]
    given = {"value": "a int", "key": "k string", "tombstones": "delete", "sinks": sinks}
    spec = spec_of(topic, without_deletions, **given)
    (work,) = rig.begin(spec)
    with pytest.raises(TransformError, match="has lost the hidden column _deleted"):
        rig.run(spec, work)
    assert not rig.written(work, SINK)


def test_large_values_keep_their_bytes(rig):
    topic = rig.topic()
    good = b'{"b": "%s"}' % (b"x" * 1_040_000)
    bad = bytes(range(256)) * 4_060
    rig.send(topic, *([good] * 5), bad)
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert {r["_offset"]: r["b"] for r in rig.written(work, SINK)} == dict.fromkeys(range(5), "x" * 1_040_000)
    assert {r["_offset"]: r["value"] for r in rig.written(work, DEAD_LETTERS)} == {5: bad}
