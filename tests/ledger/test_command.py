"""The `ratchet` command as a person uses it, against a real PostgreSQL and Kafka."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from ratchet.ledger.states import State
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from tests.answers import answer

from .staging import SPEC, Log, appended, committed, planned, prepare, start, state

ROOT = Path(__file__).parents[2]


def test_it_is_the_same_in_a_process_of_its_own(ledger_url, ratchet):
    for arguments in (["status", "line"], ["status", "--json"], ["void", "line", "7", "--reason", "x"]):
        assert ratchet(*arguments) == ratchet(*arguments, PYTHONPATH=str(ROOT))


def halt(ledger, log: Log) -> None:
    for run in "abc":
        start(ledger, SPEC, log, run)
        settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="no such column")


def test_a_halted_line_is_seen_tried_again_and_seen_to_go_on(ledger, log, ratchet):
    halt(ledger, log)
    status, out, _ = ratchet("status", "line")
    assert status == 0 and "HALTED: line is halted at transaction 1" in out and "no such column" in out
    (line,) = [line for line in json.loads(ratchet("status", "--json")[1]) if line["pipeline"] == "line"]
    assert line["unfinished"][0]["failures"] == 3
    status, out, _ = ratchet("retry", "line")
    assert (status, out) == (
        0,
        "line: transaction 1 is OPEN and may be tried again; the next run of any kind goes on with it\n",
    )
    begun = start(ledger, SPEC, log, "d")
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    assert ratchet("status", "line")[1].startswith("line: the head is 1 of 1, the last commit was 20")
    assert appended(ledger) == planned(begun)


def test_void_needs_a_reason_says_what_it_would_do_and_is_kept_in_the_history(ledger, log, ratchet):
    halt(ledger, log)
    assert ratchet("void", "line", "1")[0] == 2
    status, _, err = ratchet("void", "line", "1", "--reason", " ")
    assert status == 1 and "the reason is empty" in err
    status, out, _ = ratchet("void", "line", "1", "--reason", "bad file", "--dry-run")
    assert status == 0 and "nothing was changed" in out and state(ledger, 1) == State.OPEN
    status, out, _ = ratchet("void", "line", "1", "--reason", "bad file")
    given_up = "gives up 20 records at most, and commits nothing of t-0[0,10), t-1[0,10)"
    assert status == 0 and f"transaction 1 is VOIDED, {given_up}" in out
    assert state(ledger, 1) == State.VOIDED
    status, out, _ = ratchet("history", "line", "1")
    assert status == 0 and "transaction 1, epoch 1: VOIDED by " in out and "bad file" in out
    events = json.loads(ratchet("history", "line", "--json")[1])
    assert [event["move"] for event in events][-1] == "VOIDED"


@pytest.mark.parametrize("at_once", [pytest.param(1, marks=pytest.mark.all), 2])
def test_a_history_is_whole_however_much_of_it_is_in_memory_at_once(ledger, log, ratchet, monkeypatch, at_once):
    """Also where its last page is full."""
    monkeypatch.setattr("ratchet.ledger.history._AT_A_TIME", at_once)
    assert json.loads(ratchet("history", "line", "--json")[1]) == []
    for run in "abcd":
        start(ledger, SPEC, log, run)
    for txid, wanted in ((), [1, 2, 3, 4]), (("2",), [2]):
        events = json.loads(ratchet("history", "line", *txid, "--json")[1])
        assert [event["txid"] for event in events] == wanted
        assert len({event["hash"] for event in events}) == len(wanted)
        assert len(ratchet("history", "line", *txid)[1].splitlines()) == len(wanted)


def test_the_history_says_a_vote_in_words(ledger, log, ratchet):
    prepare(ledger, SPEC, start(ledger, SPEC, log, "a"))
    votes = [line for line in ratchet("history", "line", "1")[1].splitlines() if ": vote by " in line]
    assert votes and "try 1, slice 0, records 10, rows 10 in rows, " in votes[0], votes
    assert not any("checksum" in line or "{" in line for line in votes)


def test_what_is_final_is_refused_with_the_way_on(ledger, log, ratchet):
    start(ledger, SPEC, log, "a")
    assert ratchet("void", "line", "1", "--reason", "x")[0] == 0
    err = ratchet("abort", "line", "1", "--reason", "x")[2]
    assert (
        "is VOIDED, which is final; there is nothing to try again or to abort; `ratchet replay line --from 1 --voi"
        in err
    )


def test_the_status_of_a_pipeline_whose_tables_were_never_made_says_so(ledger_url, ratchet):
    migrate(ledger_url, [])
    (answered,) = [each for each in json.loads(ratchet("status", "--json")[1]) if each["pipeline"] == "line"]
    assert (answered["has_tables"], answered["head"]) == (False, 0)
    assert "  its tables are missing: `ratchet migrate line` makes them\n" in ratchet("status", "line")[1]
    assert ratchet("migrate", "line")[0] == 0
    assert ratchet("status", "line")[1] == "line: the head is 0 of 0, the last commit was never\n"


def test_a_move_that_is_not_possible_is_one_line_and_exit_status_1(ledger, log, ratchet):
    status, out, err = ratchet("abort", "line", "7", "--reason", "x")
    assert (status, out) == (1, "") and err == "error RAT-403: the ledger has nothing of pipeline line yet\n"
    start(ledger, SPEC, log, "a")
    status, out, err = ratchet("abort", "line", "7", "--reason", "x")
    assert (status, out, err) == (1, "", "error RAT-401: line: there is no transaction 7; the last transaction is 1\n")
    status, _, err = ratchet("void", "orders", "1", "--reason", "x")
    assert status == 1 and "there is no pipeline 'orders'; known are line" in err
    status, _, err = ratchet("retry", "line")
    assert status == 1 and "line is not halted" in err
    assert ratchet("abort", "line", "0", "--reason", "x")[0] == 2
    assert ratchet("abort", "line", "one", "--reason", "x")[0] == 2


def test_abort_begins_nothing_and_the_next_run_does(ledger, log, ratchet):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    status, out, _ = ratchet("abort", "line", "1", "--reason", "wrong day", "--json")
    answer = json.loads(out)
    assert status == 0 and "is ABORTED; the next run" in answer.pop("said")[0]
    change = {"txid": 1, "revision": 0, "slice": None, "from_state": "PREPARED", "to_state": "ABORTED"}
    assert answer == {
        "move": "abort",
        "pipeline": "line",
        "changes": [{**change, "ranges": [], "reason": "wrong day"}],
        "head": 0,
        "committed": [],
        "failed": None,
        "failed_why": None,
        "accepted": None,
        "opened": None,
        "pause": None,
        "lifted": None,
        "left": [],
        "dry_run": False,
    }
    assert state(ledger, 1) == State.ABORTED


def test_a_line_is_paused_and_goes_on_and_every_command_that_looks_says_so(ledger, log, ratchet):
    log.stable = {0: 99, 1: 99}
    assert "the ledger has nothing of pipeline line yet" in ratchet("pause-at", "line", "--reason", "x")[2]
    committed(ledger, log, "a")
    start(ledger, SPEC, log, "b")
    assert ratchet("pause-at", "line")[0] == 2
    tried = json.loads(ratchet("pause-at", "line", "1", "--reason", "audit", "--dry-run", "--json")[1])
    assert (tried["pause"]["txid"], tried["lifted"], tried["dry_run"]) == (1, None, True)
    status, out, _ = ratchet("pause-at", "line", "--reason", "audit")
    paused, head = out.splitlines()
    assert status == 0 and head == "the head is 1"
    assert re.fullmatch(
        r"line is paused behind transaction 2 by \S+ by command since 20.+ UTC: audit; "
        "`ratchet resume line --reason …` lets it go on",
        paused,
    )
    assert f"  PAUSED: {paused}" in ratchet("status", "line")[1].splitlines()
    (line,) = json.loads(ratchet("status", "line", "--json")[1])
    assert (line["pause"]["txid"], line["pause"]["reason"], line["halt"]) == (2, "audit", None)
    assert paused in ratchet("show", "line", "2")[1] and "pause-at" in ratchet("history", "line", "2")[1]
    assert json.loads(ratchet("show", "line", "2", "--json")[1])["pause"] == line["pause"]
    answer = json.loads(ratchet("resume", "line", "--reason", "done", "--json")[1])
    assert (answer["pause"], answer["lifted"]["txid"], answer["said"][0]) == (None, 2, "line goes on")
    assert "line is not paused; nothing was changed" in ratchet("resume", "line", "--reason", "done")[2]


def test_verify_ends_with_3_and_names_the_fault(ledger, log, ratchet):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    with ledger.begin() as conn:
        conn.execute(text('delete from ratchet_delta."public.rows" where _offset = 3'))
    status, out, _ = ratchet("verify", "line")
    assert status == 3 and "FAULT rows: rows and checksums" in out
    assert "rows: transaction 1 has 18 rows, its votes say 20" in out
    assert any(check["faults"] for check in json.loads(ratchet("verify", "line", "--json")[1]))


def test_a_loss_is_looked_for_in_the_topic_itself_which_the_environment_names(ledger, log, ratchet, kafka_properties):
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    start(ledger, SPEC, log, "a")
    status, _, err = ratchet("accept-loss", "line", "--reason", "x", RATCHET_KAFKA="")
    assert status == 1 and "RATCHET_KAFKA names no Kafka" in err
    admin = KafkaAdminClient(bootstrap_servers=kafka_properties["bootstrap.servers"])
    # Another module may have made it in this Kafka.
    admin.create_topics([NewTopic("t", 2, 1)], raise_errors=False)
    admin.close()
    asked = ("accept-loss", "line", "--reason", "x", "--dry-run", "--json")
    status, out, _ = ratchet(*asked, RATCHET_KAFKA=json.dumps(kafka_properties))
    answer = json.loads(out)
    assert status == 0 and answer["opened"]["cause"] == "made_again" and answer["dry_run"]
    assert answer["opened"]["starts"] == [
        {"topic": "t", "partition": 0, "offset": 0, "planned_until": 10},
        {"topic": "t", "partition": 1, "offset": 0, "planned_until": 10},
    ]


def test_the_time_since_which_keys_are_elsewhere_has_a_zone(ledger, log, ratchet, kafka_properties):
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    start(ledger, SPEC, log, "a")
    for said in ("yesterday", "2024-05-01T10:00:00"):
        status, _, err = ratchet("repartitioned", "line", "--reason", "x", "--at", said)
        assert status == 1 and f"--at {said} is no moment with a time zone" in err
    admin = KafkaAdminClient(bootstrap_servers=kafka_properties["bootstrap.servers"])
    admin.create_topics([NewTopic("t", 2, 1)], raise_errors=False)
    admin.close()
    asked = ("repartitioned", "line", "--reason", "x", "--at", "2024-05-01T10:00:00+02:00", "--dry-run")
    status, _, err = ratchet(*asked, RATCHET_KAFKA=json.dumps(kafka_properties))
    assert status == 1 and "made again; nothing was planned; `ratchet accept-loss line --reason …`" in err


MISFITS = {
    "one": "PIPELINE = SPEC",
    "two": "PIPELINE = SPEC.model_copy(update={'name': 'two', 'sinks': [Append('twos', columns='a bigint')]})",
    "three": "PIPELINE = no_such_name",
}


def test_migrate_does_what_it_can_and_one_pipeline_alone_where_it_is_asked(ledger, log, ratchet, tmp_path):
    committed(ledger, log, "a")
    (tmp_path / "misfits").mkdir()
    for name, line in {**MISFITS, "__init__": ""}.items():
        imports = "from ratchet import Append\nfrom tests.ledger.staging import SPEC\n"
        (tmp_path / "misfits" / f"{name}.py").write_text(imports + line)
    with ledger.begin() as conn:
        conn.execute(text("alter table totals alter column n type numeric"))
    where = {"RATCHET_PIPELINES": "misfits", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}

    status, out, err = ratchet("migrate", "two", **where)
    assert (status, err) == (0, "") and "two: twos: created ratchet_delta.public.twos, created view twos" in out
    status, out, err = ratchet("migrate", "two", "line", "two", **where)
    assert (status, out.splitlines()[1:]) == (1, ["two: twos: fits"])
    assert "line: sink 'totals': public.totals.n is NUMERIC" in err
    status, out, err = ratchet("migrate", "--json", **where)
    answer = json.loads(out)
    assert status == 1 and "misfits.three: cannot be imported: NameError" in err and "line: sink 'totals'" in err
    assert [refused["pipeline"] for refused in answer["refused"]] == ["line"]
    assert "two: twos: fits" in answer["said"]
    status, out, err = ratchet("migrate", "two", "three", **where)
    assert (status, out) == (1, "") and "there is no pipeline 'three'; known are line, two" in err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "no ledger is named; set RATCHET_LEDGER_URL"),
        ("postgresql://nobody:canary@127.0.0.1:1/none", "does not answer"),
        ("nonsense", "the ledger's URL cannot be read"),
    ],
)
def test_a_ledger_that_cannot_be_reached_is_one_line_without_its_password(ratchet, url, said):
    for command in (["status"], ["migrate"], ["retry", "line"]):
        status, out, err = ratchet(*command, RATCHET_LEDGER_URL=url)
        assert status == 1 and said in err and err.count("\n") == 1
        assert "canary" not in out + err and "Traceback" not in err


def test_a_range_is_replayed_taken_back_and_refused_in_words(ledger, log, ratchet):
    for run in "abc":
        committed(ledger, log, run)
    assert ratchet("replay", "line", "--from", "1", "--to", "9", "--reason", "x")[2].startswith(
        "error RAT-406: line: transaction 9 is not committed yet: the head is 3"
    )
    assert (
        "--to 1 is before --from 2; --to is the last one, so give it 2 or more"
        in ratchet("replay", "line", "--from", "2", "--to", "1", "--reason", "x")[2]
    )
    status, out, _ = ratchet("replay", "line", "--from", "1", "--to", "2", "--reason", "corrected", "--json")
    said = json.loads(out)
    assert (status, said["txids"], said["waiting"], said["left_out"]) == (0, [1, 2], 2, [])
    assert "2 replays are asked for and wait for a run" in ratchet("status", "line")[1]
    status, out, _ = ratchet("replay", "line", "--from", "1", "--cancel", "--reason", "a mistake")
    assert (status, out) == (0, "line: transaction 1: no revision is asked for any more; 1 wait\n")
    assert start(ledger, SPEC, log, "d").how == "allocated"
    told = ratchet("history", "line", "1")[1]
    assert ": replay by " in told and "not any more: a mistake" in told


def test_dead_letters_are_released_taken_back_and_refused_in_words(whole, ratchet):
    assert ratchet("release", "line")[0] == 2
    assert (
        "--to 1 is before --from 2; --to is the last one, so give it 2 or more"
        in ratchet("release", "line", "--from", "2", "--to", "1", "--reason", "x")[2]
    )
    assert ratchet("release", "line", "--error", "maybe", "--reason", "x")[2].startswith(
        "error RAT-406: line: no transaction from 1 to 3 has dead letters whose errors contain 'maybe'; there"
    )
    status, out, _ = ratchet("release", "line", "--reason", "corrected", "--json")
    said = json.loads(out)
    assert (status, said["letters"], said["waiting"], said["left_out"]) == (0, {"1": 2, "3": 2}, 2, [])
    status, out, _ = ratchet("release", "line", "--from", "1", "--reason", "corrected")
    assert out.startswith("line: transactions 1, 3: a revision or a release was asked for before, and waits\n")
    assert "a release of dead letters is asked for by " in ratchet("show", "line", "3")[1]
    status, out, _ = ratchet("replay", "line", "--from", "1", "--cancel", "--reason", "a mistake")
    assert (status, out) == (0, "line: transaction 1: no revision is asked for any more; 1 wait\n")
    assert ": release by " in ratchet("history", "line", "1")[1]


def test_moves_print_documents_of_one_shape(ledger, log, ratchet):
    halt(ledger, log)
    status, out, _ = ratchet("retry", "line", "--json")
    assert status == 0 and answer("retry", out)["changes"][0]["to_state"] == "OPEN"
    status, out, _ = ratchet("void", "line", "1", "--reason", "bad file", "--json")
    assert status == 0 and answer("void", out)["head"] == 1


def completed(*words: str, **env: str) -> set[str]:
    """What a shell is offered for the last of these words."""
    script = Path(sys.executable).parent / "ratchet"
    asked = {"_RATCHET_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run([script], env={**os.environ, **asked, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_shell_completes_pipelines_and_codes(tmp_path):
    assert {"RAT-301", "RAT-306"} <= completed("ratchet", "explain", "RAT-3")
    # A shell has no use for what is wrong with a spec.
    (tmp_path / "misfits").mkdir()
    for name, line in {**MISFITS, "__init__": ""}.items():
        imports = "from ratchet import Append\nfrom tests.ledger.staging import SPEC\n"
        (tmp_path / "misfits" / f"{name}.py").write_text(imports + line)
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    assert completed("ratchet", "status", "", RATCHET_PIPELINES="misfits", PYTHONPATH=path) == {"line", "two"}
    assert completed("ratchet", "void", "", RATCHET_PIPELINES="no.such.package") == set()
