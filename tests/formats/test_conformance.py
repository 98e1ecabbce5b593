"""Every format there is, and a tiny second one, in the suite that holds them to the port."""

from datetime import UTC, datetime
from decimal import Decimal

from ratchet import Json, Topic
from ratchet.formats.envelope import Envelope
from ratchet.formats.json_decoder import JsonDecoder
from ratchet.spec.columns import parse_columns

from .conformance import Case, Conformance
from .lines import LinesDecoder
from .messages import Message
from .test_messages import batch_of

OBJECTS = {
    b'{"a": 1, "b": "x", "c": 1.50, "t": "2024-05-01T10:00Z"}': [
        (1, "x", Decimal("1.50"), datetime(2024, 5, 1, 10, tzinfo=UTC))
    ],
    b" {} ": [(None, None, None, None)],
    b'{"b": {"k": [1.50]}}': [(None, '{"k": [1.50]}', None, None)],
    b'{"a": 1.5}': None,
    b'{"a": 99999999999}': None,
    b'{"b": "\xff"}': None,
    b'{"x": "\xff"}': None,
    b'{"b": "\\ud800"}': None,
    b'{"b": "\\u0000"}': None,
    b'{"c": 1.234}': None,
    b'{"c": "1.20"}': [(None, None, Decimal("1.20"), None)],
    # Together these two would be one object, or one array, if only a comma stood between them.
    b'{"a": 1': None,
    b'"b": "y"}': None,
    b'{"x": [{}': None,
    b"{}]}": None,
    b"{}, {}": None,
    b'{"x": "': None,
    b'"}': None,
    b"": None,
    b" ": None,
    b"[]": None,
    b"null": None,
    b"0": None,
    b"-7": None,
    b'"x"': None,
    b"true": None,
    b'{"deep": ' + b"[" * 499 + b"]" * 499 + b"}": [(None, None, None, None)],
    b'{"deep": ' + b"[" * 500 + b"]" * 500 + b"}": None,
    b'{"deep": ' + b"[" * 5000 + b"]" * 5000 + b"}": None,
    b"\x00\x00\x00\x00\x07{}": None,
}
ARRAYS = {
    b'[{"id": 1}, {"id": 2}]': [(1, None), (2, None)],
    b"[]": [],
    b'[{"id": 3, "s": "x"}]': [(3, "x")],
    b'[{"id": 1}, {"id": 1.5}]': None,
    b"[{}, 5]": None,
    b"[null]": None,
    b'{"id": 1}': None,
    b'[{"id": 1}': None,
    b'{"id": 1}]': None,
    b"[[]]": None,
    b"0": None,
    b"[0]": None,
}
LINES = {b"one\ntwo": [("one",), ("two",)], b"": [], b"\xff": None, "é".encode(): [("é",)]}


class TestJsonObjects(Conformance):
    case = Case(JsonDecoder(parse_columns("a int, b string, c decimal(4,2), t timestamp")), OBJECTS)


class TestJsonArrays(Conformance):
    case = Case(JsonDecoder(parse_columns("id bigint, s string"), "array"), ARRAYS)


class TestLines(Conformance):
    case = Case(LinesDecoder(), LINES)


def test_another_format_needs_nothing_of_the_envelope():
    topic = Topic("t", value=Json("line string not null"), key="k int")
    sent = [
        Message(b"1", b"one\ntwo"),
        Message(b"2", b""),
        Message(b"3", b"\xff"),
        Message(b"x", b"y"),
        Message(b"5", None),
    ]
    opened = Envelope(topic, LinesDecoder()).open(batch_of(sent))
    rows = [(r["k"], r["line"], r["_offset"], r["_n"]) for r in opened.rows.to_pylist()]
    assert rows == [(1, "one", 100, 0), (1, "two", 100, 1)]
    assert [(r["_offset"], r["error"][:20]) for r in opened.dead.to_pylist()] == [
        (102, "the value: found inv"),
        (103, "key column k: found "),
        (104, "no value (a tombston"),
    ]
    assert [r["_offset"] for r in opened.empty.to_pylist()] == [101]
