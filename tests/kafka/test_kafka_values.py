"""What a topic is given of a row is read back as it is: by `Json(…)` of the same columns, and as a key."""

from __future__ import annotations

import random

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from sqlalchemy.dialects.postgresql.base import PGDialect

from ratchet import Append, Json, KafkaTopic, Pipeline, Text, Topic
from ratchet.destinations import rendered
from ratchet.errors import SpecError
from ratchet.formats.port import Use
from ratchet.formats.whole import Bytes
from ratchet.ledger.connection import Ledger
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.types import sql_type
from ratchet.spec.columns import parse_columns
from ratchet.spec.types import is_scalar
from tests.ledger.destinations.typed import COLUMNS, SCALARS, cells, commit_rows

from .sent import Sent, sending, spec_of

ROWS = 150


@pytest.fixture
def ledger(ledger_url):
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def given(ledger, kafka_properties, make_topic) -> tuple[Sent, pa.Table]:
    """A line that has sent rows with every type, and what they were when they were written."""
    topic = make_topic(3)
    sinks = [Append("typed_rows", columns=COLUMNS, to=KafkaTopic(topic, key="t"))]
    spec = spec_of(topic).model_copy(update={"sinks": sinks, "max_records": ROWS, "slice_records": ROWS})
    sent = sending(ledger, kafka_properties, spec)
    sent.log.beginning, sent.log.stable = {0: 0}, {0: ROWS}
    # Whatever sessions are like: nothing that is sent depends on it.
    with psycopg.connect(ledger.url, autocommit=True) as conn:
        for setting in ("timezone = 'Asia/Kathmandu'", "extra_float_digits = -5"):
            conn.execute(f"alter database {conn.info.dbname} set {setting}")
        conn.execute(f"alter database {conn.info.dbname} set bytea_output = 'escape'")
        conn.execute(f"alter database {conn.info.dbname} set intervalstyle = 'sql_standard'")
    ledger.engine.dispose()
    dice = random.Random(7)
    made = [cells(dice) for _ in range(ROWS)]
    return sent, commit_rows(ledger, spec, sent.log, made, sent.opens)


@pytest.mark.parametrize(
    ("column", "fits", "unfit"),
    [
        ("d date", "0001-01-01", "0001-12-31 BC"),
        ("d date", "9999-12-31", "10000-01-01"),
        ("d date", None, "-infinity"),
        ("d array<date>", "{9999-12-31,NULL}", "{2026-01-01,infinity}"),
        ("d timestamp", "0001-01-01 00:00:00+00", "0001-12-31 23:59:59.999999+00 BC"),
        ("d timestamp", "9999-12-31 23:59:59.999999+00", "10000-01-01 00:00:00+00"),
        ("d timestamp", "9999-12-31 23:59:59.999999+00", "infinity"),
    ],
)
def test_a_day_that_four_digits_do_not_write_is_told(ledger_url, column, fits, unfit):
    (declared,) = parse_columns(column)
    query = sql.SQL("select {} from (select %s::{} as d) as of").format(
        rendered.unfit_of([declared]), sql.SQL(sql_type(declared.type).compile(dialect=PGDialect()))
    )
    with psycopg.connect(ledger_url) as conn:
        conn.execute("set timezone = 'Pacific/Auckland'")
        assert [conn.execute(query, [cell]).fetchone() for cell in (fits, unfit)] == [(None,), ("d",)]


def said(cell: object) -> str:
    """Text by which -0.0 is told from 0.0."""
    return repr(cell)


