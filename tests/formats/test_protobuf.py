"""Protobuf: what Google's library has written comes back as it was, and what is no message does not come back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet import Protobuf
from ratchet.formats.port import Decoded, Use
from ratchet.formats.protobuf_decoder import OneMessage, ProtobufDecoder, Written
from ratchet.formats.protobuf_schema import of_text, schema_of
from ratchet.spec.columns import parse_columns

from .conformance import rows_of
from .wireformat import double, group, number, single, sized, text, varint, zigzag

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

INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
NAMES = {0: "NONE", 1: "NEW", 5: "PAID", -2: "LEFT"}
KIND = st.sampled_from(sorted(NAMES))
DOUBLES = st.floats(allow_nan=False)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
MOMENTS = st.datetimes(timezones=st.just(UTC))


@dataclass
class Field:
    """A column of the field, what may be set, what the column has of it, and what it has where nothing is set."""

    column: str
    values: st.SearchStrategy
    seen: Callable[[Any], Any] = lambda value: value
    default: Any = None
    put: Callable[[Any, Any], None] | None = None


def inner(value: dict) -> dict:
    return {"x": value.get("x", 0), "s": value.get("s", ""), "o": value.get("o")}


def moment(message: Any, at: datetime) -> None:
    message.at.seconds = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    message.at.nanos = at.microsecond * 1000


IN = "struct<x: int, s: string, o: int>"
INNER = st.fixed_dictionaries({}, optional={"x": INTS, "s": TEXTS, "o": INTS})
FIELDS = {
    "b": Field("boolean", st.booleans(), default=False),
    "i32": Field("int", INTS, default=0),
    "i64": Field("bigint", LONGS, default=0),
    "u32": Field("bigint", st.integers(0, 2**32 - 1), default=0),
    "u64": Field("decimal(20,0)", st.integers(0, 2**64 - 1), Decimal, Decimal(0)),
    "s32": Field("int", INTS, default=0),
    "s64": Field("bigint", LONGS, default=0),
    "f32": Field("bigint", st.integers(0, 2**32 - 1), default=0),
    "f64": Field("decimal(20,0)", st.integers(0, 2**64 - 1), Decimal, Decimal(0)),
    "sf32": Field("int", INTS, default=0),
    "sf64": Field("bigint", LONGS, default=0),
    "f": Field("float", st.floats(width=32, allow_nan=False), default=0.0),
    "d": Field("double", DOUBLES, default=0.0),
    "s": Field("string", TEXTS, default=""),
    "y": Field("binary", st.binary(max_size=9), default=b""),
    "k": Field("string", KIND, NAMES.get, "NONE"),
    "in": Field(IN, INNER, inner),
    "oi": Field("int", INTS),
    "os": Field("string", TEXTS),
    "ok": Field("string", KIND, NAMES.get),
    "oy": Field("binary", st.binary(max_size=9)),
    "ri": Field("array<int>", st.lists(INTS, max_size=4), default=[]),
    "unpacked": Field("array<int>", st.lists(INTS, max_size=4), default=[]),
    "rs": Field("array<string>", st.lists(TEXTS, max_size=4), default=[]),
    "rk": Field("array<string>", st.lists(KIND, max_size=4), lambda of: [NAMES[n] for n in of], []),
    "rd": Field("array<double>", st.lists(FINITE, max_size=4), default=[]),
    "rin": Field(f"array<{IN}>", st.lists(INNER, max_size=3), lambda of: [inner(each) for each in of], []),
    "ms": Field("map<string, bigint>", st.dictionaries(TEXTS, LONGS, max_size=3), lambda m: sorted(m.items()), []),
    "mb": Field(
        "map<string, string>",
        st.dictionaries(st.booleans(), TEXTS),
        lambda m: [(str(key).lower(), value) for key, value in sorted(m.items())],
        [],
    ),
    "at": Field("timestamp", MOMENTS, put=moment),
    "wi": Field("bigint", LONGS, put=lambda m, v: setattr(m.wi, "value", v) or m.wi.SetInParent()),
    "ws": Field("string", TEXTS, put=lambda m, v: setattr(m.ws, "value", v) or m.ws.SetInParent()),
    "wb": Field("boolean", st.booleans(), put=lambda m, v: setattr(m.wb, "value", v) or m.wb.SetInParent()),
    "day": Field(
        "date",
        st.dates(),
        put=lambda m, v: [setattr(m.day, part, getattr(v, part)) for part in ("year", "month", "day")],
    ),
    "dec": Field("decimal(6,2)", st.decimals(-9999, 9999, places=2), put=lambda m, v: setattr(m.dec, "value", str(v))),
}


def written(row: dict[str, Any]) -> bytes:
    """A message with these fields, by Google's serializer."""
    message = Message()
    for name, value in row.items():
        put = FIELDS[name].put
        if put is not None:
            put(message, value)
        elif isinstance(value, dict) and name == "in":
            getattr(message, name).CopyFrom(Message(**{"in": value}).__getattribute__("in"))
        elif isinstance(value, dict):
            getattr(message, name).update(value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, dict):
                    getattr(message, name).add(**each)
                else:
                    getattr(message, name).append(each)
        else:
            setattr(message, name, value)
    return message.SerializeToString()


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
    one, other = (ProtobufDecoder(parsed, OneMessage(each)).decode(sent) for each in (of, ByMessages(of)))
    return one, other


