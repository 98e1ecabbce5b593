"""A second format, named by a spec alone, from records to the frame that Spark is given; without Spark."""

from __future__ import annotations

import pickle

import pytest

from ratchet import Append, Pipeline, Topic
from ratchet.errors import SpecError
from ratchet.spark.decode import NO_ROW, Decoding, frame_schema
from ratchet.spark.intake import Intake
from ratchet.spark.servers import Servers

from .lines import Lines
from .messages import Message
from .test_messages import batch_of
from .topics import TIMESTAMP

TOPIC = Topic("t", value=Lines("line string, at timestamp from _timestamp"), key=Lines("sender string", split=False))
SENT = [
    Message(b"ann", b"one\ntwo"),
    Message(b"bob", b""),
    Message(b"cid", b"\xff"),
    Message(b"\xff", b"x"),
    Message(None, b"three"),
    Message(b"eve", None),
]


def spec() -> Pipeline:
    sink = Append("rows", columns="line string, sender string, at timestamp")
    return Pipeline(name="p", source=TOPIC, sinks=[sink])


def test_a_worker_decodes_what_a_spec_declares():
    decoding = pickle.loads(pickle.dumps(Decoding(Intake(spec().source, "id", Servers({}), False, None))))
    (frame,) = decoding(iter([batch_of(SENT)]))
    assert dict(zip(frame.schema.names, frame.schema.types, strict=True)) == frame_schema(TOPIC)
    rows = [r for r in frame.to_pylist() if r["_error"] is None and r["_n"] != NO_ROW]
    assert [(r["_offset"], r["_n"], r["line"], r["sender"], r["at"]) for r in rows] == [
        (100, 0, "one", "ann", TIMESTAMP),
        (100, 1, "two", "ann", TIMESTAMP),
        (104, 0, "three", None, TIMESTAMP),
    ]
    assert [r["_offset"] for r in frame.to_pylist() if r["_n"] == NO_ROW] == [101]
    assert {r["_offset"]: r["_error"] for r in frame.to_pylist() if r["_error"]} == {
        102: "the value: found invalid UTF-8 at byte 0, wanted text",
        103: "the key: found invalid UTF-8 at byte 0, wanted text",
        105: "no value (a tombstone)",
    }


def test_a_sink_takes_its_columns_from_any_format():
    with pytest.raises(SpecError, match="needs column 'text', which topic 't' does not declare"):
        Pipeline(name="p", source=TOPIC, sinks=[Append("rows", columns="text string")])


@pytest.mark.parametrize("columns", ["n int", "a string, b string", "at timestamp from _timestamp", "line string,"])
def test_its_own_rules_are_a_specs_errors(columns):
    with pytest.raises(SpecError, match=r"Lines\.columns: "):
        Lines(columns)
