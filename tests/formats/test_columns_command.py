"""Columns of a spec are taken from a registry once, by `ratchet init`, and held against it later, by `columns`."""

from __future__ import annotations

import json
import sys
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from ratchet import cli, command
from ratchet.errors import SettingsError, SpecError
from ratchet.formats import registry
from tests.apicurio import Apicurio

pytestmark = pytest.mark.all


@pytest.fixture(scope="module")
def apicurio(scratch):
    with Apicurio(scratch / f"registry-{uuid4().hex[:6]}") as running:
        yield running


@pytest.fixture
def run(tmp_path, monkeypatch, apicurio):
    """Runs a command where specs are in a package of the test's own, `run.folder`."""
    package = f"drafts_{uuid4().hex[:8]}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {
        "RATCHET_PIPELINES": package,
        "RATCHET_LEDGER_URL": "",
        "RATCHET_KAFKA": "",
        "RATCHET_CONNECTIONS": json.dumps({"schemas": {"url": apicurio.endpoint.url}}),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(registry, "RETRY_SECONDS", 1)
    command.variables.cache_clear()

    def asked(*arguments: str):
        # A spec that has changed is read anew.
        for module in [name for name in sys.modules if name.startswith(package)]:
            del sys.modules[module]
        return CliRunner().invoke(cli.app, arguments)

    asked.folder = tmp_path / package
    yield asked
    for module in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[module]


def avro(*fields: tuple[str, object]) -> dict:
    made = [{"name": name, "type": kind, **({"default": None} if "null" in kind else {})} for name, kind in fields]
    return {"type": "record", "name": "Order", "fields": made}


BIG = {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}
FIRST = avro(("id", "long"), ("customerName", "string"), ("big", BIG))


def test_columns_come_from_the_newest_schema_and_what_has_changed_is_said(run, apicurio):
    topic = f"orders-{uuid4().hex[:6]}"
    apicurio.register(f"{topic}-value", FIRST)
    given = run("init", "given", "--topic", topic, "--registry", "schemas", "--columns", "big json", "--yes")
    assert given.exit_code == 0 and "left out" not in given.stderr
    text = (run.folder / "given.py").read_text()
    assert 'Avro("big json", registry="schemas")' in text and "#" not in text
    done = run("init", "orders", "--topic", topic, "--registry", "schemas", "--yes")
    assert done.exit_code == 0, (done.output, done.exception)
    why = "big is left out: it is a decimal(50,2), and a column has up to 38 digits"
    assert why in done.stderr
    spec = (run.folder / "orders.py").read_text()
    assert f"# columns: version 1 of subject {topic}-value\n# {why}\n" in spec
    columns = "id bigint not null, customer_name string from customerName not null"
    assert f'value=Avro("{columns}", registry="schemas"))' in spec
    assert run("validate").exit_code == 0

    same = run("columns", "orders", "--since", "1")
    assert same.exit_code == 0 and "orders: columns of the value are those of version 1 of subject" in same.stdout
    all_of_it = run("columns", "orders")
    assert all_of_it.exit_code == 0 and f"  {why}\n" in all_of_it.stdout

    second = avro(("id", "string"), ("vat", ["null", "int"]), ("big", BIG), ("nil", "null"))
    number = apicurio.register(f"{topic}-value", second)
    changed = run("columns", "orders", "--since", "1")
    assert changed.exit_code == 3, (changed.output, changed.exception)
    assert changed.stdout.splitlines() == [
        f"orders: columns of the value differ from version 2 of subject {topic}-value (schema {number})",
        "  changed: the schema has id as string not null, and the spec: id bigint not null",
        "  gone: the schema has no field customerName, from which comes: customer_name string from customerName not "
        "null",
        "  new: vat int",
        "  nil is left out: it is always null",
    ]
    said = json.loads(run("columns", "orders", "--since", "1", "--json").stdout)
    assert [(of["kind"], of["field"]) for of in said[0]["drifts"]] == [
        ("changed", "id"),
        ("gone", "customerName"),
        ("new", "vat"),
    ]


PROTO = """syntax = "proto3"; package o; message Other { int32 x = 1; }
message Order { int64 id = 1; By by = 2; State state = 3; %s }
message By { string name = 1; %s } enum State { NEW = 0; }
"""