def assert_alike(one: Decoded, other: Decoded) -> None:
    assert one.errors.to_pylist() == other.errors.to_pylist() and one.parents == other.parents
    assert str(one.columns.to_pylist()) == str(other.columns.to_pylist()) and one.cut == other.cut
    assert (one.found, one.beside) == (other.found, other.beside)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_was_written_comes_back_exactly(data):
    names = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=8, unique=True))
    columns = ", ".join(f"c{i} {FIELDS[name].column} from {name}" for i, name in enumerate(names))
    rows = data.draw(
        st.lists(st.fixed_dictionaries({}, optional={n: FIELDS[n].values for n in names}), min_size=1, max_size=4)
    )
    found, errors = decoded(columns, *(written(row) for row in rows))
    assert errors == [None] * len(rows)
    expected = [tuple(FIELDS[n].seen(row[n]) if n in row else FIELDS[n].default for n in names) for row in rows]
    assert [row for (row,) in found] == expected


COLUMNS = (
    "b boolean, i32 int, i64 bigint, u64 bigint, d double, f float, s string, y binary, k string, kn int from k, "
    "x int from in.x, o int from in.in.o, oi int, a1 smallint, a2 string, ax int from a3.x, at timestamp, "
    "ats timestamp strict from at, secs bigint from at.seconds, wi int, ws string, sf32 smallint, j json from in"
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_columns_that_are_read_at_once_are_what_the_definition_says(data):
    rows = data.draw(
        st.lists(st.fixed_dictionaries({}, optional={n: f.values for n, f in FIELDS.items()}), min_size=1, max_size=3)
    )
    values = [written(row) for row in rows]
    values += [_spoilt(data, value) for value in values]
    assert_alike(*both_ways(COLUMNS, values))


def _spoilt(data, good: bytes) -> bytes:
    at = data.draw(st.integers(0, len(good)))
    return good[:at] + data.draw(st.binary(max_size=4)) + good[at + data.draw(st.integers(0, 3)) :]


def test_twenty_thousand_mutated_values_are_rows_or_dead_letters_and_the_same_both_ways():
    rng = random.Random(7)
    base = Message(
        b=True, i32=-5, i64=2**40, u64=2**62, d=1.5, s="é", y=b"\xff", k=5, oi=0, ri=[1, -1], rs=["a"], a2="x",
        ms={"a": 1}, mi={3: {"x": 1}}, rin=[{"x": 1, "in": {"s": "deep"}}], ats=[{"seconds": 5}],
    )  # fmt: skip
    base.at.seconds, base.at.nanos, base.doc["k"], base.v.number_value = 1714557600, 15_000, [1, None, "x"], 5
    getattr(base, "in").x = 7
    good = base.SerializeToString()
    values = []
    for _ in range(20_000):
        value = bytearray(good)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(value))
            match rng.randrange(4):
                case 0:
                    value[at] = rng.randrange(256)
                case 1:
                    del value[at : at + rng.randrange(1, 4)]
                case 2:
                    value[at:at] = rng.randbytes(rng.randrange(1, 4))
                case _:
                    value[at] ^= 1 << rng.randrange(8)
        values.append(bytes(value))
    columns = f"{COLUMNS}, l array<int> from ri, m map<string, json> from mi, doc json, v json, rin json"
    one, other = both_ways(columns, [good, *values])
    assert one.errors[0].as_py() is None
    assert_alike(one, other)
    bad = [error for error in one.errors.to_pylist() if error]
    assert 2_000 < len(bad) < 19_000 and all(error.startswith(("the value: ", "column ")) for error in bad)


