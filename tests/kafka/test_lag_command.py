"""`ratchet lag` as a person uses it, with the topic and the ledger that the environment names."""

from __future__ import annotations

import json
import sys
from functools import partial
from types import ModuleType

import pytest

from ratchet import Append, Json, Pipeline, Topic
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import begin
from tests.answers import answer
from tests.kafka import driven
from tests.ledger.running import here


@pytest.fixture
def specs(tmp_path, monkeypatch, make_topic) -> dict[str, Pipeline]:
    """Two lines; the topic of the second one is not there."""
    made = {
        name: Pipeline(
            name=name,
            source=Topic(topic, value=Json("a bigint")),
            sinks=[Append(f"{name}_rows", columns="a bigint")],
            max_records=40,
        )
        for name, topic in (("first", make_topic(partitions=2)), ("second", "not-there"))
    }
    package = ModuleType("lagging")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "lagging", package)
    for name, spec in made.items():
        (tmp_path / f"{name}.py").touch()
        module = ModuleType(f"lagging.{name}")
        module.__dict__["PIPELINE"] = spec
        monkeypatch.setitem(sys.modules, f"lagging.{name}", module)
    return made


def test_how_far_each_line_is_behind_is_one_row_of_80_columns(ledger_url, specs, client, kafka_properties):
    env = {
        "RATCHET_LEDGER_URL": ledger_url,
        "RATCHET_KAFKA": json.dumps(kafka_properties),
        "RATCHET_PIPELINES": "lagging",
        "COLUMNS": "80",
    }
    first = specs["first"]
    migrate(ledger_url, specs.values())
    driven.send(kafka_properties, first.source.name, 100)
    with Ledger(ledger_url) as ledger:
        begin(ledger, first, Run("first", "a"), partial(client.offsets, first.source.name), lambda *_: True)
    status, said, _ = here(["lag"], env)
    assert status == 0 and max(map(len, said.splitlines())) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.strip()}
    # Of what is not committed, so many are not planned either.
    assert rows["first"][:2] == ["100", "60"]
    assert "second has not begun; `ratchet plan second` says what its first run takes\n" in said
    status, said, _ = here(["lag", "first", "--json"], env)
    (found,) = answer("lag", said)
    assert status == 0 and (found["records"], found["waiting"], found["in_flight"]) == (100, 60, 40)
    assert found["is_told"] and not found["is_made_again"] and 0 < found["seconds"] < 600


@pytest.mark.parametrize(
    ("named", "part"),
    [
        ({}, "RATCHET_KAFKA"),
        ({"RATCHET_KAFKA": "["}, "RATCHET_KAFKA"),
        ({"RATCHET_KAFKA": '{"bootstrap.servers": "127.0.0.1:1"}'}, "127.0.0.1:1"),
    ],
    ids=["unnamed", "no JSON", "away"],
)
def test_a_kafka_that_is_not_named_or_not_there_is_said_in_a_line(ledger_url, specs, named, part):
    migrate(ledger_url, specs.values())
    env = {"RATCHET_LEDGER_URL": ledger_url, "RATCHET_PIPELINES": "lagging", **named}
    status, said, error = here(["lag"], env)
    assert (status, said) == (1, "") and part in error and "Traceback" not in error
