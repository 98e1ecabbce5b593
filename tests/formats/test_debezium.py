"""Change events of Debezium: recorded from its own connector, and by hand what that does not send."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet import Accumulate, Append, Debezium, Json, Pipeline, Topic, Upsert
from ratchet.errors import SpecError
from ratchet.formats.envelope import Envelope
from ratchet.formats.port import Decoded, Use

from .conformance import Case, Conformance
from .messages import Message
from .test_messages import batch_of

EVENTS = json.loads((Path(__file__).parent / "events.json").read_text())
"""{whether events have their schema in them: [[key, value]]}; recorded from its connector for PostgreSQL."""
JAVAS_UUID = str(UUID(bytes=hashlib.md5(b"__debezium_unavailable_value").digest(), version=3))
"""What Java's UUID.nameUUIDFromBytes makes of the placeholder."""
COLUMNS = (
    "id bigint not null, name string not null, price decimal(12,2), amount decimal(20,6), tiny smallint, ok boolean, "
    "ratio double, real4 float, day date, at timestamp, local_at timestamp(micros), ms_at timestamp(millis), t time, "
    "raw binary, u uuid, j json, tags array<string>"
)
BARE = Debezium(COLUMNS, envelope="op string not null, lsn bigint from source.lsn not null", times="micros")
# Where events say it themselves, a moment needs no unit.
TOLD = Debezium(COLUMNS.replace("(micros)", "").replace("(millis)", ""), envelope=BARE.envelope)
FIRST = {
    "id": 1,
    "name": "a",
    "price": Decimal("12.47"),
    "amount": Decimal("1.500000"),
    "tiny": 1,
    "ok": True,
    "ratio": 0.1,
    "real4": pytest.approx(0.1, abs=1e-8),
    "day": date(2024, 5, 1),
    "at": datetime(2024, 5, 1, 10, 0, 0, 123456, tzinfo=UTC),
    "local_at": datetime(2024, 5, 1, 10, 0, 0, 123456, tzinfo=UTC),
    "ms_at": datetime(2024, 5, 1, 10, 0, 0, 123000, tzinfo=UTC),
    "t": "10:00:00.500000",
    "raw": b"\x01\x02",
    "u": "00000000-0000-0000-0000-000000000005",
    "j": '{"a": 1.50, "b": [null]}',
    "tags": ["x", "y"],
}


def decode(declared: Debezium, *values: bytes) -> Decoded:
    return declared.decoder(Use()).decode(pa.array(values, pa.binary()))


def event(op: str | None, before: object = None, after: object = None, **more: object) -> bytes:
    said = {"before": before, "after": after, "source": {"lsn": 5, "file": "x.000001", "pos": 7}, **more}
    return json.dumps(said if op is None else {**said, "op": op}).encode()


@pytest.mark.parametrize(("declared", "schemas"), [(BARE, "false"), (TOLD, "true")])
def test_what_the_connector_sends_is_what_was_done_to_the_table(declared, schemas):
    sent = [Message(key.encode() if key else None, value and value.encode()) for key, value in EVENTS[schemas]]
    opened = Envelope(Topic("t", value=declared)).open(batch_of(sent))
    rows = opened.rows.to_pylist()
    done = [(row["op"], row["id"], row["name"], row["price"], row["_deleted"]) for row in rows]
    assert done == [
        ("r", 0, "snapshot", Decimal("7.00"), False),
        ("c", 1, "a", Decimal("12.47"), False),
        ("c", 2, "b", Decimal("-0.05"), False),
        ("c", 3, "c", None, False),
        ("u", 1, "a2", Decimal("12.47"), False),
        # The connector sends an empty text for a column that is not null, of which it knows nothing.
        ("d", 2, "", None, True),
        ("c", 4, "b", Decimal("-0.05"), False),
        ("d", 3, "", None, True),
        ("c", 5, "after", Decimal("99999999.99"), False),
    ]
    assert {name: rows[1][name] for name in FIRST} == FIRST
    lsns = [row["lsn"] for row in rows]
    assert lsns == sorted(lsns)
    # Two deletions have a tombstone behind them, which gives no row.
    assert opened.empty.num_rows == 2
    (truncated,) = opened.dead.column("error").to_pylist()
    assert "truncation" in truncated


