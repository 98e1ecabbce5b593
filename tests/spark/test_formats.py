"""Each format in a Spark job of the worker lane, all of one topic: the records of one are dead letters to others."""

from __future__ import annotations

import pytest
from msgspec import msgpack

from ratchet import Append, Bytes, CloudEvents, Csv, Json, MessagePack, Pipeline, Protobuf, Text, Topic
from tests.formats.wireformat import number, text

EVENT = [("ce_specversion", b"1.0"), ("ce_id", b"e1"), ("ce_source", b"/s"), ("ce_type", b"t")]
SENT = [
    (b'{"id": 1, "name": "json"}', []),
    (msgpack.encode({"id": 2, "name": "messagepack"}), []),
    (b'3,"csv, ""quoted"""\n', []),
    (b'{"specversion": "1.0", "id": "e4", "source": "/s", "type": "t", "data": {"id": 4, "name": "structured"}}', []),
    (b'{"id": 5, "name": "binary"}', [*EVENT, ("content-type", b"application/json")]),
    (b"\xff\x00", []),
    (number(1, 7) + text(2, "protobuf"), []),
]
ORDER = 'syntax = "proto3"; package o; message Order { int32 id = 1; string name = 2; repeated string tags = 3; }'
# The rows by offset, and the offsets of dead letters.
FORMATS = {
    "json": (Json("id int not null, name string"), {0: (1, "json"), 4: (5, "binary")}),
    "messagepack": (MessagePack("id int, name string"), {1: (2, "messagepack")}),
    "csv": (Csv("id int, name string"), {2: (3, 'csv, "quoted"')}),
    "text": (Text("line string"), {n: (value.decode(),) for n, (value, _) in enumerate(SENT) if n not in (1, 5)}),
    "protobuf": (
        Protobuf("id int, name string, tags array<string>", schema=ORDER, message="o.Order"),
        {6: (7, "protobuf", [])},
    ),
    "bytes": (Bytes("payload binary"), {n: (value,) for n, (value, _) in enumerate(SENT)}),
    "events": (
        CloudEvents("event string from id", data=Json("id int, name string")),
        {3: ("e4", 4, "structured"), 4: ("e1", 5, "binary")},
    ),
}


@pytest.mark.all
def test_each_format_reads_its_records_of_a_topic_of_all(rig):
    topic = rig.topic()
    for value, headers in SENT:
        rig.send(topic, value, headers=headers)
    for name, (declared, rows) in FORMATS.items():
        columns = ", ".join(f"{column.name} {column.type}" for column in declared.fields)
        sink = Append(f"rows_{name}", columns=columns)
        spec = Pipeline(name=f"p_{name}", source=Topic(topic, value=declared), sinks=[sink])
        (work,) = rig.begin(spec, run_id=name)
        vote = rig.run(spec, work)
        found = {r["_offset"]: tuple(r[c.name] for c in declared.fields) for r in rig.written(work, sink.name)}
        assert found == rows, name
        dead = {r["_offset"]: r["value"] for r in rig.written(work, "dead_letters") if r["_pipeline"] == spec.name}
        assert dead == {n: value for n, (value, _) in enumerate(SENT) if n not in rows}, name
        rig.check(spec, work, vote)
