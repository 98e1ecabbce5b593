"""Topics that get Avro: what is read back of a row, and what a registry may say of its schema."""

from __future__ import annotations

import json
import random
import struct
from io import BytesIO
from uuid import uuid4

import pyarrow as pa
import pytest
from fastavro import schemaless_reader
from sqlalchemy import text, update

from ratchet import Append, Avro, Json, KafkaTopic, Pipeline, Topic, Upsert
from ratchet.destinations.topic_schema import record_of, schema_of
from ratchet.errors import DestinationRefused, DestinationUnreachable, SpecError
from ratchet.formats import registry as asked
from ratchet.formats.port import Use
from ratchet.ledger.connection import Ledger
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.sinks import delta
from ratchet.sinks.lookup import sink_of
from ratchet.spec.columns import parse_columns
from ratchet.values.endpoint import Endpoint
from tests.apicurio import Apicurio
from tests.formats.test_registry import answering
from tests.ledger.destinations.typed import COLUMNS, cells, commit_rows
from tests.ledger.staging import do, start

from .sent import Sent, sending, spec_of

ROWS = 2_050
"""More than are made at once."""
REGISTRY = "orders_registry"
# Avro has no JSON, which is a text there; its names are plainer than those of JSON.
WRITTEN = COLUMNS.replace('"odd name"', "odd")
READ = WRITTEN.replace(" json", " string").replace("j: json", "j: string").replace("array<json>", "array<string>")
UNKNOWN = (404, {"error_code": 40401, "message": "no such subject"})
KNOWN = (200, {"subject": "s", "version": 1, "id": 258})


@pytest.fixture
def ledger(ledger_url):
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def hurried(monkeypatch):
    """What is waited for when nobody answers, shorter than for real servers."""
    monkeypatch.setattr(asked, "RETRY_SECONDS", 1)
    monkeypatch.setattr(asked, "ANSWER_SECONDS", 0.5)


@pytest.fixture(scope="module")
def apicurio(scratch):
    with Apicurio(scratch / f"registry-{uuid4().hex[:6]}") as running:
        yield running


def line(ledger: Ledger, properties: dict[str, str], topic: str, endpoint: Endpoint, columns: str, **given) -> Sent:
    """A line whose first sink goes to a topic as Avro."""
    to = KafkaTopic(topic, format="avro", registry=REGISTRY, **given)
    spec = spec_of(topic).model_copy(update={"sinks": [Append("rows_of_line", columns=columns, to=to)]})
    made = sending(ledger, properties, spec)
    made.registries[REGISTRY] = endpoint
    return made


def read_by(schema: str, value: bytes) -> dict:
    return schemaless_reader(BytesIO(value[5:]), json.loads(schema), None)


@pytest.mark.invariant("I1")
def test_values_of_every_type_are_read_back_from_avro(ledger, kafka_properties, make_topic):
    with answering(UNKNOWN, KNOWN) as server:
        sent = line(ledger, kafka_properties, make_topic(3), server.endpoint, WRITTEN, key="t")
        sent.spec = sent.spec.model_copy(update={"max_records": ROWS, "slice_records": ROWS})
        sent.log.beginning, sent.log.stable = {0: 0}, {0: ROWS}
        dice = random.Random(7)
        made = [cells(dice) for _ in range(ROWS)]
        for row in made:
            if row["st"]:
                row["st"]["odd"] = row["st"].pop("odd name")
        table = commit_rows(ledger, sent.spec, sent.log, made, sent.opens)
        schema = schema_of(record_of(sent.topic), parse_columns(WRITTEN))
        assert server.sent == [{"schema": schema}] * len(server.sent)
    subject = f"/subjects/{sent.topic}-value"
    assert [path for path, _ in server.requests[:3]] == [subject, f"{subject}/versions", subject]
    records = sorted(sent.records(), key=lambda record: record.place)
    assert len(records) == ROWS and {record.value[:5] for record in records} == {b"\x00\x00\x00\x01\x02"}
    decoder = Avro(READ, schema=schema).decoder(Use())
    decoded = decoder.decode(pa.array([record.value[5:] for record in records], pa.binary()))
    assert decoded.errors.to_pylist() == [None] * ROWS and decoded.cut == 0
    for name in decoded.columns.schema.names:
        found, expected = decoded.columns.column(name).to_pylist(), table.column(name).to_pylist()
        if name in ("j", "aj"):
            # A document is what PostgreSQL has made of it.
            continue
        if name == "m":
            found, expected = ([each if each is None else dict(each) for each in of] for of in (found, expected))
        assert list(map(repr, found)) == list(map(repr, expected)), name
    documents = {'{"a": 1, "ab": [1.50, null, "é"]}', "[]", '"null"', "100", "false", None}
    assert set(decoded.columns.column("j").to_pylist()) == documents
    assert {each for row in decoded.columns.column("aj").to_pylist() for each in row or ()} == {'{"b": [2]}', "3", None}
    assert read_by(schema, records[0].value).keys() == set(table.column_names) - {"_partition", "_offset", "_n"}


