"""Avro's schemas: the writer's and a reader's, in the spec, in a file, and several in one batch."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from ratchet import Avro
from ratchet.errors import SpecError
from ratchet.formats.avro_decoder import AvroDecoder, Written
from ratchet.formats.avro_schema import reader_of, schema_of
from ratchet.formats.port import NoRow
from ratchet.spec.columns import parse_columns

from .conformance import rows_of
from .test_avro import logical, number, record


def resolved(columns: str, writer: dict, reader: dict, *values: bytes):
    parsed = parse_columns(columns)
    of = Written(schema_of(json.dumps(writer)), reader_of(json.dumps(reader)), parsed)

    class Known:
        def written(self, given, headers):
            return [(of, 0)] * len(given)

    found = AvroDecoder(parsed, Known()).decode(pa.array(values, pa.binary()))
    return rows_of(found, len(values)), found.errors.to_pylist()


def test_a_readers_schema_has_aliases_promotions_and_defaults():
    reader = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "amount", "aliases": ["f0"], "type": "double"},
            {"name": "raw", "type": "bytes", "default": "\u00ff"},
            {"name": "at", "type": logical("long", "timestamp-millis"), "default": 1500},
            {"name": "price", "type": logical("bytes", "decimal", precision=4, scale=2), "default": "\u0001\u0000"},
            {"name": "day", "type": ["null", logical("int", "date")], "default": None},
            {"name": "ratio", "type": "float", "default": 1},
        ],
    }
    columns = "amount double, raw binary, at timestamp, price decimal(4,2), day date, ratio float"
    (((*row,),),), _ = resolved(columns, record("int", "string"), reader, number(3) + number(1) + b"x")
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1500)
    assert row == [3.0, b"\xff", moment, Decimal("2.56"), None, 1.0]


def test_a_schema_that_does_not_resolve_is_an_error_that_names_both():
    (rows,), (error,) = resolved("f0 string", record("int"), {**record("string"), "name": "R"}, number(3))
    assert rows is None
    assert error == "the value: R does not resolve to the reader's schema R: Schema mismatch: int is not string"
    _, (error,) = resolved("f0 string", record("string"), {**record("string"), "name": "Other"}, number(1) + b"x")
    assert error.startswith("the value: R does not resolve to the reader's schema Other: ")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (None, "Avro.spec: give schema, by which values are written, or registry"),
        ("{", "Avro.schema: it is no JSON"),
        ("[1]", "Avro.schema: it is no schema of Avro"),
        ('{"type": "record"}', "Avro.schema: it is no schema of Avro"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Other"}]}', "it names a type Other"),
        (json.dumps(record({"type": "enum", "name": "E", "symbols": ["x", "x"]})), "must be unique"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}',
            "Default value <x> must match schema type: int",
        ),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"int","logicalType":"date"},'
            '"default":1000000000}]}',
            "the default of its field a is none of its type",
        ),
        ("[" * 100_000, "its types are within each other too often"),
        ("orders", "it is neither JSON nor the name of a file of package pipelines that ends with .avsc"),
        ("orders.avsc", "package pipelines has no file 'orders.avsc'"),
        ("../../../pyproject.avsc", "package pipelines has no file"),
    ],
)
def test_a_schema_that_is_none_is_refused_when_the_spec_is_read(schema, said):
    with pytest.raises(SpecError, match=said):
        Avro("a int", schema=schema)


def test_a_schema_of_a_file_is_part_of_the_spec(tmp_path, monkeypatch):
    package = tmp_path / "pipelines"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "pipelines", raising=False)
    said = []
    for kind in ("int", "long"):
        (package / "orders.avsc").write_text(json.dumps(record(kind), indent=4))
        said.append(Avro("a int", schema="orders.avsc"))
    assert said[0] == Avro("a int", schema=json.dumps(record("int"))) and said[0] != said[1]


def test_a_registry_is_a_connection_of_the_spec():
    assert Avro("a int", registry="orders_registry").connections == ("orders_registry",)
    assert Avro("a int", schema='"int"').connections == ()


def test_what_fastavro_raises_of_a_value_is_its_error():
    assert isinstance(Written(schema_of('"string"'), None, ()).value(number(1) + b"\xff"), NoRow)


def test_values_of_several_schemas_keep_their_order():
    one, two = record("string", "int"), {**record("string"), "name": "Two"}
    columns = parse_columns("f0 string, f1 smallint")
    of = [Written(schema_of(json.dumps(schema)), None, columns) for schema in (one, two)]

    class Alternating:
        def written(self, given, headers):
            return [(of[i % 3 == 0], 0) for i in range(len(given))]

    def text(i: int) -> bytes:
        return number(1) + str(i).encode()

    sent = [text(i) if i % 3 == 0 else text(i) + number(i) for i in range(9)]
    rows = [[(str(i), None if i % 3 == 0 else i)] for i in range(9)]
    decoder = AvroDecoder(columns, Alternating())
    assert rows_of(decoder.decode(pa.array(sent, pa.binary())), 9) == rows
    sent[3], sent[4], rows[3], rows[4] = b"\xff", text(4) + number(40_000), None, None
    found = decoder.decode(pa.array(sent, pa.binary()))
    assert rows_of(found, 9) == rows
    assert found.errors[3].as_py().startswith("the value: ")
    assert found.errors[4].as_py() == "column f1: found 40000, wanted smallint"