def test_a_value_that_the_log_does_not_have_is_no_value():
    declared = Debezium("id bigint, big string")
    updates = [value.encode() for _, value in EVENTS["false"] if value and json.loads(value)["op"] == "u"]
    (error,) = decode(declared, *updates).errors.to_pylist()
    assert error.startswith("column big: found __debezium_unavailable_value, wanted string; ")
    assert error.endswith("REPLICA IDENTITY to FULL")
    as_bytes = b64encode(b"__debezium_unavailable_value").decode()
    placeholder = "__debezium_unavailable_value"
    for column, value in (
        ("big binary", as_bytes),
        ("big array<string>", [placeholder]),
        ("big array<int>", list(placeholder.encode())),
        ("big map<string, string>", {placeholder: placeholder}),
        ("big array<uuid>", [JAVAS_UUID]),
    ):
        told = decode(Debezium(column), event("u", None, {"big": value})).errors[0].as_py()
        assert told is not None and told.startswith("column big: found __debezium_unavailable_value"), column


CASES = {
    event("c", None, {"id": 1, "name": "a"}): [(1, "a", None, 5)],
    event("r", None, {"id": 2, "name": "b", "price": "BN8="}): [(2, "b", Decimal("12.47"), 5)],
    event("u", {"id": 9}, {"id": 2, "name": "b", "price": {"scale": 0, "value": "Bw=="}}): [
        (2, "b", Decimal("7.00"), 5)
    ],
    event("d", {"id": 3, "name": None}): [(3, None, None, 5)],
    event("m"): [],
    event("t"): None,
    event("x"): None,
    event(None, None, {"id": 1, "name": "a"}): None,
    event("c", None, None): None,
    event("d", None, None): None,
    event("c", None, {"id": 1, "name": None}): None,
    event("c", None, {"id": "1", "name": "a"}): None,
    event("c", None, {"id": 1, "name": "a", "price": "no base64"}): None,
    event("c", None, {"id": 1, "name": "a", "price": "////////////////////////"}): [(1, "a", Decimal("-0.01"), 5)],
    event("c", None, {"id": 1, "name": "a", "price": "f///////////////////////"}): None,
    event("c", None, {"id": 1, "name": "a"}, source={}): None,
    event("d", {"id": 1}, source=None): None,
    b"[]": None,
    b"null": None,
    b"": None,
    b"{}": None,
    b'{"op": "c", "after": {"id": 1, "name": "\xff"}}': None,
}


class TestDebezium(Conformance):
    case = Case(
        Debezium(
            "id bigint not null, name string not null, price decimal(12,2)",
            envelope="lsn bigint from source.lsn not null",
        ),
        CASES,
    )


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (event(None, None, {"id": 1}), "found no op, as in an event that a transform has flattened"),
        (event("x"), 'found op "x"'),
        (event("c"), "found null as after of op c, wanted the source's row"),
        (event("d"), "found null as before of op d, wanted the source's row; set the table's REPLICA IDENTITY"),
        (event("t"), "found a truncation of the source's table"),
        (b"[]", "found a list"),
        (b'{"op":"c","after":{"id":1,"x":1e9999999999999999999999}}', "found a number with an exponent beyond any"),
        (b'{"schema":{"fields":5},"payload":{"op":"c","after":{"id":1}}}', "found a schema that is none"),
        (
            b'{"schema":{"fields":[{"field":"after","fields":[{"name":"x"}]}]},"payload":{"op":"c","after":{"id":1}}}',
            "found a schema that is none",
        ),
        (b'{"schema":{"fields":["x"]},"payload":{"op":"c","after":{"id":1}}}', "found a schema that is none"),
        (b"\xff", "found 1 bytes that are no JSON"),
    ],
)
def test_an_event_that_is_no_change_of_a_row_says_what_it_is(sent, error):
    (said,) = decode(Debezium("id bigint"), sent).errors.to_pylist()
    assert said.startswith(f"the value: {error}")