@pytest.mark.invariant("I1")
def test_values_of_every_type_are_read_back_as_they_were(given):
    sent, table = given
    records = sorted(sent.records(), key=lambda record: record.place)
    assert len(records) == ROWS
    decoded = Json(COLUMNS).decoder(Use()).decode(pa.array([record.value for record in records], pa.binary()))
    assert decoded.errors.to_pylist() == [None] * ROWS and decoded.cut == 0
    for name in decoded.columns.schema.names:
        found, expected = decoded.columns.column(name).to_pylist(), table.column(name).to_pylist()
        if name in ("j", "aj", "st", "m"):
            # A document is what PostgreSQL has made of it.
            continue
        assert list(map(said, found)) == list(map(said, expected)), name
    assert decoded.columns.column("st").to_pylist() == table.column("st").to_pylist()
    assert [None if row is None else dict(row) for row in decoded.columns.column("m").to_pylist()] == [
        None if row is None else dict(row) for row in table.column("m").to_pylist()
    ]
    documents = {'{"a": 1, "ab": [1.50, null, "é"]}', "[]", '"null"', "100", "false", None}
    assert set(decoded.columns.column("j").to_pylist()) == documents
    assert {each for row in decoded.columns.column("aj").to_pylist() for each in row or ()} == {'{"b": [2]}', "3", None}


@pytest.mark.invariant("I1")
def test_a_key_of_every_type_is_read_back_as_it_was(given):
    sent, table = given
    sink = sink_of(sent.spec, "typed_rows")
    columns = [column for column in sink.fields if is_scalar(column.type)]
    assert len(columns) == SCALARS.count(", ") + 1
    query = sql.SQL("select {} from {} order by _offset").format(
        sql.SQL(", ").join(map(rendered.key_of, columns)), sql.Identifier(*sink.home)
    )
    with psycopg.connect(sent.ledger.url) as conn:
        conn.execute("set local extra_float_digits = 1")
        rows = conn.execute(query).fetchall()
    for number, column in enumerate(columns):
        keys = [key.encode() if isinstance(key := row[number], str) else key for row in rows]
        expected = table.column(column.name).to_pylist()
        assert [key is None for key in keys] == [cell is None for cell in expected]
        of = Bytes(f"k {column.type}") if column.name == "y" else Text(f"k {column.type}")
        decoded = of.decoder(Use("key")).decode(pa.array([key for key in keys if key is not None], pa.binary()))
        assert set(decoded.errors.to_pylist()) == {None}, column.name
        found = decoded.columns.column(0).to_pylist()
        assert list(map(said, found)) == [said(cell) for cell in expected if cell is not None], column.name


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (dict(name="a b"), "KafkaTopic.name: 'a b' is no name of a topic; use up to 249"),
        (dict(name=".."), "KafkaTopic.name: '..' is no name of a topic"),
        (dict(name="x" * 250), "is no name of a topic"),
        (dict(name="ratchet_marks"), "'ratchet_marks' is the topic in which ratchet notes what it has sent"),
        (dict(name="a", kafka=""), "KafkaTopic.kafka: name the Airflow connection to Kafka, or leave it out"),
    ],
)
def test_what_is_no_topic_to_send_to_is_refused(given, error):
    with pytest.raises(SpecError, match=error.replace(".", r"\.")):
        KafkaTopic(**given)


@pytest.mark.parametrize(
    ("columns", "key", "error"),
    [
        ("a bigint", "b", "kafka:out: key 'b' is not one of columns: a"),
        ("a json", "a", "kafka:out: key 'a': a json has no one text"),
        ("a array<int>", "a", "key 'a': a array<int> has no one text"),
        ("a struct<at: timestamp(millis)>", None, "column 'a': within others a moment is text, and timestamp(millis)"),
        ("a map<string, array<timestamp(nanos)>>", None, "column 'a': within others a moment is text"),
    ],
)
def test_columns_that_a_topic_cannot_be_given_are_refused(columns, key, error):
    with pytest.raises(SpecError) as raised:
        Append("rows", columns=columns, to=KafkaTopic("out", key=key))
    assert error in str(raised.value)


def test_a_topic_is_called_by_its_connection_and_name():
    assert KafkaTopic("out").address == "kafka:out" and KafkaTopic("out", kafka="other").address == "other:out"
    sinks = [Append(name, columns="a bigint", to=KafkaTopic("out")) for name in ("one", "two")]
    with pytest.raises(SpecError, match="destination 'kafka:out' is declared twice"):
        Pipeline(name="line", source=Topic("t", value=Json("a bigint")), sinks=sinks)
