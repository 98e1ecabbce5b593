"""Keys, timestamps, headers and tombstones: what a record says besides its value."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet import Json, Topic
from ratchet.formats.envelope import HIDDEN, Envelope, Opened
from ratchet.ledger import letters

from .messages import Message
from .test_messages import batch_of
from .topics import TIMESTAMP

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = ((of.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) for of in (datetime.min, datetime.max))


def opened(topic: Topic, *sent: Message, key_required: bool = False) -> Opened:
    return Envelope(topic, key_required=key_required).open(batch_of(list(sent)))


def cells(found: Opened, column: str) -> dict[int, object]:
    """{number of the record: the column's cell} of the rows."""
    return {row["_offset"] - 100: row[column] for row in found.rows.to_pylist()}


def errors(found: Opened) -> dict[int, str]:
    return {row["_offset"] - 100: row["error"] for row in found.dead.to_pylist()}


def keyed(kind: str, *keys: bytes | None, **given) -> Opened:
    return opened(Topic("t", value=Json("a int"), key=f"k {kind}"), *(Message(key, b"{}") for key in keys), **given)


def test_a_column_can_be_the_topic_of_its_record():
    topic = Topic(["t", "u"], value=Json("a int, of string from _topic not null"))
    sent = batch_of([Message(None, b"{}"), Message(None, b"{")])
    named = Envelope(topic, topics_of=lambda partitions: pa.array(["u"] * len(partitions))).open(sent)
    assert (cells(named, "of"), list(errors(named))) == ({0: "u"}, [1])
    assert cells(opened(Topic("t", value=Json("of string from _topic")), Message(None, b"{}")), "of") == {0: "t"}


def test_a_key_is_required_where_asked():
    assert cells(keyed("string", None), "k") == {0: None}
    assert errors(keyed("string", None, key_required=True)) == {0: "no key"}
    assert errors(keyed("string not null", None)) == {0: "no key"}


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        ("int", b"1"), ("decimal(5,2)", b"1.25"), ("date", b"2013-01-01"), ("timestamp", b"2013-01-01T00:00:00Z"),
        ("uuid", b"550e8400-e29b-41d4-a716-446655440000"), ("time", b"07:30"), ("timestamp(millis)", b"5"),
    ],
)  # fmt: skip
def test_a_key_does_not_end_in_a_line_end(kind, good):
    found = keyed(kind, good, good + b"\n")
    assert list(cells(found, "k")) == [0]
    assert errors(found)[1].startswith("key column k: found ") and errors(found)[1].endswith(f", wanted {kind}")


@pytest.mark.parametrize("kind", ["decimal(20,4)", "decimal(38,10)", "decimal(38,0)"])
def test_a_decimal_key_is_never_rounded(kind):
    keys = {
        b"5": "5",
        b"-5.00000000000000000000000000000000000000000000000000": "-5",
        b"5000e-3": "5",
        b"0e999": "0",
        b"1.00000000000000000000000000000000000000000000000001": None,
        b"1.00000000001": None,
        b"67.69e-301": None,
        b"152369192713946399.4673e-999": None,
    }
    found = keyed(kind, *keys)
    good = {number: Decimal(value) for number, value in enumerate(keys.values()) if value is not None}
    assert cells(found, "k") == good
    assert errors(found).keys() == set(range(len(keys))) - good.keys()


def test_a_text_key_is_utf_8_without_u_0000():
    assert errors(keyed("string", b"ok", b"\xff", b"a\x00b")) == {
        1: "key column k: found \ufffd, which is not UTF-8, wanted string",
        2: "key column k: found text with U+0000, wanted string",
    }
    assert cells(keyed("binary", b"\xff\x00"), "k") == {0: b"\xff\x00"}


def test_a_key_of_json_has_columns_of_its_own():
    topic = Topic("t", value=Json("a int"), key=Json("tenant string not null, n int from inner.n"))
    found = opened(
        topic,
        Message(b'{"tenant": "x", "inner": {"n": 7}}', b'{"a": 1}'),
        Message(b'{"inner": {"n": 7}}', b"{}"),
        Message(b"no json", b"{}"),
        Message(None, b"{}"),
        Message(b'{"tenant": "y"}', b'{"a": "bad"}'),
    )
    assert cells(found, "tenant") == {0: "x"} and cells(found, "n") == {0: 7}
    said = errors(found)
    assert said[1] == "key column tenant: found nothing, wanted string not null"
    assert said[2].startswith("the key: found no json, wanted one JSON object")
    assert said[3] == "no key" and said[4] == 'column a: found "bad", wanted int'


