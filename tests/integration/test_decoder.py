"""The decoder's rules beyond test_slice.py's: what would be guessed, rounded or hung on is an error, and says so."""

from uuid import uuid4

import pytest

from ratchet import Json, Topic
from ratchet.spark import reader
from ratchet.spark.decoder import decode, explain
from ratchet.spark.engine import SETTINGS, connect_session

TOPIC = Topic("t", value=Json("x double, d decimal(10,2), w decimal(38,10), t timestamp, y date, s string"))
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
    b'{"y": "2013-02-30"}': "column y is no date",
    b'{"y": "2013-2-3"}': "column y is no date",
    b'{"y": "2013-02-03T10"}': "column y is no date",
    b'{"s": "a\\u0000b"}': "U+0000",
    b'{"s": "\\ud800"}': "surrogate",
    b'{"s": "\\ud83d\\ude00 \\\\ud800"}': None,
    b'{"other": 1}],"zz":[3': "not one JSON object",
}


@pytest.fixture(scope="module")
def session(spark_connect):
    with connect_session(spark_connect.spark, "tests", uuid4().hex) as session:
        yield session


def test_what_would_be_guessed_rounded_or_hung_on_is_an_error(session):
    rows = [(0, i, None, None, value, None) for i, value in enumerate(CASES)]
    decoded = explain(decode(session.createDataFrame(rows, reader.SCHEMA), TOPIC), TOPIC)
    said = {r["_offset"]: r for r in decoded.drop("_record").collect()}
    for offset, (value, reason) in enumerate(CASES.items()):
        error = said[offset]["_error"]
        assert (error is None) == (reason is None) and (reason or "") in (error or ""), (value, error)
    assert str(said[5]["w"]) == "1234567890123456789.0123456789"
    assert said[19]["s"] == "\U0001f600 \\ud800"


def test_a_key_is_required_where_asked(session):
    raw = session.createDataFrame([(0, 0, None, None, b"{}", None)], reader.SCHEMA)
    keyed = TOPIC.model_copy(update={"key": "k string"})
    assert decode(raw, keyed).collect()[0]["_error"] is None
    assert decode(raw, keyed, key_required=True).collect()[0]["_error"] == "no key"


def test_a_session_has_the_settings(session):
    assert {name: session.conf.get(name) for name in SETTINGS} == SETTINGS