@pytest.mark.invariant("I1")
def test_floats_that_json_does_not_hold_are_sent_as_avro(ledger, kafka_properties, make_topic):
    with answering(KNOWN) as server:
        sent = line(ledger, kafka_properties, make_topic(3), server.endpoint, "d double, j json")
        odd = (float("nan"), float("inf"), float("-inf"), -0.0)
        sent.run("a", lambda p, o: {"d": odd[o % 4], "j": "null"})
    schema = schema_of(record_of(sent.topic), parse_columns("d double, j json"))
    rows = [read_by(schema, record.value) for record in sorted(sent.records(), key=lambda record: record.place)]
    assert [repr(row["d"]) for row in rows] == [repr(odd[o % 4]) for _ in range(2) for o in range(10)]


@pytest.mark.invariant("I1")
def test_a_float_is_rounded_once_and_a_null_is_none_whatever_is_declared(ledger, kafka_properties, make_topic):
    near = 7.038530691851209e-26
    """Its shortest text as a float is nearer to another one, once it is a double."""
    declared = "f float, b boolean, i int, s struct<x: int not null>"
    with answering(KNOWN) as server:
        sent = line(ledger, kafka_properties, make_topic(3), server.endpoint, declared)
        # Rows that are older than the spec's `not null`.
        ledger_sink = sent.spec.sinks[0].model_copy(
            update={"columns": declared.replace("b boolean", "b boolean not null")}
        )
        sent.spec = sent.spec.model_copy(update={"sinks": [ledger_sink]})
        sent.run("a", lambda p, o: {"f": near, "b": None if o % 2 else True, "i": None, "s": {"x": None}})
        (schema,) = {each["schema"] for each in server.sent}
    rows = [read_by(schema, record.value) for record in sorted(sent.records(), key=lambda record: record.place)]
    assert {struct.pack("<f", row["f"]) for row in rows} == {struct.pack("<f", near)}
    assert [row["b"] for row in rows] == [True, None] * 10
    assert {(row["i"], row["s"]["x"]) for row in rows} == {(None, None)}


@pytest.mark.parametrize(
    ("columns", "usual", "cell", "why"),
    [
        ("l array<double>", [1.0], [1.0, float("nan")], "column l has a value that no record holds"),
        (
            "l struct<x: int>",
            {"x": 1},
            {"x": "one"},
            "an array, a map or a struct of it is not what its columns are now",
        ),
    ],
)
def test_what_avro_is_not_given_is_refused_and_nothing_of_it_is_seen(
    ledger, kafka_properties, make_topic, columns, usual, cell, why
):
    with answering(KNOWN) as server:
        sent = line(ledger, kafka_properties, make_topic(3), server.endpoint, columns)
        with pytest.raises(
            DestinationRefused, match=f'line: rows_of_line: .*"offset":7,"n":0}}: {why}.* lets the line'
        ):
            sent.run("a", lambda p, o: {"l": cell if (p, o) == (1, 7) else usual})
    assert sent.records() == [] and sent.mark["step"] == 0


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        ("date", "infinity"),
        ("date", "10000-01-01"),
        ("timestamp", "-infinity"),
        ("timestamp(millis)", "12000-01-01 00:00+00"),
    ],
)
def test_a_day_that_no_reader_knows_is_not_sent(ledger, kafka_properties, make_topic, kind, cell):
    with answering(KNOWN) as server:
        sent = line(ledger, kafka_properties, make_topic(3), server.endpoint, f"l {kind}")
        sent.only_commit("a", lambda p, o: {"l": None})
        with ledger.begin() as conn:
            home = delta.table(sink_of(sent.spec, "rows_of_line").home, sink_of(sent.spec, "rows_of_line"))
            there = (home.c._partition == 1) & (home.c._offset == 7)
            assert conn.execute(update(home).where(there).values(l=text(f"'{cell}'"))).rowcount == 1
        with pytest.raises(DestinationRefused, match='"offset":7,"n":0}: column l has a value that no record holds'):
            sent.run("b", lambda p, o: {"l": None})
    assert sent.records() == [] and sent.mark["step"] == 0


def test_a_transaction_without_rows_asks_no_registry(ledger, kafka_properties, make_topic):
    with answering(KNOWN) as server:
        sent = line(ledger, kafka_properties, make_topic(3), server.endpoint, "k string, a bigint")
        sent.run("a")
        asked_before = len(server.requests)
        begun = start(ledger, sent.spec, sent.log, "b")
        do(ledger, sent.spec, begun, lambda p, o: {})
        sent.commit(begun)
        assert len(server.requests) == asked_before and sent.mark["step"] == 2