def test_a_deletion_is_told_from_a_row():
    decoded = decode(
        Debezium("id bigint not null"),
        event("d", {"id": 1}),
        event("m"),
        event("c", None, {"id": 1}),
        event("d", {"id": 2}),
    )
    assert decoded.deleted is not None
    assert decoded.deleted.to_pylist() == [True, False, True] and decoded.parents.to_pylist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        ("t time", 3_600_000, "found 3600000, wanted time, whose unit is given: Debezium(…, times=…)"),
        (
            "at timestamp",
            1714557600000,
            "found 1714557600000, wanted timestamp, whose unit is given, as timestamp(micros)",
        ),
        ("raw binary", "?", 'found "?", which is no base64, wanted binary'),
        ("j json", "{", 'found "{", wanted json'),
        ("day date", 10**12, "found 1000000000000, wanted date"),
        (
            "d decimal(5,2)",
            {"scale": 10**9, "value": "AQ=="},
            "found a decimal of scale 1000000000, wanted decimal(5,2)",
        ),
        ("j json", "[1e9999999999999999999999]", 'found "[1e9999999999999999999999]", wanted json'),
    ],
)
def test_what_nothing_says_the_meaning_of_is_refused(column, value, error):
    name = column.split()[0]
    (said,) = decode(Debezium(column), event("c", None, {name: value})).errors.to_pylist()
    assert said == f"column {name}: {error}"


def test_the_events_own_schema_counts_before_the_declared_unit():
    field = {"field": "at", "type": "int64", "name": "io.debezium.time.NanoTimestamp"}
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": [field]}]}
    sent = json.dumps(
        {"schema": schema, "payload": json.loads(event("c", None, {"at": 1714557600_123456789}))}
    ).encode()
    decoded = decode(Debezium("at timestamp"), sent)
    assert decoded.columns.column("at").to_pylist() == [datetime(2024, 5, 1, 10, 0, 0, 123456, tzinfo=UTC)]
    assert decoded.cut == 1
    (error,) = decode(Debezium("at timestamp(millis)"), sent).errors.to_pylist()
    assert error == "column at: found 1714557600123456789 nanos, by the event's schema, wanted timestamp(millis)"
    (error,) = decode(Debezium("at timestamp strict"), sent).errors.to_pylist()
    assert "no digits beyond microseconds" in error


@given(st.decimals(-(10**9), 10**9, places=4))
def test_a_precise_decimal_is_the_number_whatever_its_scale(number):
    unscaled = int(number.scaleb(4))
    said = b64encode(unscaled.to_bytes(8, "big", signed=True)).decode()
    sent = event("c", None, {"a": said})
    declared = Debezium("a decimal(20,6)", scales={"a": 4})
    assert decode(declared, sent).columns.column("a").to_pylist() == [number]
    as_text = Debezium("a decimal(20,6)", decimals="string")
    assert decode(as_text, event("c", None, {"a": str(number)})).columns.column("a").to_pylist() == [number]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (
            lambda: Debezium("id bigint", envelope="id bigint from source.id"),
            "envelope: column 'id' is declared in columns",
        ),
        (lambda: Debezium("id bigint", envelope="at timestamp from _timestamp"), "declare it in columns"),
        (lambda: Debezium("id bigint, same bigint from id"), "'id' and 'same' come from one field"),
        (lambda: Debezium("id bigint", scales={"x": 2}), "scales: 'x' is not one of columns"),
        (lambda: Debezium("id number"), "Debezium.columns: column 'id' has the unknown type"),
        (lambda: Debezium("id int", decimals="exact"), "Debezium.decimals: Input should be"),
        (lambda: Debezium("id int", times="hours"), "Debezium.times: Input should be"),
        (
            lambda: Topic("t", value=Debezium("id bigint"), key="id_ bigint", tombstones="delete"),
            "says itself what is deleted",
        ),
        (lambda: Debezium("id bigint", registry=5), "Debezium.registry: Input should be a valid string"),
        (lambda: Topic("t", value=Json("a int"), key=Debezium("id bigint")), "a key gives one row"),
        (
            lambda: Pipeline(
                name="p", source=Topic("t", value=Debezium("id bigint")), sinks=[Append("a", columns="id bigint")]
            ),
            "knows no deletions",
        ),
        (
            lambda: Pipeline(
                name="p",
                source=Topic("t", value=Debezium("id bigint")),
                sinks=[Accumulate("a", key="id bigint", count="n")],
            ),
            "knows no deletions",
        ),
        (
            lambda: Pipeline(
                name="p",
                source=Topic("t", value=Debezium("id bigint, n int")),
                sinks=[Upsert("a", key="id bigint", columns="n int")],
            ),
            "has no order column",
        ),
    ],
)
def test_what_a_spec_cannot_say_of_changes(make, error):
    with pytest.raises(SpecError, match=error.replace("(", r"\(")):
        make()
