"""`ratchet detach` and `ratchet attach` as a person uses them, with a connection that the environment names."""

from __future__ import annotations

import json

import pytest

from ratchet.operate.snapshot.status import status
from tests.answers import answer

from ..running import here
from ..staging import appended
from .elsewhere import sent, without

ADDRESS = "warehouse:copied"


@pytest.fixture
def ratchet(ledger, elsewhere):
    """Runs the command: (exit status, what it has printed, the errors)."""
    env = {
        "RATCHET_LEDGER_URL": ledger.url,
        "RATCHET_PIPELINES": "tests.ledger.destinations.pipelines",
        "RATCHET_CONNECTIONS": json.dumps({"warehouse": {"url": elsewhere.url}}),
        "COLUMNS": "80",
    }

    def run(*arguments: str, **more: str) -> tuple[int, str, str]:
        found = here(arguments, env | more)
        if "--json" in arguments and found[1]:
            answer(arguments[0], found[1])
        return found

    return run


def test_a_destination_is_left_out_and_brought_back_with_what_it_lacks(ledger, log, elsewhere, ratchet):
    sent(ledger, elsewhere, log, "a")
    why = ["--reason", "the warehouse moves"]
    assert ratchet("detach", "line", ADDRESS)[0] == 2
    tried = ratchet("detach", "line", ADDRESS, *why, "--dry-run")[1]
    assert "this was a dry run: nothing was changed" in tried
    assert status(ledger, "line").destinations[0].detached_at is None
    assert ratchet("detach", "line", ADDRESS, *why, "--json")[0] == 0
    assert status(ledger, "line").destinations[0].detached_at is not None
    without(ledger, log, "b")
    assert len(elsewhere.rows()) == 20
    assert f"{ADDRESS}, of rows: DETACHED" in ratchet("status", "line")[1]
    back = ["--reason", "it is there again"]
    tried = ratchet("attach", "line", ADDRESS, *back, "--dry-run", "--json")[1]
    assert json.loads(tried)["dry_run"] and len(elsewhere.rows()) == 20
    done = ratchet("attach", "line", ADDRESS, *back)
    assert done[0] == 0 and len(elsewhere.rows()) == 40, done
    assert f"{ADDRESS}, of rows: has all" in ratchet("status", "line")[1]
    assert "it is there again" in ratchet("history", "line")[1]


def test_what_cannot_be_attached_is_said_in_a_line_and_nothing_is_changed(ledger, log, elsewhere, ratchet):
    sent(ledger, elsewhere, log, "a")
    why = ["--reason", "x"]
    both = ratchet("attach", "line", ADDRESS, *why, "--anew", "--from-here")
    assert both[0] == 2 and "either --anew or --from-here" in both[2]
    unknown = ratchet("attach", "line", "warehouse:nowhere", *why)
    assert unknown[0] == 1 and unknown[2].count("\n") == 1 and "warehouse:nowhere" in unknown[2]
    assert ratchet("detach", "line", ADDRESS, *why)[0] == 0
    for named, part in (
        ("{}", "connection 'warehouse' is not in RATCHET_CONNECTIONS"),
        ("[", "what it holds is no JSON"),
    ):
        code, _, said = ratchet("attach", "line", ADDRESS, *why, RATCHET_CONNECTIONS=named)
        assert code == 1 and part in said and "Traceback" not in said
    away = json.dumps({"warehouse": {"url": "postgresql://nobody:canary@127.0.0.1:1/none"}})
    code, _, said = ratchet("attach", "line", ADDRESS, *why, RATCHET_CONNECTIONS=away)
    assert code == 1 and "Traceback" not in said and "canary" not in said
    assert status(ledger, "line").destinations[0].detached_at is not None
    assert ratchet("attach", "line", ADDRESS, *why, "--anew")[0] == 0
    assert len(elsewhere.rows()) == 20


@pytest.mark.parametrize("how", ["--anew", "--from-here"])
def test_it_is_made_anew_or_begins_here(ledger, log, elsewhere, ratchet, how):
    sent(ledger, elsewhere, log, "a")
    ratchet("detach", "line", ADDRESS, "--reason", "x")
    without(ledger, log, "b")
    assert ratchet("attach", "line", ADDRESS, "--reason", "y", how)[0] == 0
    assert len(elsewhere.rows()) == (40 if how == "--anew" else 20)
    without(ledger, log, "c")
    assert f"{ADDRESS}, of rows: BEHIND" in ratchet("status", "line")[1]
    had = len(elsewhere.rows())
    # One that is attached already gets what it lacks.
    assert ratchet("attach", "line", ADDRESS, "--reason", "z")[0] == 0
    assert len(elsewhere.rows()) == had + 20


def test_a_catalog_is_named_as_a_database_is(in_postgresql):
    in_postgresql.run("a")
    extra = {name: value for name, value in in_postgresql.properties.items() if name != "uri"}

    def attached(uri: str) -> tuple[int, str, str]:
        env = {
            "RATCHET_LEDGER_URL": in_postgresql.ledger.url,
            "RATCHET_PIPELINES": "tests.ledger.destinations.iceberg_pipelines",
            "RATCHET_CONNECTIONS": json.dumps({"lakehouse": {"url": uri, "extra": extra}}),
            "COLUMNS": "80",
        }
        return here(["attach", "line", in_postgresql.address, "--reason", "it was restored", "--anew"], env)

    assert attached(in_postgresql.properties["uri"])[0] == 0
    assert in_postgresql.rows() == appended(in_postgresql.ledger) and in_postgresql.mark().step == 1
    code, _, said = attached("")
    assert code == 1 and "connection 'lakehouse': it names no catalog" in said and "Traceback" not in said
