"""Every format there is, and a tiny second one that only a spec names, in the suite that holds them to the port."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from typing import Literal

from fastavro import parse_schema, schemaless_writer
from msgspec import msgpack

from ratchet import Append, Avro, Bytes, CloudEvents, Csv, Json, MessagePack, Pipeline, Protobuf, Text, Topic
from ratchet.formats.envelope import Envelope

from .conformance import Case, Conformance
from .lines import Lines
from .messages import Message
from .test_messages import batch_of
from .wireformat import group, number, sized, text, varint

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
TEXTS = {b"one\ntwo": [("one\ntwo",)], b"": [("",)], b"\xff": None, "é".encode(): [("é",)]}


WHOLE = {b"one\ntwo": [("one\ntwo",)], b"": [("",)], b"null": [("null",)], b"\xff": None, b"a\x00": None}
DEGREES = {b"21.5": [(21.5,)], b"-007": [(-7.0,)], b"": None, b" 1": None, b"21,5": None, b"NaN": None, b"1e999": None}
DOCUMENTS = {
    b'{"b": 1.50, "a": []}': [('{"a": [], "b": 1.50}',)],
    b" [] ": [("[]",)],
    b"{": None,
    b"null": None,
    b"": None,
}
BYTES = {b"\x00\xff": [(b"\x00\xff",)], b"": [(b"",)], b"null": [(b"null",)]}
LINE = {
    b"1,x,1.50": [(1, "x", Decimal("1.50"))],
    b"1,x,1.50\r\n": [(1, "x", Decimal("1.50"))],
    b"+1,,\n": [(1, None, None)],
    b'"1","","2"': [(1, "", Decimal("2.00"))],
    b'3,"a ""b"", c\r\nd\n",': [(3, 'a "b", c\r\nd\n', None)],
    "4,é\u2028,0".encode(): [(4, "é\u2028", Decimal("0.00"))],
    b",\r\n,": None,
    b"": None,
    b"\n": None,
    b"1,x": None,
    b"1,x,2,3": None,
    b"1,x,2\n1,x,2": None,
    b"1,x,2\n\n": None,
    b'1,"x,2': None,
    b'1,"x"y,2': None,
    b'1,"x" ,2': None,
    b'1, "x",2': None,
    b'1,"a \\" b",2': None,
    b'1,x"y,2': None,
    b"1,x\ry,2": None,
    b"1,x,2\r": None,
    b'1,"x\ry",2': [(1, "x\ry", Decimal("2.00"))],
    b" 1,x,2": None,
    b"1,x,1.005": None,
    b'1,x,"1,5"': None,
    b"1;x;2": None,
    b"0x1F,x,2": None,
    b"1,\x00,2": None,
    b"1,\xff,2": None,
    b"\xef\xbb\xbf1,x,2": None,
    b'\xef\xbb\xbf"1",x,2': None,
}
LINES_OF_CSV = {
    b"": [],
    b"\n": [(None,)],
    b"a": [("a",)],
    b"a\r\nb\n": [("a",), ("b",)],
    b'"a\nb"\n"c"': [("a\nb",), ("c",)],
    b"a\n\nb\n\n": [("a",), (None,), ("b",), (None,)],
    b'"x""\n""y"\nz': [('x"\n"y',), ("z",)],
    b'""': [("",)],
    b"a,b": None,
    b'a\n"b': None,
    b'a"\n"b': None,
    b"a\n\x00": None,
}
WITH_NAMES = {
    b"id\tnote\n1\tx\n\\N\t\\N\n": [(1, "x"), (None, None)],
    b'note\tid\r\n"\\N"\t2': [(2, "\\N")],
    b"id\tmore\n3\tx": [(3, None)],
    b"note\nx": [(None, "x")],
    b"id\tnote\n5\t": [(5, "")],
    b"id\tnote": [],
    b"": [],
    b"id\tid\n1\t2": None,
    b"id\tnote\n1": None,
    b"id\tnote\nx\t1": None,
    b'id\t"note\n1\t2': None,
    b"id\n\n": None,
}
_EVENT = b'{"specversion": "1.0", "id": "7", "source": "/s", "type": "t", %s}'
EVENTS = {
    _EVENT % b'"time": "2024-05-01T10:00Z", "data": {"a": 1, "b": "x"}': [
        ("7", datetime(2024, 5, 1, 10, tzinfo=UTC), 1, "x")
    ],
    _EVENT % b'"datacontenttype": "application/vnd.x+JSON; charset=utf-8", "data": {"b": 1.50}': [
        ("7", None, None, "1.50")
    ],
    _EVENT % b'"datacontenttype": "text/json", "data_base64": "eyJhIjogMn0="': [("7", None, 2, None)],
    _EVENT % b'"datacontenttype": "text/plain", "data": "{\\"a\\": 3}"': [("7", None, 3, None)],
    _EVENT % b'"data": null, "data_base64": null, "time": null': [("7", None, None, None)],
    _EVENT % b'"x": 0': [("7", None, None, None)],
    _EVENT % b'"data": "{\\"a\\": 3}"': None,
    _EVENT % b'"data": [{}]': None,
    _EVENT % b'"data": {"a": "x"}': None,
    _EVENT % b'"data": {}, "data_base64": "e30="': None,
    _EVENT % b'"data_base64": "e30"': None,
    _EVENT % b'"data_base64": 5': None,
    _EVENT % b'"datacontenttype": "text/plain", "data": {}': None,
    _EVENT % b'"datacontenttype": 5, "data": {}': None,
    _EVENT % b'"time": "today", "data": {}': None,
    _EVENT % b'"specversion": "0.3"': None,
    _EVENT % b'"id": 5': None,
    _EVENT % b'"type": ""': None,
    _EVENT % b'"source": null': None,
    _EVENT % b'"x": "\xff"': None,
    _EVENT % b'"id": "\\ud800"': None,
    b'{"a": 1}': None,
    b"{}": None,
    b"": None,
    b"[" + _EVENT % b'"x": 0' + b"]": None,
}
DATA = {b'{"a": 1, "b": "x"}': [("7", None, 1, "x")], b"{}": [("7", None, None, None)], b"": None, b'{"a": "x"}': None}
PLACES = {b"1,2\n3,4": [("7", 1, 2), ("7", 3, 4)], b"": [], b"1,2\n3": None, b"x,2": None}
BINARY_MODE = (
    ("ce_specversion", b"1.0"),
    ("ce_id", b"6"),
    ("ce_id", b"7"),
    ("ce_source", b"/s"),
    ("ce_type", b"t"),
    ("content-type", b"application/json"),
)
MAPS = {
    msgpack.encode({"a": 1, "b": "x", "c": Decimal("1.50"), "t": datetime(2024, 5, 1, 10, tzinfo=UTC)}): [
        (1, "x", Decimal("1.50"), datetime(2024, 5, 1, 10, tzinfo=UTC))
    ],
    msgpack.encode({"a": None, "z": [1, {"y": 2.5}]}): [(None, None, None, None)],
    msgpack.encode({1: 2}): [(None, None, None, None)],
    msgpack.encode({"a": True}): None,
    msgpack.encode({"a": 1.5}): None,
    msgpack.encode({"a": 2**40}): None,
    msgpack.encode({"b": b"x"}): None,
    msgpack.encode({"b": "\x00"}): None,
    msgpack.encode({"c": 1.5}): None,
    msgpack.encode({"t": 1714557600}): None,
    msgpack.encode({"t": "2024-05-01T10:00Z"}): [(None, None, None, datetime(2024, 5, 1, 10, tzinfo=UTC))],
    msgpack.encode([1]): None,
    msgpack.encode(None): None,
    msgpack.encode({"a": 1})[:-1]: None,
    msgpack.encode({"a": 1}) + b"\x01": None,
    b"\x81\xa1b\xa1\xff": None,
    b"\x81\xa1a\xc1": None,
    b"\x81\xa1x" + b"\x91" * 100_000: None,
    b"": None,
}


class TestText(Conformance):
    case = Case(Text("line string"), WHOLE)


class TestNumbersAsTexts(Conformance):
    case = Case(Text("degrees double not null"), DEGREES)


class TestDocumentsAsTexts(Conformance):
    case = Case(Text("doc json not null"), DOCUMENTS)


class TestBytes(Conformance):
    case = Case(Bytes("payload binary not null"), BYTES)


class TestLineOfCsv(Conformance):
    case = Case(Csv("a int, b string, c decimal(4,2)"), LINE)


class TestLinesOfCsv(Conformance):
    case = Case(Csv("a string", rows="lines"), LINES_OF_CSV)


class TestCsvWithNames(Conformance):
    case = Case(Csv("id int, text string from note", rows="lines", header=True, separator="\t", null="\\N"), WITH_NAMES)


def avro(schema: dict, value: dict) -> bytes:
    into = BytesIO()
    schemaless_writer(into, parse_schema(schema), value)
    return into.getvalue()


def optional(name: str, kind: object) -> dict:
    return {"name": name, "type": ["null", kind]}


ORDER = {
    "type": "record",
    "name": "com.example.Order",
    "fields": [
        optional("a", "int"),
        optional("b", "string"),
        optional("c", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
        optional("t", {"type": "long", "logicalType": "timestamp-micros"}),
        {"name": "next", "type": ["null", "com.example.Order"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["x", "y"]}},
    ],
}
NOTHING = {"a": None, "b": None, "c": None, "t": None, "next": None, "kind": "x"}
FULL = NOTHING | {"a": 1, "b": "é", "c": Decimal("1.50"), "t": datetime(2024, 5, 1, 10, tzinfo=UTC), "next": NOTHING}
RECORDS = {
    avro(ORDER, FULL): [(1, "é", Decimal("1.50"), datetime(2024, 5, 1, 10, tzinfo=UTC))],
    avro(ORDER, NOTHING): [(None, None, None, None)],
    avro(ORDER, NOTHING | {"c": Decimal("123.45")}): None,
    avro(ORDER, NOTHING | {"b": "\x00"}): None,
    avro(ORDER, FULL)[:-1]: None,
    avro(ORDER, FULL) + b"\x00": None,
    # The branches 2 and -1 of a union of two, the symbol -1 of two, a text that is no UTF-8.
    b"\x04" + bytes(5): None,
    b"\x01" + bytes(5): None,
    bytes(5) + b"\x01": None,
    b"\x00\x02\x02\xff" + bytes(4): None,
    # A number of 41 bits, and one of more than 64.
    b"\x02\x80\x80\x80\x80\x80\x40" + bytes(5): None,
    b"\x02" + b"\xff" * 20 + b"\x01" + bytes(5): None,
    # A length below 0, and one that goes far beyond the end.
    b"\x00\x02\x01" + bytes(4): None,
    b"\x00\x02\xfe\xff\xff\xff\x0f" + bytes(4): None,
    # Day one of the year 10000.
    b"\x00\x00\x00\x02" + b"\x80\x80\x9b\xc7\x99\x83\xa2\x84\x07" + bytes(2): None,
    (bytes(4) + b"\x02") * 499 + bytes(5) + bytes(499) + bytes(1): [(None, None, None, None)],
    (bytes(4) + b"\x02") * 500 + bytes(5) + bytes(500) + bytes(1): None,
    (bytes(4) + b"\x02") * 100_000: None,
    b"": None,
}


class TestAvro(Conformance):
    case = Case(Avro("a int, b string, c decimal(4,2), t timestamp", schema=json.dumps(ORDER)), RECORDS)


MESSAGE = """
syntax = "proto3";
package com.example;
import "google/protobuf/timestamp.proto";
import "google/type/decimal.proto";
message Order {
  optional int32 a = 1; string b = 2; google.type.Decimal c = 3; google.protobuf.Timestamp t = 4; Order next = 5;
  Kind kind = 6; repeated int32 list = 7;
}
enum Kind { x = 0; y = 1; }
"""
TEN = sized(4, number(1, 1714557600))
MESSAGES = {
    number(1, 1) + text(2, "é") + sized(3, text(1, "1.50")) + TEN + sized(5, b""): [
        (1, "é", Decimal("1.50"), datetime(2024, 5, 1, 10, tzinfo=UTC), "x", [])
    ],
    b"": [(None, "", None, None, "x", [])],
    number(6, 1) + sized(7, b"\x01\x02") + number(7, 3): [(None, "", None, None, "y", [1, 2, 3])],
    number(1, 1) + number(1, -2): [(-2, "", None, None, "x", [])],
    # Fields that the type does not know.
    text(100, "z") + group(101, number(1, 5)) + varint(102 << 3 | 5) + bytes(4): [(None, "", None, None, "x", [])],
    number(6, 2): None,
    sized(3, text(1, "123.45")): None,
    text(2, "\x00"): None,
    text(2, "é")[:-1]: None,
    number(1, 1) + b"\x00": None,
    sized(2, b"\xff"): None,
    number(2, 1): None,
    text(1, "1"): None,
    number(1, 2**40): None,
    b"\x08" + b"\xff" * 20 + b"\x01": None,
    b"\x12\xff\xff\xff\xff\x0f": None,
    sized(4, number(2, 10**9)): None,
    varint(101 << 3 | 3): None,
    b"\x0c": None,
    varint(101 << 3 | 3) * 100 + varint(101 << 3 | 4) * 100: [(None, "", None, None, "x", [])],
    varint(101 << 3 | 3) * 101 + varint(101 << 3 | 4) * 101: None,
    varint(101 << 3 | 3) * 100_000: None,
}


class TestProtobuf(Conformance):
    case = Case(
        Protobuf(
            "a int, b string, c decimal(4,2), t timestamp, kind string, list array<int>",
            schema=MESSAGE,
            message="com.example.Order",
        ),
        MESSAGES,
    )


class TestProtobufAtOnce(Conformance):
    case = Case(
        Protobuf(
            "a int, b string, t timestamp, kind string",
            schema=MESSAGE,
            message="com.example.Order",
        ),
        {
            value: rows and [(*rows[0][:2], *rows[0][3:5])]
            for value, rows in MESSAGES.items()
            if value != sized(3, text(1, "123.45"))
        },
    )


class TestStructuredEvents(Conformance):
    case = Case(CloudEvents("id string, at timestamp from time", data=Json("a int, b string")), EVENTS)


class TestStructuredEventsBySaying(Conformance):
    case = Case(
        CloudEvents("id string, at timestamp from time", data=Json("a int, b string")),
        EVENTS,
        (("content-type", b"Application/CloudEvents+JSON; charset=UTF-8"), ("ce_id", b"no matter")),
    )


class TestEventsWithTheirDataAlone(Conformance):
    case = Case(CloudEvents("id string, at timestamp from time", data=Json("a int, b string")), DATA, BINARY_MODE)

    def test_as_a_key_it_is_refused_or_gives_one_row(self):
        """A key has no headers of its own."""
        topic = Topic("t", value=Json("x_ int"), key=self.case.format)
        opened = Envelope(topic).open(batch_of([Message(key, b"{}", BINARY_MODE) for key in (*DATA, *EVENTS)]))
        good = [rows[0] for rows in EVENTS.values() if rows is not None]
        assert [(row["id"], row["at"], row["a"], row["b"]) for row in opened.rows.to_pylist()] == good


class TestEventsOfSeveralRows(Conformance):
    case = Case(CloudEvents("id string", data=Csv("a int, b int", rows="lines")), PLACES, BINARY_MODE)


class TestEventsWithoutTheirData(Conformance):
    case = Case(
        CloudEvents("id string not null"),
        {
            _EVENT % b'"data": [1.5]': [("7",)],
            _EVENT % b'"datacontenttype": "text/plain", "data": {}': [("7",)],
            b"{}": None,
        },
    )


class TestMessagePack(Conformance):
    case = Case(MessagePack("a int, b string, c decimal(4,2), t timestamp"), MAPS)


class TestJsonObjects(Conformance):
    case = Case(Json("a int, b string, c decimal(4,2), t timestamp"), OBJECTS)


class TestJsonArrays(Conformance):
    case = Case(Json("id bigint, s string", rows="array"), ARRAYS)


class TestLines(Conformance):
    case = Case(Lines("line string not null"), LINES)


class TestTexts(Conformance):
    case = Case(Lines("whole string", split=False), TEXTS)


class Twin(Lines, frozen=True):
    """Differs from Lines in its kind alone."""

    kind: Literal["twin"] = "twin"


def test_the_hash_of_a_spec_tells_formats_apart():
    formats = [
        Json("line string"),
        Json("line string", rows="array"),
        Lines("line string"),
        Lines("line string", split=False),
        Lines("text string"),
        Text("line string"),
        CloudEvents("line string from id"),
        CloudEvents("line string from id", data=Json("a int")),
        CloudEvents("line string from id", data=Json("a int", rows="array")),
        CloudEvents("line string from id", data=MessagePack("a int")),
        Csv("line string"),
        Csv("line string", null=None),
        Csv("line string", rows="lines"),
        Bytes("line binary"),
        Twin("line string"),
    ]
    keys = [None, "k string", Json("k string"), Lines("k string", split=False), Twin("k string", split=False)]
    topics = [Topic("t", value=value, key=key) for value in formats for key in keys]
    rows = [Append("rows", columns="x int")]
    hashes = [Pipeline(name="p", source=topic, sinks=rows, transform="m:f").plan_hash for topic in topics]
    assert len(set(hashes)) == len(topics)
    # pydantic warns where it has to guess how a part is dumped.
    assert all(topic.model_dump_json(warnings="error") for topic in topics)
