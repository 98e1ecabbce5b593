"""What schemas of Avro, Protobuf and JSON offer to columns, and that values of such schemas fit what was offered."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from uuid import UUID

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from ratchet import Avro, Json, Protobuf
from ratchet.formats import avro_offer, json_schema_offer, protobuf_offer
from ratchet.formats.avro_schema import declared
from ratchet.formats.offered import Offer, Unkept, holds
from ratchet.formats.port import Format, Use
from ratchet.formats.protobuf_schema import registered
from ratchet.spec.columns import parse_columns

from .conformance import rows_of
from .protobuf_messages import IMPORTS

AT = datetime(2024, 5, 1, tzinfo=UTC)
BY = {"type": "record", "name": "By", "fields": [{"name": "name", "type": "string"}]}
AVRO = {
    "id": ("long", "id bigint not null", 2**60),
    "customerName": (["null", "string"], "customer_name string from customerName", "x"),
    "amount": (
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        "amount decimal(12,2) not null",
        Decimal("-1234567890.12"),
    ),
    "at": ({"type": "long", "logicalType": "timestamp-millis"}, "at timestamp not null", AT),
    "ns": ({"type": "long", "logicalType": "timestamp-nanos"}, "ns bigint not null", 1_714_521_600_123_456_789),
    "u": ({"type": "string", "logicalType": "uuid"}, "u uuid not null", str(UUID(int=7))),
    "state": ({"type": "enum", "name": "S", "symbols": ["NEW"]}, "state string not null", "NEW"),
    "by": (BY, "by struct<name: string not null> not null", {"name": "x"}),
    "tags": ({"type": "array", "items": ["null", "string"]}, "tags array<string> not null", ["x", None]),
    "counts": ({"type": "map", "values": "long"}, "counts map<string, bigint> not null", {"a": 1}),
    "one": (["null", "int", "long"], "one bigint", 2**40),
    "few": ({"type": "fixed", "name": "F", "size": 3}, "few binary not null", b"abc"),
}  # fmt: skip
"""{field: (its type in Avro, the column that is offered, a value)}."""
LEFT_OUT = {
    "big": (
        {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2},
        "it is a decimal(50,2), and a column has up to 38 digits",
    ),
    "tree": (["null", "R"], "it is within one of its own kind; declare it as json"),
    "mixed": (["string", "long"], "it is a union of string and long, and no type holds all of them; declared as json "),
    "nil": ("null", "it is always null"),
    "ID": ("int", "its name and that of id make one; declare a column as: name type from"),
    "_": ("int", "its name makes no column; declare a column as: name type from"),
}


def avro(fields: dict[str, object], **more: object) -> dict:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t, **more} for n, t in fields.items()]}


def offered(schema: dict) -> Offer:
    return avro_offer.offer_of(declared(json.dumps(schema)))


def columns_of(offer: Offer) -> str:
    said = ", ".join(map(str, offer.columns))
    assert parse_columns(said) == offer.columns
    return said


def read(format_: Format, value: bytes):
    found = format_.decoder(Use()).decode(pa.array([value], pa.binary()))
    assert found.errors.to_pylist() == [None]
    return rows_of(found, 1)[0][0]


def test_each_type_of_avro_has_the_column_that_keeps_it():
    schema = avro({name: kind for name, (kind, _, _) in AVRO.items()})
    said = columns_of(offered(schema))
    assert said == ", ".join(column for _, column, _ in AVRO.values())
    into = BytesIO()
    schemaless_writer(into, parse_schema(schema), {name: value for name, (_, _, value) in AVRO.items()})
    row = dict(zip(AVRO, read(Avro(said, schema=json.dumps(schema)), into.getvalue()), strict=True))
    assert row["amount"] == Decimal("-1234567890.12") and row["ns"] == 1_714_521_600_123_456_789
    assert row["one"] == 2**40 and row["few"] == b"abc" and row["tags"] == ["x", None]


def test_what_no_column_keeps_is_left_out_with_its_reason():
    found = offered(avro({"id": "long", **{name: kind for name, (kind, _) in LEFT_OUT.items()}}))
    assert columns_of(found) == "id bigint not null"
    said = {remark.path[0]: remark.said for remark in found.remarks if remark.left_out}
    assert said.keys() == LEFT_OUT.keys()
    assert all(said[name].startswith(why) for name, (_, why) in LEFT_OUT.items())
    inner = avro({"by": {"type": "record", "name": "B", "fields": [{"name": "n", "type": "null"}, *BY["fields"]]}})
    assert columns_of(offered(inner)) == "by struct<name: string not null> not null"
    assert [str(remark) for remark in offered(inner).remarks] == ["by.n is left out: it is always null"]


def test_a_field_with_a_default_may_have_come_later_and_is_null_before():
    found = offered(avro({"a": "int", "b": ["int", "null"]}, default=0))
    # Only the second one is null by this schema itself.
    assert columns_of(found) == "a int, b int" and found.later == {("a",)}


def test_a_time_without_a_zone_and_an_unknown_logical_type_are_said():
    local = {"type": "long", "logicalType": "local-timestamp-micros"}
    duration = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    found = offered(avro({"local": local, "span": duration}))
    assert columns_of(found) == "local timestamp not null, span binary not null"
    assert [str(remark) for remark in found.remarks] == [
        "local: it is a time without a zone, which is taken for UTC",
        "span: its logical type duration is not known; it is kept as the fixed that it is",
    ]


def test_a_value_that_is_no_record_is_that_of_one_column():
    found = avro_offer.offer_of(declared('"string"'))
    assert columns_of(found) == "value string not null" and found.at(("id",)) == found.members[0]


PROTO = f"""syntax = "proto3"; package o; {IMPORTS}
message Order {{
  int64 id = 1; uint64 most = 2; google.protobuf.Timestamp at = 3; repeated string tags = 4; map<int32, By> by_id = 5;
  By by = 6; Order parent = 7; google.type.Decimal price = 8; google.protobuf.Int32Value maybe = 9; State state = 10;
  bytes raw = 11; google.protobuf.Struct more = 12; Empty empty = 13; google.protobuf.Duration took = 14;
}}
message By {{ string name = 1; }} message Empty {{}} enum State {{ NEW = 0; }}
"""


def test_each_type_of_protobuf_has_the_column_that_keeps_it():
    schema = registered(PROTO, {})
    found = protobuf_offer.offer_of(schema.message("o.Order"))
    said = columns_of(found)
    assert said == (
        "id bigint, most decimal(20,0), at timestamp strict, tags array<string>, by_id map<string, struct<name: "
        "string>>, by struct<name: string>, maybe int, state string, raw binary, more json, took decimal(21,9)"
    )
    assert {remark.path[0] for remark in found.remarks if remark.left_out} == {"parent", "price", "empty"}
    value = bytes([16, *[255] * 9, 1])
    row = read(Protobuf(said, schema=PROTO, message="o.Order"), value)
    assert row[1] == 2**64 - 1


def json_schema(properties: dict[str, object], **more: object) -> str:
    return json.dumps({"type": "object", "properties": properties, **more})


def test_each_type_of_a_json_schema_has_the_column_that_keeps_it():
    by = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "by": {"$ref": "#/$defs/by"}},
        "required": ["name"],
    }
    properties = {
        "id": {"type": "integer"},
        "amount": {"type": "number", "multipleOf": 0.1},
        "rate": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "by": {"$ref": "#/$defs/by"},
        "maybe": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
        "name": {"type": ["string", "null"]},
        "any": {},
        "either": {"type": ["string", "integer"]},
        "tags": {"type": "array", "items": {"type": "string", "format": "uuid"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "beside": {"$ref": "other.json#/properties/id"},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "lost": {"$ref": "nowhere.json"},
    }  # fmt: skip
    text = json_schema(properties, required=["id", "name"], **{"$defs": {"by": by}})
    found = json_schema_offer.offer_of(text, {"other.json": json_schema({"id": {"type": "boolean"}})})
    said = columns_of(found)
    assert said == (
        "id bigint not null, amount decimal(38,1), rate json, at timestamp strict, by struct<name: string not null>, "
        "maybe boolean, name string, any json, either json, tags array<uuid>, counts map<string, bigint>, "
        "beside boolean, raw binary"
    )
    assert {remark.path for remark in found.remarks if remark.left_out} == {("by", "by"), ("lost",)}
    row = read(Json(said), b'{"id": 1, "amount": 1.1, "rate": 0.30000000000000000001, "either": "x", "raw": "YQ=="}')
    assert row[1] == Decimal("1.1") and str(row[2]) == "0.30000000000000000001" and row[8] == '"x"' and row[12] == b"a"


@pytest.mark.parametrize("text", ['{"type": "string"}', "[]", "{", '{"$ref": "#/nowhere"}', '{"$ref": "#"}'])
def test_a_json_schema_whose_values_name_no_properties_offers_nothing(text):
    with pytest.raises(Unkept):
        json_schema_offer.offer_of(text, {})


@pytest.mark.parametrize(
    ("kind", "of", "is_kept"),
    [
        ("bigint", "int", True),
        ("int", "bigint", False),
        ("decimal(12,2)", "int", True),
        ("decimal(11,2)", "int", False),
        ("decimal(14,4)", "decimal(12,2)", True),
        ("decimal(12,4)", "decimal(12,2)", False),
        ("double", "int", True),
        ("double", "bigint", False),
        ("float", "double", False),
        ("timestamp(millis)", "bigint", True),
        ("timestamp", "bigint", False),
        ("string", "uuid", True),
        ("uuid", "string", True),
        ("string", "int", False),
        ("json", "struct<a: int>", True),
        ("struct<a: bigint>", "struct<a: int, b: int>", True),
        ("struct<a: int not null>", "struct<a: int>", False),
        ("struct<c: int>", "struct<a: int>", False),
        ("map<string, int>", "struct<a: int, b: string>", False),
        ("array<string>", "array<int>", False),
    ],
)
def test_a_column_holds_what_no_value_of_the_field_is_bent_for(kind, of, is_kept):
    one, other = (parse_columns(f"c {said}")[0].type for said in (kind, of))
    assert holds(one, other) is is_kept
