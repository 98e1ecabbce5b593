"""The decoder's rules beyond test_records.py's: what would be guessed, rounded or hung on is an error, and says so."""

from decimal import Decimal

import pytest
from ratchet.spark.decoder import decode, explain

from ratchet import Json, Topic
from ratchet.spark import reader
from ratchet.spark.engine import SETTINGS

TOPIC = Topic(
    "t", value=Json("x double, d decimal(10,2), w decimal(38,10), n decimal(38,0), t timestamp, y date, s string")
)
NINES = b"9" * 38
CASES = {
    b'{"x": 1e999}': "column x is no double",
    b'{"x": "NaN"}': "column x is no double",
    b'{"d": 1.239}': "column d is no decimal",
    b'{"w": 1e99999999}': "exponent",
    b'{"w": "1e-99999999"}': "exponent",
    b'{"w": 1234567890123456789.0123456789}': None,
    b'{"d": "12,50"}': "comma",
    b'{"\\u0064": 1e9999}': "exponent",
    b'{"s": "550e8400-e29b-41d4-a716-446655440000", "d": 1, "other": "see: 1e2345, twice"}': None,
    b'{"t": 1500000000}': "column t is no timestamp",
    b'{"t": "2013"}': "column t is no timestamp",
    b'{"t": "T10:00"}': "column t is no timestamp",
    b'{"t": "2013-01-01T10:00:00"}': None,
    b'{"t": "2013-01-01T10:00:00.123456789+02:00"}': None,
    b'{"t": "2013-01-01T10:00:00Z\\n"}': "column t is no timestamp",
    b'{"y": "2013-02-30"}': "column y is no date",
    b'{"y": "2013-2-3"}': "column y is no date",
    b'{"y": "2013-02-03T10"}': "column y is no date",
    b'{"y": "2013-02-03\\n"}': "column y is no date",
    b'{"d": "1.5\\n"}': "column d is no decimal",
    b'{"s": "a\\u0000b"}': "U+0000",
    b'{"s": "\\ud800"}': "surrogate",
    b'{"s": "\\ud83d\\ude00 \\\\ud800"}': None,
    # A backslash that is escaped begins no escape, so what follows it is text; and half of no pair.
    rb'{"s": "\\\\ud800"}': None,
    rb'{"s": "\\\ud800"}': "surrogate",
    rb'{"s": "\\\\\ud800"}': "surrogate",
    rb'{"s": "\\ud83d\ude00"}': "surrogate",
    rb'{"s": "\ud83d\\ude00"}': "surrogate",
    rb'{"s": "\\\ud83d\ude00"}': None,
    rb'{"s": "\ud83d\ude00\ude00"}': "surrogate",
    b'{"other": 1}],"zz":[3': "not one JSON object",
    # The parser keeps 38 digits and rounds the others away before anything can compare.
    b'{"w": 1.0000000000000000000000000000000000000001}': "column w is no decimal",
    b'{"w": "1.0000000000000000000000000000000000000001"}': "column w is no decimal",
    b'{"w": 1.00000000001}': "column w is no decimal",
    b'{"w": 1.0000000001000000000000000000000000000000}': None,
    b'{"w": 1e-11}': "column w is no decimal",
    b'{"w": 1000e-13}': None,
    b'{"w": 0e-50}': None,
    b'{"d": 1e-35}': "column d is no decimal",
    b'{"d": 0.0000000000000000000000000000001e30}': None,
    b'{"d": 0.0000000000000000000000000000001e28}': "column d is no decimal",
    b'{"d": 1.0000000000000000000000000000001}': "column d is no decimal",
    rb'{"\u0064": 1.0000000000000000000000000000001}': "column d is no decimal",
    b'{"n": ' + NINES + b"}": None,
    b'{"n": ' + NINES + b"9}": "not one JSON object",
    b'{"n": ' + NINES + b".4}": "column n is no decimal",
    b'{"n": "' + NINES + b'.4"}': "column n is no decimal",
    b'{"n": ' + NINES + b".000}": None,
    b'{"n": 5000e-4}': "column n is no decimal",
    b'{"n": 5000e-3}': None,
    '{"d": "\u0661.\u0665"}'.encode(): "column d is no decimal",
    b'{"n": 1, "d": 2.55, "s": "\\"n\\": 1.5"}': None,
    b'{"n": 1.5, "n": 1}': "column n is no decimal",
}
VALUES = {
    b'{"w": 1234567890123456789.0123456789}': ("w", "1234567890123456789.0123456789"),
    b'{"w": 1000e-13}': ("w", "1E-10"),
    b'{"n": ' + NINES + b".000}": ("n", NINES.decode()),
    b'{"n": 5000e-3}': ("n", "5"),
    b'{"d": 0.0000000000000000000000000000001e30}': ("d", "0.1"),
    b'{"s": "\\ud83d\\ude00 \\\\ud800"}': ("s", "\U0001f600 \\ud800"),
    rb'{"s": "\\\\ud800"}': ("s", "\\\\ud800"),
    rb'{"s": "\\\ud83d\ude00"}': ("s", "\\\U0001f600"),
}


