"""Change events of Debezium in Avro, and those of a binary log: recorded from its own connectors."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from ratchet import Debezium, Topic
from ratchet.formats import registry as asked
from ratchet.formats.envelope import Envelope

from .messages import Message
from .test_debezium import FIRST, TOLD, decode, event
from .test_messages import batch_of
from .test_registry import CONNECTION, answering

RECORDED = json.loads((Path(__file__).parent / "avro_events.json").read_text())
"""{source: its schemas by id, and [key, value] of each record}; `python -m tests.formats.recording` records it anew."""
PLACE = "place decimal(38,0) from _binlog not null"
POSTGRES = Debezium(f"{TOLD.columns}, digits decimal(20,5)", envelope=TOLD.envelope, registry=CONNECTION)
COLUMNS = (
    "id bigint not null, name string not null, price decimal(12,2), day date, at timestamp, local_at timestamp, "
    "ms_at timestamp, t time, raw binary, j json, e string, ok smallint, ratio double, y int"
)
MYSQL = Debezium(f"{COLUMNS}, big decimal(20,0)", envelope=f"op string not null, {PLACE}", registry=CONNECTION)
AT = datetime(2024, 5, 1, 10, 0, 0, 123456, tzinfo=UTC)
FIRST_OF_MYSQL = {
    "id": 1,
    "name": "a",
    "price": Decimal("12.47"),
    "day": date(2024, 5, 1),
    "at": AT,
    "local_at": AT,
    "ms_at": AT.replace(microsecond=123000),
    "t": "10:00:00.500000",
    "raw": b"\x01\x02",
    "j": '{"a": 1.50}',
    "e": "b",
    "ok": 1,
    "ratio": 0.1,
    "y": 2024,
}
DONE_IN_MYSQL = [
    ("r", 0, "snapshot", Decimal("7.00"), False),
    ("c", 1, "a", Decimal("12.47"), False),
    ("c", 2, "b", Decimal("-0.05"), False),
    ("c", 3, "c", None, False),
    ("u", 1, "a2", Decimal("12.47"), False),
    ("u", 2, "b2", Decimal("-0.05"), False),
    ("u", 3, "c2", None, False),
    # A changed key, in the log's next file.
    ("d", 2, "b2", Decimal("-0.05"), True),
    ("c", 4, "b2", Decimal("-0.05"), False),
    ("d", 3, "c2", None, True),
]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(asked, "_known", {})


def values(source: str) -> list[bytes | None]:
    return [value and b64decode(value) for _, value in RECORDED[source]["events"]]


def schema_of(source: str) -> str:
    """The text of the schema of values."""
    (text,) = [text for text in RECORDED[source]["schemas"].values() if json.loads(text)["name"] == "Envelope"]
    return text


def read(declared: Debezium, source: str, *sent: bytes | None, schema: str | None = None):
    """What an envelope has opened."""
    topic = Topic("t", value=declared)
    with answering((200, {"schema": schema or schema_of(source)})) as server:
        endpoints = {CONNECTION: server.endpoint}
        opened = Envelope(topic, endpoints=endpoints).open(batch_of([Message(None, value) for value in sent]))
    return opened


def done(rows: list[Mapping[str, Any]]) -> list[tuple]:
    return [(row["op"], row["id"], row["name"], row["price"], row["_deleted"]) for row in rows]


def test_events_in_avro_mean_what_those_in_json_do():
    opened = read(POSTGRES, "postgres", *values("postgres"))
    rows = opened.rows.to_pylist()
    assert done(rows) == [
        ("r", 0, "snapshot", Decimal("7.00"), False),
        ("c", 1, "a", Decimal("12.47"), False),
        ("c", 2, "b", Decimal("-0.05"), False),
        ("c", 3, "c", None, False),
        ("u", 1, "a2", Decimal("12.47"), False),
        ("d", 2, "", None, True),
        ("c", 4, "b", Decimal("-0.05"), False),
        ("d", 3, "", None, True),
    ]
    assert {name: rows[1][name] for name in FIRST} == FIRST and rows[1]["digits"] == Decimal("1.23000")
    assert opened.empty.num_rows == 2 and opened.dead.num_rows == 0
    lsns = [row["lsn"] for row in rows]
    assert lsns == sorted(lsns) and lsns[0] > 0


def test_events_of_a_binary_log_are_in_its_order_across_its_files():
    opened = read(MYSQL, "mysql", *values("mysql"))
    rows = opened.rows.to_pylist()
    assert done(rows) == DONE_IN_MYSQL and opened.empty.num_rows == 2 and opened.dead.num_rows == 0
    assert {name: rows[1][name] for name in FIRST_OF_MYSQL} == FIRST_OF_MYSQL
    assert rows[1]["big"] == 18446744073709551615
    places = [row["place"] for row in rows]
    assert places == sorted(places)
    # All are in another place but the two that a changed key makes.
    assert [k for k in range(1, 10) if places[k] == places[k - 1]] == [8]


def test_a_binary_log_is_read_from_json_as_well():
    declared = Debezium(COLUMNS, envelope=f"op string not null, {PLACE}")
    found = decode(declared, *[value for value in values("mysql_json") if value])
    rows = [
        {**row, "_deleted": deleted}
        for row, deleted in zip(found.columns.to_pylist(), found.deleted.to_pylist(), strict=True)
    ]
    assert done(rows) == DONE_IN_MYSQL
    assert {name: rows[1][name] for name in FIRST_OF_MYSQL} == FIRST_OF_MYSQL
    places = [row["place"] for row in rows]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("one", "later"),
    [
        (("b.000001", 9, 0), ("b.000001", 10, 0)),
        (("b.000001", 9, 0), ("b.000001", 9, 1)),
        (("b.000001", 9, 9_999_999_999), ("b.000001", 10, 0)),
        (("b.000001", 2**63 - 1, 0), ("b.000002", 4, 0)),
        (("b.000009", 4, 0), ("b.000010", 4, 0)),
        # As texts these are the other way round.
        (("b.999999", 4, 0), ("b.1000000", 4, 0)),
        (("a.b.7.000001", 4, 0), ("b.000002", 4, 0)),
    ],
)
def test_places_ascend_by_the_number_of_the_file_then_the_position_then_the_row(one, later):
    sent = [
        event("c", None, {"id": 1}, source={"file": file, "pos": pos, "row": row}) for file, pos, row in (one, later)
    ]
    first, second = decode(Debezium("id bigint", envelope=PLACE), *sent).columns.column("place").to_pylist()
    assert first < second < 10**38


@pytest.mark.parametrize(
    "source",
    [
        None,
        {"lsn": 5},
        {"file": "b.000001", "pos": 4},
        {"file": "b", "pos": 4, "row": 0},
        {"file": "b.1234567890", "pos": 4, "row": 0},
        {"file": "b.000001", "pos": -1, "row": 0},
        {"file": "b.000001", "pos": "4", "row": 0},
        {"file": "b.000001", "pos": 4, "row": 10**10},
    ],
)
def test_an_event_without_a_place_has_none(source):
    (error,) = decode(
        Debezium("id bigint", envelope=PLACE), event("c", None, {"id": 1}, source=source)
    ).errors.to_pylist()
    assert error is not None and error.startswith("column place: found nothing")


def changed(source: str, number: int, **fields: object) -> bytes:
    """One of the recorded events with other fields in its row."""
    schema = parse_schema(json.loads(schema_of(source)))
    value = values(source)[number]
    assert value is not None
    said = schemaless_reader(BytesIO(value[5:]), schema, None)
    said["after"] |= fields
    into = BytesIO()
    schemaless_writer(into, schema, said)
    return value[:5] + into.getvalue()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"raw": b"__debezium_unavailable_value"}, "column raw: found __debezium_unavailable_value, wanted binary; "),
        ({"tags": ["__debezium_unavailable_value"]}, "column tags: found __debezium_unavailable_value"),
        ({"digits": {"scale": 2000, "value": b"1"}}, "column digits: found a decimal of scale 2000"),
        ({"digits": {"scale": 5, "value": b"\x01"}}, None),
        ({"digits": {"scale": 9, "value": b"\x01"}}, "column digits: found 1E-9, wanted decimal(20,5)"),
        ({"t": 86_400_000_000}, "column t: found 86400000000"),
        ({"at": "2024-13-01T00:00:00Z"}, 'column at: found "2024-13-01T00:00:00Z"'),
        ({"j": "{"}, 'column j: found "{"'),
    ],
)
def test_what_a_column_cannot_keep_of_avro_is_an_error(fields, error):
    opened = read(POSTGRES, "postgres", changed("postgres", 1, **fields))
    found = opened.dead.column("error").to_pylist()
    assert (found == []) if error is None else found[0].startswith(error)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"{}", "the value: found a first byte 0x7b, wanted a byte 0 and the 4 bytes of a schema's id"),
        (b"\x00\x00\x00\x00\x02\x00", "the value: found 1 bytes that are no pg.public.things.Envelope by schema 2 ("),
    ],
)
def test_a_value_that_is_no_event_says_so(value, error):
    (found,) = read(POSTGRES, "postgres", value).dead.column("error").to_pylist()
    assert found.startswith(error)


def test_a_value_that_is_no_record_or_a_flattened_one_is_no_event():
    (found,) = read(POSTGRES, "", b"\x00\x00\x00\x00\x01\x02a", schema='"string"').dead.column("error").to_pylist()
    assert found == 'the value: found "a", wanted one change event of Debezium'
    row = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    (found,) = read(POSTGRES, "", b"\x00\x00\x00\x00\x02\x02", schema=row).dead.column("error").to_pylist()
    assert found.startswith("the value: found no op, as in an event that a transform has flattened")


def test_the_registry_is_a_connection_of_the_spec():
    assert Topic("t", value=POSTGRES).connections == (CONNECTION,)
