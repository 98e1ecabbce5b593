"""Protobuf: what Google's library has written comes back as it was, and any bytes are a row or an error."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from .protobuf_messages import Message, assert_alike, both_ways, decoded

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
            message.MergeFrom(Message(**{"in": value}))
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