@pytest.mark.parametrize(
    ("columns", "value", "row"),
    [
        # Of a field that is there twice the last counts; a message is put together.
        ("i32 int", number(2, 1) + number(2, 7), (7,)),
        (
            "x int from in.x, s string from in.s",
            sized(17, number(1, 3) + text(2, "a")) + sized(17, text(2, "b")),
            (3, "b"),
        ),
        # Of a oneof the last; what is set anew begins from nothing.
        ("a1 int, a2 string", number(30, 5) + text(31, "x"), (None, "x")),
        (
            "a1 int, x int from a3.x, o int from a3.o",
            sized(32, number(1, 3) + number(3, 4)) + number(30, 5) + sized(32, b""),
            (None, 0, None),
        ),
        ("a1 int, x int from a3.x", sized(32, number(1, 3)) + number(30, 0), (0, None)),
        # A default and an absence.
        ("i32 int, oi int, x int from in.x, s string", b"", (0, None, None, "")),
        ("x int from in.x, o int from in.o", sized(17, b""), (0, None)),
        ("x int from in.in.x", sized(17, b""), (None,)),
        ("oi int, os string", number(18, 0) + text(19, ""), (0, "")),
        # Packed, in several pieces, or not packed, whatever the schema says.
        ("ri array<int>", sized(22, varint(1) + varint(-1)) + number(22, 5) + sized(22, b""), ([1, -1, 5],)),
        ("a array<int> from unpacked", sized(45, varint(1) + varint(2)) + number(45, 3), ([1, 2, 3],)),
        # Numbers in all their forms; ten bytes for negative ones, and bytes that say nothing.
        ("i32 int", number(2, -1), (-1,)),
        ("i32 int", number(2, 5, longer=8), (5,)),
        ("s32 int, s64 bigint", varint(6 << 3) + zigzag(-(2**31)) + varint(7 << 3) + zigzag(2**63 - 1), None),
        ("sf32 int", varint(10 << 3 | 5) + b"\xff\xff\xff\xff", (-1,)),
        ("f32 bigint", varint(8 << 3 | 5) + b"\xff\xff\xff\xff", (2**32 - 1,)),
        ("u64 decimal(20,0)", number(5, 2**64 - 1), (Decimal(2**64 - 1),)),
        ("d double, f float", double(13, float("-inf")) + single(12, 0.1), (float("-inf"), 0.10000000149011612)),
        # Unknown fields of every wire type, groups within groups among them, mean nothing.
        (
            "i32 int",
            number(100, 5) + sized(101, b"\xff") + double(102, 1.0) + single(103, 1.0) + number(2, 6),
            (6,),
        ),
        ("i32 int", group(104, number(2, 1) + group(2, sized(17, b"x")) + number(2, 9)) + number(2, 6), (6,)),
        # Enums: by name, by number, and a number without a name where only its number is wanted.
        ("k string, n int from k", number(16, -2), ("LEFT", -2)),
        ("n int from k", number(16, 77), (77,)),
        # Maps: a key without a value, doubled keys, other keys than texts, in the order of the keys.
        (
            "ms map<string, bigint>",
            sized(27, text(1, "b")) + sized(27, text(1, "a") + number(2, 1)) + sized(27, text(1, "a") + number(2, 2)),
            ([("a", 2), ("b", 0)],),
        ),
        ("mi json", sized(28, number(1, 10)) + sized(28, number(1, 9) + sized(2, number(1, 5))), None),
        ("b bigint from ms.b", sized(27, text(1, "b") + number(2, 3)), (3,)),
        # What everybody knows.
        ("at timestamp", sized(33, number(1, -1) + number(2, 999_999_000)), None),
        ("s bigint from at.seconds, n int from at.nanos", sized(33, number(1, 5) + number(2, 7)), (5, 7)),
        ("du decimal(12,9)", sized(34, number(1, -1) + number(2, -500_000_000)), (Decimal("-1.500000000"),)),
        ("du double", sized(34, number(2, 250_000_000)), (0.25,)),
        ("wi bigint, v bigint from wi.value", sized(36, b""), (0, 0)),
        ("wi bigint, v bigint from wi.value", b"", (None, None)),
        ("day date", sized(39, number(1, 2024) + number(2, 2) + number(3, 29)), (date(2024, 2, 29),)),
        ("dec decimal(20,3), t string from dec.value", sized(40, text(1, "-1e3")), (Decimal("-1000.000"), "-1e3")),
        ("tod time", sized(41, number(1, 23) + number(4, 5_000)), ("23:00:00.000005",)),
        ("cd decimal(5,2)", sized(42, sized(1, b"\xff\x7f") + number(3, 2)), (Decimal("-1.29"),)),
        (
            "doc json, k int from doc.k",
            sized(35, sized(1, text(1, "k") + sized(2, double(2, 5.0)))),
            ('{"k": 5}', None),
        ),
        ("v json", sized(43, number(1, 0)), (None,)),
        ("j json from in", sized(17, number(3, 0)), ('{"o": 0, "s": "", "x": 0}',)),
    ],
)
def test_what_a_field_means(columns, value, row):
    if row is None:
        row = {
            "s32 int, s64 bigint": (-(2**31), 2**63 - 1),
            "mi json": ('{"9": {"s": "", "x": 5}, "10": {"s": "", "x": 0}}',),
            "at timestamp": (datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),),
        }[columns]
    if columns.startswith("doc"):
        columns, row = "doc json, k bigint from doc.k", ('{"k": 5}', 5)
    for found in both_ways(columns, [value]):
        assert rows_of(found, 1) == [[row]], found.errors