@pytest.mark.invariant("I1")
def test_what_would_be_guessed_rounded_or_hung_on_is_an_error(session):
    rows = [(0, i, None, value, None) for i, value in enumerate(CASES)]
    decoded = explain(decode(session.createDataFrame(rows, reader.SCHEMA), TOPIC), TOPIC)
    said = {r["_offset"]: r for r in decoded.drop("_record").collect()}
    offsets = {value: offset for offset, value in enumerate(CASES)}
    for value, reason in CASES.items():
        error = said[offsets[value]]["_error"]
        assert (error is None) == (reason is None) and (reason or "") in (error or ""), (value, error)
    for value, (column, expected) in VALUES.items():
        found = said[offsets[value]][column]
        assert found == (expected if column == "s" else Decimal(expected)), value


def test_a_key_is_required_where_asked(session):
    raw = session.createDataFrame([(0, 0, None, b"{}", None)], reader.SCHEMA)
    keyed = TOPIC.model_copy(update={"key": "k string"})
    assert decode(raw, keyed).collect()[0]["_error"] is None
    assert decode(raw, keyed, key_required=True).collect()[0]["_error"] == "no key"


@pytest.mark.parametrize(
    ("kind", "good"),
    [("int", b"1"), ("decimal(5,2)", b"1.25"), ("date", b"2013-01-01"), ("timestamp", b"2013-01-01T00:00:00Z")],
)
def test_a_key_does_not_end_in_a_line_end(session, kind, good):
    raw = session.createDataFrame(
        [(0, i, key, b"{}", None) for i, key in enumerate((good, good + b"\n"))], reader.SCHEMA
    )
    rows = decode(raw, TOPIC.model_copy(update={"key": f"k {kind}"})).collect()
    assert [r["_error"] for r in rows] == [None, f"the key is not a {kind} in UTF-8 text"]


@pytest.mark.parametrize("kind", ["decimal(20,4)", "decimal(38,10)", "decimal(38,0)"])
def test_a_decimal_key_is_never_rounded(session, kind):
    keys = {
        b"5": "5",
        b"-5.00000000000000000000000000000000000000000000000000": "-5",
        b"5000e-3": "5",
        b"0e-999": "0",
        b"1.00000000000000000000000000000000000000000000000001": None,
        b"1.00000000001": None,
        b"67.69e-301": None,
        b"152369192713946399.4673e-999": None,
    }
    raw = session.createDataFrame([(0, i, key, b"{}", None) for i, key in enumerate(keys)], reader.SCHEMA)
    rows = decode(raw, TOPIC.model_copy(update={"key": f"k {kind}"})).orderBy("_offset").collect()
    found = {key: row["k"] if row["_error"] is None else None for key, row in zip(keys, rows, strict=True)}
    assert found == {key: expected and Decimal(expected) for key, expected in keys.items()}
    assert {r["_error"] for r in rows} == {None, f"the key is not a {kind} in UTF-8 text"}


def test_a_session_has_the_settings(session):
    assert {name: session.conf.get(name) for name in SETTINGS} == SETTINGS