def test_a_topic_does_not_get_another_format_unseen(ledger, kafka_properties, make_topic):
    topic = make_topic(3)
    sent = sending(ledger, kafka_properties, spec_of(topic))
    sent.run("a")
    with answering(KNOWN) as server:
        later = line(ledger, kafka_properties, topic, server.endpoint, "k string, a bigint", key="k")
        later.log = sent.log
        begun = later.prepare("b")
        with pytest.raises(
            DestinationRefused, match="the topic gets json, and is to get avro: readers would find both"
        ):
            later.commit(begun)
        assert len(sent.records("read_uncommitted")) == 20
        address = later.destination.address
        detach(ledger, "line", address, "for the test", "me")
        attach(ledger, later.spec, address, How.FROM_HERE, "for the test", "me", later.opens)
        later.run("c")
    assert [record.value[:1] for record in sorted(sent.records(), key=lambda record: record.place)] == [
        *([b"{"] * 20),
        *([b"\x00"] * 20),
    ]


@pytest.mark.parametrize(
    ("answers", "error", "said"),
    [
        (
            (UNKNOWN, (409, {"error_code": 409, "message": "no default for field b"})),
            DestinationRefused,
            "does not take the schema for subject '.*-value': it answers 409: no default for field b; nothing was "
            r'sent; the schema of these rows is \{"type":"record","name":"topic_',
        ),
        ((UNKNOWN, (422, {"error_code": 42201, "message": "odd"})), DestinationRefused, "it answers 422: odd"),
        (((401, {}),), DestinationRefused, "answers 401 Unauthorized; correct its login"),
        ((UNKNOWN, (403, {})), DestinationRefused, "answers 403 Forbidden; .* or grant it reading and registering"),
        (((404, "no such page"),), DestinationRefused, "is no registry with Confluent's interface"),
        (
            (UNKNOWN, (200, {})),
            DestinationRefused,
            "its answer for a schema of subject '.*-value' has no id of 4 bytes",
        ),
        ((UNKNOWN, (200, {"id": 1 << 31})), DestinationRefused, "has no id of 4 bytes"),
        (((302, {}),), DestinationRefused, "is no registry with Confluent's interface: it answers 302"),
        (((422, {"message": "READONLY"}),), DestinationRefused, "it answers 422: READONLY; nothing was sent"),
        (((500, "odd"),), DestinationUnreachable, "it answers 500 Internal.*what is committed waits for it"),
        ((None,), DestinationUnreachable, "it is silent for"),
    ],
)
def test_a_registry_that_does_not_have_the_schema_keeps_a_line_waiting(
    ledger, kafka_properties, make_topic, hurried, answers, error, said
):
    with answering(KNOWN) as good:
        sent = line(ledger, kafka_properties, make_topic(3), good.endpoint, "k string, a bigint")
        sent.run("a")
        begun = sent.prepare("b")
        with answering(*answers) as bad, pytest.raises(error, match=f"line: rows_of_line: kafka:.*{said}"):
            sent.registries[REGISTRY] = bad.endpoint
            sent.commit(begun)
        assert len(sent.records("read_uncommitted")) == 20 and sent.mark["step"] == 1
        sent.registries[REGISTRY] = good.endpoint
        sent.commit(begun)
    assert len(sent.records()) == 40 and sent.mark["step"] == 2


def test_a_destination_is_not_started_where_the_registry_does_not_take_its_schema(ledger, kafka_properties, make_topic):
    with answering((401, {})) as server:
        sent = line(ledger, kafka_properties, make_topic(3), server.endpoint, "k string, a bigint")
        with pytest.raises(DestinationRefused, match="answers 401"):
            sent.run("a")
    assert sent.records("read_uncommitted") == []


