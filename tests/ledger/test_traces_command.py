"""The commands that look: what they print at 80 columns, and as JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from ratchet import MaxDeadLetters
from ratchet.cli import app
from ratchet.errors import SettingsError
from ratchet.operate.replay import ask
from ratchet.operate.upcoming import lines_of, upcoming
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.answers import answer

from .staging import SPEC, committed, do, fail, start

WHEN = datetime(2013, 1, 1, 5, tzinfo=UTC)


@pytest.fixture
def ratchet(ledger, monkeypatch):
    """Runs a command at 80 columns, which must succeed: what it has printed."""
    env = {"RATCHET_LEDGER_URL": ledger.url, "RATCHET_PIPELINES": "tests.ledger.pipelines", "COLUMNS": "80"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        if "--json" in arguments and "--out" not in arguments:
            answer(arguments[0], done.stdout)
        return done.stdout

    return run


def dead(ledger, log, run: str, value: bytes) -> None:
    begun = start(ledger, SPEC, log, run)
    letter = {"timestamp": WHEN, "key": b"k", "value": value, "headers": None, "error": "no [red]number[/red]"}
    do(ledger, SPEC, begun, lambda p, o: {DEAD_LETTERS: [letter]} if o < 2 else {"rows": [{"a": o}]})
    commit(ledger, SPEC, begun.claim)


def test_a_transaction_is_shown_in_80_columns(ledger, log, ratchet):
    fail(ledger, log, "a_run_with_a_name_that_is_as_long_as_those_of_a_scheduler__2013-01-01T05:00:00+00:00")
    committed(ledger, log, "b")
    ask(ledger, SPEC, 1, 1, "once more", "me")
    said = ratchet("show", "line", "1")
    assert "line: transaction 1 is COMMITTED, which sinks show; the head is 1" in said
    assert "20 records read; rows: 20 in rows" in said and "a revision is asked for by me: once more" in said
    tables = said[said.index("ranges") :].splitlines()
    assert max(map(len, tables)) <= 80 and any(line.split()[:4] == ["t-0", "0", "10", "10"] for line in tables)
    shown = json.loads(ratchet("show", "line", "1", "--json"))
    assert shown["applied"] == 0 and [s["voted_at"] is not None for s in shown["slices"]] == [True, True]


def test_one_of_a_kind_is_said_in_the_singular(ledger, log, ratchet, tmp_path):
    log.stable = {0: 1, 1: 0}
    assert "1 offset in 1 slice\n" in "".join(f"{line}\n" for line in lines_of(upcoming(ledger, SPEC, log.offsets)))
    dead(ledger, log, "a", b"?")
    assert ratchet("dlq", "line").startswith("line: 1 dead letter\n")
    assert "1 letter is written to" in ratchet("dlq", "line", "--out", str(tmp_path / "letters"))
    assert "  1 record read; rows: " in ratchet("show", "line", "1")
    said = ratchet("release", "line", "--reason", "corrected")
    assert "a release of 1 dead letter of transaction 1 is asked for" in said
    assert "line: 1 revision or release waits; runs" in said
    assert "  1 release is asked for and waits for a run\n" in ratchet("status", "line")
    assert "line: 1 revision waits; runs" in ratchet("replay", "line", "--from", "1", "--to", "1", "--reason", "again")
    said = ratchet("drop", "line", "--reason", "done", "--dry-run")
    assert "dropped line line: 1 transaction, the head was 1; 1 dead letter, 0 stages" in said


def test_what_a_gate_has_said_is_shown(ledger, log, ratchet):
    strict = SPEC.model_copy(update={"gates": [MaxDeadLetters(0.1)]})
    begun = start(ledger, strict, log, "a")
    do(ledger, strict, begun, lambda p, o: {"rows": [{"a": o}]})
    commit(ledger, strict, begun.claim)
    assert "epoch 1: yes" in ratchet("show", "line", "1")


def test_where_a_record_is_and_where_a_row_comes_from(ledger, log, ratchet):
    said = ratchet("where", "line", "0", "3")
    assert said == "line: offset 3 of partition 0: no plan has this partition\n"
    committed(ledger, log, "a")
    said = ratchet("where", "line", "0", "3").splitlines()
    assert said[0] == "line: offset 3 of partition 0 is of transaction 1, which is COMMITTED: t-0[0,10), source 1"
    assert said[1] == '  rows: {"a": 3, "_partition": 0, "_offset": 3, "_n": 0}'
    assert said[2] == "  totals: not known; a row stands for many records"
    assert "is not planned yet; plans end at 10" in ratchet("where", "line", "0", "10")
    assert json.loads(ratchet("where", "line", "0", "3", "--json"))["places"][0]["txid"] == 1
    said = ratchet("origin", "line", "rows", "a=3", "_partition=1")
    assert said.splitlines()[1].split() == ["transaction", "1", "t-1", "at", "3"]
    assert "line: rows has no row with these values in a" in ratchet("origin", "line", "rows", "a=99")
    assert json.loads(ratchet("origin", "line", "totals", "k=0", "--json"))["made"][0]["offset"] is None


def test_dead_letters_are_counted_shown_and_written_out(ledger, log, ratchet, tmp_path):
    log.stable = {0: 10, 1: 10}
    dead(ledger, log, "a", b"\x1b[31mred")
    said = ratchet("dlq", "line")
    assert said.startswith("line: 4 dead letters\n") and max(map(len, said.splitlines())) <= 80
    assert "4      1     1  no [red]number[/red]" in said, "a value is no markup"
    assert "t-0 at 0, transaction 1: no [red]number[/red]" in said
    assert "value: \\x1b[31mred" in said and "\x1b" not in said, "a terminal obeys no record"
    assert "value: base64 G1szMW1yZWQ=" in ratchet("dlq", "line", "--raw", "--limit", "1")
    assert "t-0 at" not in ratchet("dlq", "line", "--limit", "0")
    found = json.loads(ratchet("dlq", "line", "--txid", "1", "--reason", "no [red]number[/red]", "--json"))
    assert [(x["partition"], x["offset"]) for x in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found[0]["timestamp"] == "2013-01-01T05:00:00+00:00"
    out = tmp_path / "letters.jsonl"
    assert "4 letters are written to" in ratchet("dlq", "line", "--limit", "100", "--out", str(out))
    assert [json.loads(line)["offset"] for line in out.read_text().splitlines()] == [0, 1, 0, 1]
    assert ratchet("dlq", "line", "--txid", "2", "--json").split() == ["[", "]"]
    with pytest.raises(SettingsError, match="none/letters cannot be written"):
        ratchet("dlq", "line", "--out", str(tmp_path / "none" / "letters"))
