"""MessagePack: what msgspec writes comes back, and what it would round or give up is kept or refused by name."""

import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from ratchet import MessagePack
from ratchet.formats.port import Decoded, Use

AT = datetime(2024, 5, 1, 10, tzinfo=UTC)


def decode(columns: str, *values: bytes) -> Decoded:
    return MessagePack(columns).decoder(Use()).decode(pa.array(values, pa.binary()))


def long(seconds: int, nanos: int) -> bytes:
    """The extension for moments in its longest form."""
    return b"\xc7\x0c\xff" + struct.pack(">Iq", nanos, seconds)


def short(seconds: int, nanos: int) -> bytes:
    return b"\xd7\xff" + struct.pack(">Q", nanos << 34 | seconds)


def wordy(seconds: int, nanos: int) -> bytes:
    """The short form with a longer header than it needs."""
    return b"\xc7\x08\xff" + short(seconds, nanos)[2:]


def wordier(seconds: int, nanos: int) -> bytes:
    """The long form with a longer header than it needs."""
    return b"\xc8\x00\x0c\xff" + long(seconds, nanos)[3:]


FORMS = st.sampled_from([long, short, wordy, wordier])


def field(sent: bytes, name: bytes = b"a") -> bytes:
    return b"\x81" + bytes([0xA0 + len(name)]) + name + sent


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=9)
ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "s": st.none() | TEXT,
        "b": st.none() | st.booleans(),
        "x": st.none() | st.binary(max_size=12) | st.just(b"\xd7\xff\x00\x00\x00\x07" + b"\xff" * 8),
        "t": st.none() | st.datetimes(timezones=st.just(UTC)),
        "d": st.none() | st.decimals(-999, 999, places=2),
        "l": st.none() | st.lists(TEXT, max_size=3),
        "m": st.none() | st.dictionaries(TEXT, st.integers(-5, 5), max_size=3),
    }
)
COLUMNS = (
    "i bigint, f double, s string, b boolean, x binary, t timestamp, d decimal(5,2), l array<string>, "
    "m map<string, int>"
)


@settings(max_examples=80, deadline=None)
@given(sent=st.lists(ROWS, max_size=5), rest=st.dictionaries(TEXT.filter(lambda t: len(t) > 1), st.integers(0, 5)))
@example(sent=[dict.fromkeys("ifsbxtdlm") | {"x": b"\xd7\xff\x00\x00\x00\x07"}], rest={})
def test_rows_that_msgspec_writes_come_back(sent, rest):
    decoded = decode(COLUMNS, *(msgpack.encode(rest | row) for row in sent))
    assert decoded.errors.drop_null().to_pylist() == [] and decoded.cut == 0
    assert decoded.columns.to_pylist(maps_as_pydicts="strict") == sent


@settings(max_examples=80, deadline=None)
@given(
    seconds=st.integers(0, 2**34 - 1),
    nanos=st.integers(0, 10**9 - 1),
    form=st.sampled_from([long, short, wordy, wordier]),
)
@example(seconds=1714557600, nanos=999_999_999, form=long)
@example(seconds=1, nanos=1999, form=wordy)
@example(seconds=1, nanos=1999, form=wordier)
def test_nanoseconds_are_cut_and_counted_and_refused_where_a_column_is_strict(seconds, nanos, form):
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, microseconds=nanos // 1000)
    value = field(form(seconds, nanos))
    decoded = decode("a timestamp", value, field(b"\xc0"))
    assert decoded.columns.column("a").to_pylist() == [expected, None]
    assert decoded.cut == bool(nanos % 1000)
    (error,) = decode("a timestamp strict", value).errors.to_pylist()
    assert (error is not None) == bool(nanos % 1000)
    assert error is None or "wanted timestamp strict, with no digits beyond microseconds" in error
    (said,) = decode("a json", value).columns.column("a").to_pylist()
    digits = said.strip('"').removesuffix("+00:00").partition(".")[2].ljust(9, "0")
    assert int(digits) == nanos