def test_the_records_own_parts_are_columns_and_hidden_ones():
    topic = Topic(
        "t",
        value=Json(
            'a int, at timestamp from _timestamp, raw binary from _key, n int from _headers."n" not null, '
            "all json from _headers, m map<string, string> from _headers"
        ),
    )
    headers = (("n", b"1"), ("n", b"2"), ("x", b"y"))
    found = opened(topic, Message(b"k", b"{}", headers), Message(b"k", b"{}", (("n", b"zz"),)), Message(b"k", b"{}"))
    (row,) = found.rows.to_pylist()
    assert (row["at"], row["raw"], row["n"]) == (TIMESTAMP, b"k", 2)
    assert [h["key"] for h in json.loads(row["all"])] == ["n", "n", "x"]
    assert dict(row["m"]) == {"n": "2", "x": "y"}
    assert errors(found)[1] == "column n: found zz, wanted int"
    assert errors(found)[2] == "column n: found nothing, wanted int not null"
    assert set(HIDDEN) <= set(row) and row["_record"]["value"] == b"{}"


def test_a_headers_name_with_u0000_is_kept_exactly_or_refused():
    sent = Message(b"k", b"{}", (("x\x00y", b"1"), ("x\ufffdy", b"2"), ("eA==", b"3")))
    kept = [
        {"key_base64": "eAB5", "value": "MQ=="},
        {"key": "x\ufffdy", "value": "Mg=="},
        {"key": "eA==", "value": "Mw=="},
    ]
    found = opened(Topic("t", value=Json("a int, all json from _headers")), sent)
    (row,) = found.rows.to_pylist()
    assert json.loads(row["all"]) == kept == json.loads(row["_record"]["headers"])
    assert [*letters.headers(kept)] == [*sent.headers]
    found = opened(Topic("t", value=Json("a int, m map<string, string> from _headers")), sent)
    assert errors(found) == {0: "column m: found a header's name with U+0000, wanted map<string, string>"}
    assert found.rows.num_rows == 0


def test_a_tombstone_is_a_dead_letter_or_a_deletion():
    sent = (Message(b"1", b'{"a": 1}'), Message(b"1", None), Message(None, None), Message(b"x", None))
    topic = Topic("t", value=Json("a int not null"), key="k int")
    assert errors(opened(topic, *sent)) == {
        1: "no value (a tombstone)",
        2: "no value (a tombstone)",
        3: "key column k: found x, wanted int",
    }
    deletes = opened(Topic("t", value=Json("a int not null"), key="k int", tombstones="delete"), *sent)
    assert cells(deletes, "_deleted") == {0: False, 1: True} and cells(deletes, "a") == {0: 1, 1: None}
    assert errors(deletes).keys() == {2, 3}


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-(10**14), 3 * 10**14).map(lambda ms: ms * 1000)),
    st.sampled_from(["a int", "a int, at timestamp from _timestamp", "a int, at timestamp from _timestamp not null"]),
    st.booleans(),
)
def test_a_time_that_no_calendar_has_is_refused_where_it_is_asked_for_and_else_costs_nothing(micros, columns, private):
    sent = batch_of([Message(None, b'{"a": 1}' if at % 2 else b"no") for at in range(len(micros))])
    at = sent.schema.get_field_index("_timestamp")
    sent = sent.set_column(at, "_timestamp", pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC")))
    topic = Topic("t", value=Json(columns))
    found = Envelope(topic, private=private).open(sent)
    strange = {number for number, of in enumerate(micros) if not FIRST <= of <= LAST}
    bad = {number for number in range(len(micros)) if number % 2 == 0} | (strange if " at " in columns else set())
    assert set(errors(found)) == bad and set(cells(found, "a")) == set(range(len(micros))) - bad
    for row in [*found.rows.to_pylist(), *found.dead.to_pylist()]:
        number = row["_offset"] - 100
        time = None if number in strange else EPOCH + timedelta(microseconds=micros[number])
        assert row["_timestamp"] == row["_record"]["timestamp"] == time
        assert "error" in row or row.get("at", time) == time
    said = (
        "column at: found [private], wanted timestamp" if private else "column at: the record's own time is not in the"
    )
    assert all(error.startswith(said) for number, error in errors(found).items() if number % 2), errors(found)