def test_the_message_type_is_part_of_the_spec_and_fields_within_records_are_looked_at(run, apicurio):
    subject = f"proto-{uuid4().hex[:6]}"
    apicurio.register(subject, PROTO % ("", ""), "PROTOBUF")
    asked = ("init", "orders", "--topic", "t", "--registry", "schemas", "--subject", subject, "--yes")
    assert run(*asked, "--message", "o.Order").exit_code == 0
    spec = run.folder / "orders.py"
    value = 'Protobuf("id bigint, by struct<name: string>, state string", registry="schemas", message="o.Order")'
    assert value in spec.read_text()
    # What a person has chosen besides holds what is sent as well.
    by_hand = "id decimal(20,0) not null, by string from by.name, state int, at timestamp from _timestamp"
    text = spec.read_text().replace("id bigint, by struct<name: string>, state string", by_hand, 1)
    spec.write_text(
        text.replace('columns="id bigint', 'columns="id decimal(20,0)').partition(", by struct")[0] + '")])\n'
    )
    assert run("columns", "orders", "--subject", subject).exit_code == 0
    apicurio.register(subject, PROTO % ("reserved 4; int32 kind = 5;", "int32 more = 2; By by = 3;"), "PROTOBUF")
    done = run("columns", "orders", "--subject", subject)
    assert done.exit_code == 3 and done.stdout.splitlines()[1:] == [
        "  new: kind int",
        "  new: more int from by.more",
        "  by.by is left out: it is within one of its own kind; declare it as json",
    ]
    first = run("init", "first", "--topic", "t", "--registry", "schemas", "--subject", subject, "--yes")
    assert (
        first.exit_code == 0
        and 'Protobuf("x int", registry="schemas", message="o.Other")' in (run.folder / "first.py").read_text()
    )


def test_json_schemas_and_keys(run, apicurio):
    topic = f"json-{uuid4().hex[:6]}"
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    number = apicurio.register(f"{topic}-value", schema, "JSON")
    of_key = apicurio.register(f"{topic}-key", '"string"')
    assert run("init", "events", "--topic", topic, "--registry", "schemas", "--yes").exit_code == 0
    spec = run.folder / "events.py"
    text = spec.read_text()
    assert 'Json("id bigint", registry="schemas")' in text
    keyed = text.replace('registry="schemas")', 'registry="schemas"), key=Avro("tenant int", registry="schemas")')
    spec.write_text(keyed.replace("import Append", "import Append, Avro"))
    done = run("columns", "events")
    assert done.exit_code == 3 and done.stdout.splitlines() == [
        f"events: columns of the value are those of version 1 of subject {topic}-value (schema {number})",
        f"events: columns of the key differ from version 1 of subject {topic}-key (schema {of_key})",
        "  changed: the schema has tenant as string not null, and the spec: tenant int",
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("--registry", "schemas", "--subject", "nowhere"), SettingsError, "subject 'nowhere' is not in the registry"),
        (("--registry", "other"), SettingsError, "a new spec: connection 'other' is not in RATCHET_CONNECTIONS"),
        (("--subject", "orders"), SettingsError, "name its connection by --registry"),
        (("--registry", "schemas", "--subject", "nil"), SpecError, "version 1 of subject nil offers no columns; a is "),
        (
            ("--registry", "schemas", "--subject", "nil", "--message", "x.Y"),
            SettingsError,
            "--message x.Y: version 1 of subject nil has no message types",
        ),
    ],
)
def test_what_a_registry_cannot_give_is_said_and_nothing_is_written(run, apicurio, arguments, error, said):
    apicurio.register("nil", avro(("a", "null")))
    done = run("init", "orders", "--topic", "t", "--yes", *arguments)
    assert isinstance(done.exception, error) and said in str(done.exception)
    assert [path.name for path in run.folder.glob("*.py")] == ["__init__.py"]


def test_columns_of_a_pipeline_without_a_registry_are_compared_with_nothing(run):
    assert run("init", "plain", "--columns", "a int", "--yes").exit_code == 0
    assert "with a registry" in str(run("columns", "plain").exception)