def test_moments_are_cut_wherever_they_stand():
    value = field(b"\x92" + long(1714557600, 5) + short(1714557600, 1_005))
    decoded = decode("a array<timestamp>", value)
    assert decoded.columns.column("a").to_pylist() == [[AT, AT + timedelta(microseconds=1)]] and decoded.cut == 2


BEFORE_1970 = long(-1, 999_999_999)


@pytest.mark.parametrize(
    ("columns", "value", "row"),
    [
        ("a timestamp", field(BEFORE_1970), (datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),)),
        # Of doubled names the last counts.
        ("a int", b"\x82\xa1a\x01\xa1a\x02", (2,)),
        # Binary, numbers and true name no field, though Python takes 1 and true for one name.
        ("a int", b"\x84\xc4\x01a\x01\x01\x02\xc3\x03\xa1a\x04", (4,)),
        ("a int", b"\x81\xc4\x01a\x01", (None,)),
        ("a binary", field(b"\xc4\x02\x00\xff"), (b"\x00\xff",)),
        ("a double", field(b"\xca\x3e\x80\x00\x00"), (0.25,)),
        ("a decimal(20,0)", field(b"\xcf" + b"\xff" * 8), (Decimal(2**64 - 1),)),
        # What is odd in a field that no column takes.
        ("b int", field(long(253402300800, 0)), (None,)),
        ("b int", field(short(0, 10**9)), (None,)),
        ("b int", field(b"\xd4\xff\x00"), (None,)),
        ("b int", field(b"\xd4\x05\x00"), (None,)),
    ],
)
def test_what_a_field_means(columns, value, row):
    decoded = decode(columns, value)
    assert [tuple(r.values()) for r in decoded.columns.to_pylist()] == [row], decoded.errors


@pytest.mark.parametrize(
    ("columns", "value", "error"),
    [
        ("a timestamp", field(long(253402300800, 0)), "found an extension for moments that is none in the years 1 to"),
        ("a timestamp", field(long(-62135596801, 0)), "found an extension for moments that is none in the years 1 to"),
        ("a timestamp", field(short(0, 10**9)), "found an extension for moments that is none in the years 1 to 9999"),
        ("a int", field(b"\xd4\x05\x00"), "column a: found an extension of type 5, wanted int"),
        ("a json", field(b"\x91\xd4\x05\x00"), "column a: found an extension of type 5, wanted json"),
        ("a json", field(b"\x81\xc4\x01a\x01"), "column a: found the name 1 bytes, wanted json, whose names are texts"),
        ("a map<string, int>", field(b"\x81\x01\x01"), "column a: found the name 1, wanted map<string, int>"),
        ("a string", field(b"\xc4\x01x"), "column a: found 1 bytes, wanted string"),
        ("a binary", field(b"\xa1x"), 'column a: found "x", wanted binary'),
        ("a string", field(b"\xa1\x00"), "column a: found text with U+0000, wanted string"),
        ("a int", field(b"\xa1\xff"), "the value: found 5 bytes that are none ("),
        ("a int", b"\x81\x81\x01\x01\x01", "the value: found 5 bytes that are none ("),
        (
            "a int",
            b"\x81\xa1a\x01\x00",
            "the value: found 5 bytes that are none (MessagePack data is malformed: trailing",
        ),
        ("a int", b"\xdf\xff\xff\xff\xff", "the value: found 5 bytes that are none (Input data was truncated)"),
        ("a int", BEFORE_1970, "the value: found 1969-12-31 23:59:59.999999999+00:00, wanted one MessagePack map"),
    ],
)
def test_what_a_field_cannot_mean(columns, value, error):
    decoded = decode(columns, value)
    (said,) = decoded.errors.to_pylist()
    assert said is not None and error in said and said.isprintable()