@pytest.mark.invariant("I1")
def test_a_key_without_a_row_is_a_tombstone_among_avro(ledger, kafka_properties, make_topic):
    to = KafkaTopic(make_topic(3), format="avro", registry=REGISTRY, record="shop.Stock")
    columns = "a bigint, place struct<x: int, inner: struct<y: date not null>>"
    latest = Upsert("stock", key="k string not null", columns=columns, order="a", to=to)
    source, transform = Topic("t", value=Json("a bigint")), "tests.ledger.staging:rows_of"
    spec = Pipeline(name="line", source=source, transform=transform, sinks=[latest], max_records=20, slice_records=10)
    migrate(ledger.url, [spec])

    def made(partition: int, offset: int) -> dict:
        place = None if offset == 4 else {"x": offset, "inner": {"y": f"2026-01-{offset + 1:02}"}}
        return {"k": "abcde"[offset % 5], "a": offset, "place": place, "_deleted": offset == 7}

    with answering(KNOWN) as server:
        sent = Sent(ledger, kafka_properties, spec, registries={REGISTRY: server.endpoint})
        sent.log.stable = {0: 10, 1: 0}
        sent.run("a", made)
    (schema,) = {json.loads(each["schema"])["name"] and each["schema"] for each in server.sent}
    names = [json.loads(schema)["name"], json.loads(schema)["fields"][2]["type"][1]["name"]]
    assert names == ["shop.Stock", "shop.Stock_place"]
    found = {record.key: record.value and read_by(schema, record.value) for record in sent.records()}
    with ledger.begin() as conn:
        rows = conn.execute(text("select k, a, place from stock")).all()
    assert len(rows) == 4 and found.pop(b"c") is None
    for k, a, place in rows:
        inner = found[k.encode()].pop("place")
        assert found[k.encode()] == {"k": k, "a": a}
        assert {**inner, "inner": {"y": str(inner["inner"]["y"])}} == place


@pytest.mark.all
@pytest.mark.invariant("I1")
def test_a_line_behind_it_reads_what_a_real_registry_has_through_a_change_of_columns(
    ledger, kafka_properties, make_topic, apicurio
):
    topic = make_topic(3)
    sent = line(ledger, kafka_properties, topic, apicurio.endpoint, "k string, a bigint", record="shop.Order")
    sent.run("a")
    later = line(ledger, kafka_properties, topic, apicurio.endpoint, "k string, a bigint, b int", record="shop.Order")
    later.log.stable = sent.log.stable
    later.run("b", lambda p, o: {"k": "x", "a": o, "b": p})
    decoder = Avro("k string, a bigint, b int", registry="r").decoder(Use(endpoints={"r": apicurio.endpoint}))
    records = sorted(sent.records(), key=lambda record: record.place)
    decoded = decoder.decode(pa.array([record.value for record in records], pa.binary()))
    assert decoded.errors.null_count == len(records) == 40
    with ledger.begin() as conn:
        rows = conn.execute(text("select k, a, b from rows_of_line order by _txid, _partition, _offset")).all()
    assert [tuple(row.values()) for row in decoded.columns.to_pylist()] == list(map(tuple, rows))
    assert {row[2] for row in rows} == {None, 0, 1}


@pytest.mark.all
def test_a_real_registry_refuses_a_change_that_its_readers_could_not_read(
    ledger, kafka_properties, make_topic, apicurio
):
    topic = make_topic(3)
    line(ledger, kafka_properties, topic, apicurio.endpoint, "k string, a bigint").run("a")
    apicurio.keep_to("FULL", f"{topic}-value")
    later = line(ledger, kafka_properties, topic, apicurio.endpoint, "k string, a bigint", record="shop.Order")
    with pytest.raises(DestinationRefused, match="does not take the schema for subject '.*-value': it answers 409"):
        later.run("b")
    assert len(later.records("read_uncommitted")) == 20


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (dict(format="avro"), "KafkaTopic.spec: registry: Avro is read by its schema; name the connection"),
        (dict(registry="r"), 'KafkaTopic.spec: registry: that is of Avro; give format="avro", or leave it out'),
        (dict(record="R"), "KafkaTopic.spec: record: that is of Avro"),
        (dict(format="avro", registry="r", record="a b"), "record: 'a b' is no full name of a record"),
        (dict(format="avro", registry="r", record="string"), "record: 'string' is no full name of a record"),
    ],
)
def test_what_avro_needs_is_said(given, error):
    with pytest.raises(SpecError, match=error):
        KafkaTopic("out", **given)


def test_names_that_avro_has_not_are_refused():
    to = KafkaTopic("out", format="avro", registry="r")
    for kind in ('struct<"odd name": int>', 'array<map<string, struct<a: struct<"é": int>>>>'):
        with pytest.raises(SpecError, match="kafka:out: column 'a': Avro has no field '.*'; its names have letters"):
            Append("rows", columns=f"a {kind}", to=to)
    with pytest.raises(SpecError, match="kafka:out: columns 'a' and 'a_b': both have a record 'a_b'; rename one"):
        Append("rows", columns="a struct<b: array<struct<x: int>>>, a_b struct<y: int>", to=to)
    assert to.registries == ("r",) and KafkaTopic("out").registries == ()


def test_a_record_is_called_as_its_topic_in_letters_that_avro_has():
    assert [record_of(topic) for topic in ("orders", "shop.orders-eu", "1st", "string")] == [
        *("orders", "shop_orders_eu"),
        *("_1st", "_string"),
    ]