@pytest.mark.parametrize(
    ("columns", "value", "error"),
    [
        ("i32 int", b"\x10", "it ends too early, at byte 0"),
        ("i32 int", b"\x10\x80", "it ends too early, at byte 0"),
        ("s string", number(2, 1) + b"\x72\x05abc", "it ends too early, at byte 2"),
        ("s string", b"\x72\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "it ends too early, at byte 0"),
        ("s string", b"\x72\xff\xff\xff\xff\x0f", "it ends too early, at byte 0"),
        ("x int from in.x", sized(17, b"\x08")[:-1] + b"\x08", "it ends too early"),
        ("x int from in.x", sized(17, b"\x12\x05ab") + b"cde", "it ends too early, at byte 3"),
        ("d double", double(13, 1.0)[:-1], "it ends too early, at byte 0"),
        ("ri array<int>", sized(22, b"\x01\x80"), "it ends too early, at byte 0"),
        ("i32 int", b"\x10" + b"\xff" * 10 + b"\x01", "a number of more than 64 bits, at byte 0"),
        ("i32 int", b"\x10" + b"\xff" * 9 + b"\x02", "a number of more than 64 bits, at byte 0"),
        ("i32 int", number(100, 5) + b"\x10" + b"\x80" * 10 + b"\x00", "a number of more than 64 bits, at byte 3"),
        ("i32 int", number(2, 2**31), "a number that all.v1.All.i32 does not have, at byte 0"),
        ("s string", number(2, 2**40), "a number that all.v1.All.i32 does not have, at byte 0"),
        ("u32 bigint", number(4, -1), "a number that all.v1.All.u32 does not have, at byte 0"),
        ("s32 int", varint(6 << 3) + zigzag(2**31), "a number that all.v1.All.s32 does not have, at byte 0"),
        ("b boolean", number(1, 2), "a number that all.v1.All.b does not have, at byte 0"),
        ("ri array<int>", sized(22, varint(1) + varint(2**31)), "a number that all.v1.All.ri does not have"),
        ("i32 int", double(2, 1.0), "all.v1.All.i32 in another wire type than its own, at byte 0"),
        ("i32 int", text(2, "x"), "all.v1.All.i32 in another wire type than its own, at byte 0"),
        ("b boolean", number(14, 1), "all.v1.All.s in another wire type than its own, at byte 0"),
        ("b boolean", group(17, b""), "all.v1.All.in in another wire type than its own, at byte 0"),
        ("x int from in.x", sized(17, text(1, "x")), "all.v1.In.x in another wire type than its own, at byte 3"),
        ("rs array<string>", text(23, "a") + number(23, 1), "all.v1.All.rs in another wire type than its own"),
        ("b boolean", sized(14, b"\xff"), "a text that is no UTF-8 in all.v1.All.s, at byte 0"),
        ("b boolean", sized(27, sized(1, b"\xc0\x80")), "a text that is no UTF-8 in all.v1.All.MsEntry.key, at byte 3"),
        ("i32 int", b"\x00\x01", "a tag that no field has, at byte 0"),
        ("i32 int", b"\x16", "a tag that no field has, at byte 0"),
        ("i32 int", varint(2**32) + b"\x01", "a tag that no field has, at byte 0"),
        ("i32 int", varint(16, 5) + b"\x01", "a tag that no field has, at byte 0"),
        ("i32 int", b"\x0c", "the end of a group that has not begun, at byte 0"),
        ("i32 int", varint(104 << 3 | 3) + varint(105 << 3 | 4), "the end of a group that has not begun, at byte 2"),
        ("i32 int", varint(104 << 3 | 3) + number(2, 1), "it ends too early, at byte 4"),
        ("i32 int", sized(17, varint(104 << 3 | 3)) + varint(104 << 3 | 4), "it ends too early"),
    ],
)
def test_what_a_library_would_bend_is_an_error_that_says_where(columns, value, error):
    for found in both_ways(columns, [value]):
        (said,) = found.errors.to_pylist()
        assert (
            said is not None and error in said and said.startswith(f"the value: found {len(value)} bytes that are no")
        )


@pytest.mark.parametrize(
    ("columns", "value", "error"),
    [
        ("k string", number(16, 77), "column k: found the number 77, which all.v1.Kind has no name for, wanted string"),
        ("rk array<string>", sized(25, b"\x01\x07"), "column rk[1]: found the number 7, which all.v1.Kind has no name"),
        ("u64 bigint", number(5, 2**63), "column u64: found 9223372036854775808, wanted bigint"),
        ("f64 bigint", varint(9 << 3 | 1) + b"\xff" * 8, "column f64: found 18446744073709551615, wanted bigint"),
        ("i64 int", number(3, 2**31), "column i64: found 2147483648, wanted int"),
        ("s string", text(14, "a\x00"), "column s: found text with U+0000, wanted string"),
        ("rd array<double>", sized(26, b"\x00" * 6 + b"\xf8\x7f"), "column rd[0]: found nan, wanted a finite double"),
        ("d decimal(5,2)", double(13, 1.5), "column d: found 1.5, wanted decimal(5,2)"),
        ("at timestamp", sized(33, number(2, 10**9)), "column at: found 0 s and 1000000000 ns, which is no moment"),
        ("at timestamp", sized(33, number(2, -1)), "column at: found 0 s and -1 ns, which is no moment"),
        ("at timestamp", sized(33, number(1, 253402300800)), "column at: found 253402300800 s and 0 ns, which is no"),
        ("at timestamp", sized(33, number(1, -62135596801)), "which is no moment of the years 1 to 9999"),
        ("at timestamp strict", sized(33, number(2, 1)), "wanted timestamp strict, with no digits beyond microseconds"),
        ("du double", sized(34, number(1, 1) + number(2, -1)), "column du: found 1 s and -1 ns, which is no duration"),
        ("day date", sized(39, number(1, 2024)), "column day: found year 2024, month 0, day 0, which is no date"),
        ("tod time", sized(41, number(1, 24)), "column tod: found 24 h, 0 min, 0 s and 0 ns, which is no time of a"),
        ("dec decimal(5,2)", sized(40, text(1, "x")), "column dec: found x, wanted decimal(5,2)"),
        ("cd decimal(5,2)", sized(42, number(3, 2**30)), "column cd: found a decimal of 0 bytes and scale 1073741824"),
        ("v json", sized(43, b""), "column v: found a Value without one, wanted json"),
        ("v json", sized(43, double(2, float("nan"))), "column v: found nan, wanted json"),
        ("x int from doc.a.b", sized(35, sized(1, text(1, "a") + sized(2, double(2, 1.0)))), "column x: found 1, want"),
        ("oi int not null", b"", "column oi: found null, wanted int not null"),
        ("i32 int from in not null", sized(17, b""), "column i32: found named fields, wanted int"),
    ],
)
def test_what_a_field_cannot_mean(columns, value, error):
    for found in both_ways(columns, [value]):
        (said,) = found.errors.to_pylist()
        assert said is not None and error in said and said.isprintable()


def test_finer_digits_of_a_moment_are_cut_and_counted():
    found = decode("at timestamp", sized(33, number(2, 1_999)), sized(33, number(2, 2_000)))
    at = datetime(1970, 1, 1, tzinfo=UTC)
    assert found.columns.column("at").to_pylist() == [at + timedelta(microseconds=n) for n in (1, 2)]
    assert found.cut == 1
    (whole,), _ = decoded("a json from ats", sized(44, number(2, 1_999)))
    assert whole == [('["1970-01-01T00:00:00.000001999+00:00"]',)]


def test_nan_is_a_value_of_a_float_column():
    (((a, b),),), _ = decoded("d double, f float", double(13, float("nan")) + single(12, float("nan")))
    assert a != a and b != b


@pytest.mark.parametrize("columns", ["i32 int", "j json from in", "x int from in.in.in.x"])
def test_messages_within_each_other_have_a_limit_below_which_they_are_read(columns):
    def nested(levels: int) -> bytes:
        sent = b""
        for _ in range(levels - 1):
            sent = sized(4, sent)
        return sized(17, sent)

    for of in (nested, lambda n: varint(104 << 3 | 3) * n + varint(104 << 3 | 4) * n):
        _, errors = decoded(columns, of(100), of(101), of(20_000))
        assert errors[0] is None
        assert all("more than 100 messages within each other" in error for error in errors[1:])
    assert decoded(columns, varint(104 << 3 | 3) * 1_000_000)[1][0].startswith("the value: ")


TWO = """
syntax = "proto2";
enum Shut { A = 0; B = 2; }
message T {
  optional Shut e = 1; repeated Shut es = 2; map<string, Shut> m = 3; optional int32 i = 4 [default = 7];
  optional group G = 5 { optional int32 x = 1; }
  required string r = 6;
}
message N { optional Shut e = 1; optional int32 i = 4 [default = 7]; optional group G = 5 { optional int32 x = 1; } }
"""


def test_what_proto2_has_besides():
    r = text(6, "x")
    rows, errors = decoded(
        "e string, i int, x int from g.x, r string not null",
        number(1, 2) + group(5, number(1, 3)) + r,
        r,
        number(1, 2),
        group(5, b"") + r,
        schema=TWO,
        message="T",
    )
    assert rows == [[("B", None, 3, "x")], [(None, None, None, "x")], None, [(None, None, None, "x")]]
    assert errors[2] == "the value: found 2 bytes that are no T (it lacks r), wanted one Protobuf message"


def test_a_number_that_a_closed_enum_lacks_is_an_error_and_no_absence():
    said = "found the number 9, which Shut has no name for"
    for message, r in (("T", text(6, "x")), ("N", b"")):
        _, errors = decoded("e string", number(1, 9) + r, number(1, 2) + r, schema=TWO, message=message)
        assert errors == [f"column e: {said}, wanted string", None]
    _, errors = decoded("es array<string>", number(2, 2) + number(2, 9) + text(6, ""), schema=TWO, message="T")
    assert said in errors[0]
    _, errors = decoded("m map<string, string>", sized(3, number(2, 9)) + text(6, ""), schema=TWO, message="T")
    assert "a number, which Shut has no name for" in errors[0]
    _, errors = decoded("i int", number(1, 9) + text(6, ""), schema=TWO, message="T")
    assert errors == [None], "in a field that no column takes it means nothing"


def test_two_schemas_may_have_messages_of_one_name():
    one = 'syntax = "proto3"; package p; message M { int32 a = 1; }'
    other = 'syntax = "proto3"; package p; message M { string a = 1; }'
    first, second = (Protobuf("a string", schema=each, message="p.M").decoder(Use()) for each in (other, one))
    assert first.decode(pa.array([text(1, "x")], pa.binary())).errors.to_pylist() == [None]
    assert second.decode(pa.array([number(1, 5)], pa.binary())).errors.to_pylist() == [
        "column a: found 5, wanted string"
    ]
