"""Protobuf, in bytes made by hand: what each field means, what it cannot mean, and what is no message at all."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from ratchet import Protobuf
from ratchet.formats.port import Use

from .conformance import rows_of
from .protobuf_messages import both_ways, decode, decoded
from .wireformat import double, group, number, single, sized, text, varint, zigzag


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
        (
            "s32 int, s64 bigint",
            varint(6 << 3) + zigzag(-(2**31)) + varint(7 << 3) + zigzag(2**63 - 1),
            (-(2**31), 2**63 - 1),
        ),
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
        (
            "mi json",
            sized(28, number(1, 10)) + sized(28, number(1, 9) + sized(2, number(1, 5))),
            ('{"9": {"s": "", "x": 5}, "10": {"s": "", "x": 0}}',),
        ),
        ("b bigint from ms.b", sized(27, text(1, "b") + number(2, 3)), (3,)),
        # What everybody knows.
        (
            "at timestamp",
            sized(33, number(1, -1) + number(2, 999_999_000)),
            (datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),),
        ),
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
            "doc json, k bigint from doc.k",
            sized(35, sized(1, text(1, "k") + sized(2, double(2, 5.0)))),
            ('{"k": 5}', 5),
        ),
        ("v json", sized(43, number(1, 0)), (None,)),
        ("j json from in", sized(17, number(3, 0)), ('{"o": 0, "s": "", "x": 0}',)),
    ],
)
def test_what_a_field_means(columns, value, row):
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
