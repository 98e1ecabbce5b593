"""`ratchet init` writes a spec that is valid and suits the records of the topic; nothing is overwritten."""

from __future__ import annotations

import json
import sys
from uuid import uuid4

import pytest
from kafka import KafkaProducer
from typer.testing import CliRunner

from ratchet import cli, command
from ratchet.errors import SettingsError, SpecError
from ratchet.operate.draft import suggested

VALUES = [
    b'{"id": 1, "customerName": "a", "amount": 12.50, "at": "2024-05-01T10:00:00Z", "open": true, "more": {"a": 1}}',
    b"no JSON",
    b'{"id": 2, "customerName": null, "amount": 3, "at": "2024-05-02T10:00:00+02:00", "open": false, "more": [1]}',
]
COLUMNS = (
    "id bigint, customer_name string from customerName, amount decimal(38,2), at timestamp, open boolean, more json"
)


@pytest.fixture
def init(tmp_path, monkeypatch, ledger_url, kafka_properties):
    """Runs it where specs and jobs are packages of the test's own: the result, and the folder of specs."""
    package = f"drafts_{uuid4().hex[:8]}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {
        "RATCHET_PIPELINES": package,
        "RATCHET_LEDGER_URL": ledger_url,
        "RATCHET_KAFKA": json.dumps(kafka_properties),
    }.items():
        monkeypatch.setenv(name, value)
    command.variables.cache_clear()

    def run(*arguments: str, given: str | None = None):
        return CliRunner().invoke(cli.app, ["init", *arguments], input=given)

    yield run, tmp_path / package
    for module in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[module]


@pytest.fixture
def topic(make_topic, kafka_properties):
    name = make_topic(partitions=2)
    producer = KafkaProducer(bootstrap_servers=kafka_properties["bootstrap.servers"], acks="all")
    for value in VALUES:
        producer.send(name, value, partition=1)
    producer.flush()
    producer.close()
    return name


def test_columns_are_suggested_by_the_first_records():
    assert suggested(VALUES) == COLUMNS
    assert suggested([b'{"a": "x", "b": 1}', b'{"a": 1, "b": null}', None]) == "a string, b bigint"
    with pytest.raises(SpecError, match="name them by --columns"):
        suggested([b"[1]", b"x", None, b'{"\\u00e4": 1}'])


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--sink", "upsert", "--key", "id bigint", "--order", "at"),
        ("--sink", "accumulate", "--key", "open boolean", "--sum", "id bigint"),
    ],
)
def test_all_by_options_gives_a_pipeline_that_previews(init, topic, more):
    run, folder = init
    done = run("drafted", "--topic", topic, "--yes", *more)
    assert done.exit_code == 0, (done.output, done.exception)
    assert f"wrote {folder / 'drafted.py'}" in done.stdout and f"topic {topic} has 2 partitions" in done.stdout
    assert "ratchet migrate drafted would do this:\n  sink drafted: created " in done.stdout
    assert done.stdout.endswith("next: ratchet validate; ratchet migrate drafted; ratchet preview drafted\n")
    before = (folder / "drafted.py").read_text()
    for asked in (["validate"], ["migrate", "drafted"], ["preview", "drafted", "--json"]):
        done = CliRunner().invoke(cli.app, asked)
        assert done.exit_code == 0, (asked, done.output, done.exception)
    assert len(json.loads(done.stdout)["sinks"]["drafted"]) == 2
    again = run("drafted", "--topic", topic, "--yes", *more)
    assert isinstance(again.exception, SettingsError) and "nothing was written" in str(again.exception)
    assert (folder / "drafted.py").read_text() == before


def test_what_comes_next_is_said_as_the_command_was_called(init, topic, monkeypatch):
    monkeypatch.setattr(sys, "argv", [".venv/bin/ratchet", "init"])
    done = init[0]("called", "--topic", topic, "--yes")
    assert "next: .venv/bin/ratchet validate; .venv/bin/ratchet migrate called; " in done.stdout


def test_a_transform_is_written_beside_the_others(init, topic, tmp_path, monkeypatch):
    run, folder = init
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").touch()
    for module in [name for name in sys.modules if name.partition(".")[0] == "jobs"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setenv("RATCHET_SPARK", "")
    done = run("formed", "--topic", topic, "--yes", "--transform")
    assert done.exit_code == 0, (done.output, done.exception)
    assert 'transform="jobs.formed:transform"' in (folder / "formed.py").read_text()
    assert "def transform(formed: pa.Table)" in (tmp_path / "jobs" / "formed.py").read_text()
    (folder / "formed.py").unlink()
    assert isinstance(run("formed", "--topic", topic, "--yes", "--transform").exception, SettingsError)
    assert not (folder / "formed.py").exists(), "neither or both"
    for module in [name for name in sys.modules if name.partition(".")[0] == "jobs"]:
        monkeypatch.delitem(sys.modules, module)


def test_what_is_not_given_is_asked(init, topic):
    run, folder = init
    done = run(given=f"asked\n{topic}\n\nupsert\nid bigint\nat\n")
    assert done.exit_code == 0, (done.output, done.exception)
    assert 'Upsert("asked", key="id bigint", columns="customer_name string, amount' in (folder / "asked.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("Wrong Name", "--columns", "a int"), "name"),
        (("x", "--columns", "a intt"), "intt"),
        (("x", "--columns", "a int", "--sink", "heap"), "--sink heap is none of"),
        (("x", "--columns", "a int", "--sink", "upsert"), "Key"),
        ((), "Name of the pipeline"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(init, arguments, said):
    run, folder = init
    done = run(*arguments, "--yes")
    assert isinstance(done.exception, SettingsError | SpecError) and said in str(done.exception)
    assert [path.name for path in folder.glob("*.py")] == ["__init__.py"]


def test_without_servers_columns_are_given_and_the_rest_is_said_not_to_be_there(init, monkeypatch):
    run, folder = init
    monkeypatch.setenv("RATCHET_KAFKA", "")
    monkeypatch.setenv("RATCHET_LEDGER_URL", "")
    done = run("alone", "--columns", "a int", "--yes")
    assert done.exit_code == 0 and "RATCHET_KAFKA names no Kafka" in done.stdout and "no ledger" in done.stdout
    assert (folder / "alone.py").exists()
