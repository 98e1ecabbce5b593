"""A message type with fields of every kind, and what reads values of it: at once, and message by message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass

from ratchet import Protobuf
from ratchet.formats.port import Decoded, Use
from ratchet.formats.protobuf_decoder import ProtobufDecoder, Written
from ratchet.formats.protobuf_schema import of_text, schema_of
from ratchet.formats.walked import OneSchema
from ratchet.spec.columns import parse_columns

from .conformance import rows_of

IMPORTS = "".join(
    f'import "google/{name}.proto";\n'
    for name in (
        "protobuf/timestamp",
        "protobuf/duration",
        "protobuf/struct",
        "protobuf/wrappers",
        "type/date",
        "type/decimal",
        "type/timeofday",
    )
)
ALL = f"""
syntax = "proto3";
package all.v1;
{IMPORTS}
import "confluent/type/decimal.proto";
enum Kind {{ NONE = 0; NEW = 1; PAID = 5; LEFT = -2; }}
message In {{ int32 x = 1; string s = 2; optional int32 o = 3; In in = 4; }}
message All {{
  bool b = 1; int32 i32 = 2; int64 i64 = 3; uint32 u32 = 4; uint64 u64 = 5; sint32 s32 = 6; sint64 s64 = 7;
  fixed32 f32 = 8; fixed64 f64 = 9; sfixed32 sf32 = 10; sfixed64 sf64 = 11; float f = 12; double d = 13;
  string s = 14; bytes y = 15; Kind k = 16; In in = 17;
  optional int32 oi = 18; optional string os = 19; optional Kind ok = 20; optional bytes oy = 21;
  repeated int32 ri = 22; repeated string rs = 23; repeated In rin = 24; repeated Kind rk = 25; repeated double rd = 26;
  map<string, int64> ms = 27; map<int32, In> mi = 28; map<bool, string> mb = 29;
  oneof one {{ int32 a1 = 30; string a2 = 31; In a3 = 32; }}
  google.protobuf.Timestamp at = 33; google.protobuf.Duration du = 34; google.protobuf.Struct doc = 35;
  google.protobuf.Int64Value wi = 36; google.protobuf.StringValue ws = 37; google.protobuf.BoolValue wb = 38;
  google.type.Date day = 39; google.type.Decimal dec = 40; google.type.TimeOfDay tod = 41;
  confluent.type.Decimal cd = 42; google.protobuf.Value v = 43; repeated google.protobuf.Timestamp ats = 44;
  repeated int32 unpacked = 45 [packed = false];
}}
"""
SCHEMA = of_text(ALL)
TYPE = schema_of(SCHEMA).message("all.v1.All")
Message: Any = GetMessageClass(TYPE)


def decode(columns: str, *values: bytes, schema: str = SCHEMA, message: str = "all.v1.All") -> Decoded:
    decoder = Protobuf(columns, schema=schema, message=message).decoder(Use())
    return decoder.decode(pa.array(values, pa.binary()))


def decoded(columns: str, *values: bytes, **how: str):
    """([rows or None], [error or None]) of these values."""
    found = decode(columns, *values, **how)
    return rows_of(found, len(values)), found.errors.to_pylist()


class ByMessages:
    """Written, whose columns are not read at once."""

    def __init__(self, written: Written):
        self.walked, self.fault, self.value = written.walked, written.fault, written.value

    def vectors(self, *_: Any) -> None:
        return None


def both_ways(columns: str, values: Iterable[bytes]) -> tuple[Decoded, Decoded]:
    """What is read at once, and value by value from messages alone."""
    parsed = parse_columns(columns)
    sent = pa.array(values, pa.binary())
    of = Written(TYPE, parsed)
    one, other = (ProtobufDecoder(parsed, OneSchema(each)).decode(sent) for each in (of, ByMessages(of)))
    return one, other


def assert_alike(one: Decoded, other: Decoded) -> None:
    assert one.errors.to_pylist() == other.errors.to_pylist() and one.parents == other.parents
    assert str(one.columns.to_pylist()) == str(other.columns.to_pylist()) and one.cut == other.cut
    assert (one.found, one.beside) == (other.found, other.beside)
