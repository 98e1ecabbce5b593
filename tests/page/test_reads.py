"""What the page shows, of pipelines in a ledger that may be away, and of those whose values are private."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.protocol.begin import begin
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.ledger.staging import SPEC, always_active, committed, do, fail, prepare, start
from tests.page import pipelines
from tests.page.pipelines.secret import PIPELINE as SECRET

from .conftest import As, made_anew

pytestmark = pytest.mark.all

WHEN = datetime(2013, 1, 1, 5, tzinfo=UTC)


def dead(ledger: Ledger, spec, log) -> None:
    begun = start(ledger, spec, log, f"{spec.name} a")
    rows = spec.sinks[0].name
    letter = {"timestamp": WHEN, "key": b"k", "value": b"\xff" * 20_000, "headers": None, "error": "no"}
    do(ledger, spec, begun, lambda p, o: {DEAD_LETTERS: [letter]} if o == 0 else {rows: [{"a": o}]})
    commit(ledger, spec, begun.claim)


def test_all_pipelines_are_shown_with_what_each_waits_for(as_: As, ledger, log):
    committed(ledger, log, "a")
    waiting = [start(ledger, SPEC, log, run) for run in "bc"]
    prepare(ledger, SPEC, waiting[1])
    said = as_("vera").get("/pipelines").json()
    assert [of["pipeline"] for of in said["pipelines"]] == ["line", "secret"] and said["unknown"] == []
    line, secret = said["pipelines"]
    assert (line["head"], line["last_txid"], line["in_flight"], line["halt"], line["may_move"]) == (
        1,
        3,
        2,
        None,
        False,
    )
    assert line["rate"]["transactions"] == 1 and line["rate"]["records"] == 20
    assert [(t["txid"], t["waits"], t["before"]) for t in line["unfinished"]] == [(2, "votes", None), (3, "turn", 2)]
    assert line["unfinished"][1]["why"].startswith("prepared; waits for 2, which run b is processing")
    moment = datetime.fromisoformat(line["committed_at"])
    assert moment.utcoffset().total_seconds() == 0 and line["committed_at"].endswith("+00:00")
    assert (secret["is_private"], secret["last_txid"], secret["sinks"]) == (True, 0, ["secret_rows"])
    assert as_("ulf").get("/pipelines").json()["pipelines"][0]["may_move"]


def test_a_halt_is_shown_with_the_ways_out(as_: As, ledger, log):
    for run in "abc":
        fail(ledger, log, run)
    line = as_("vera").get("/pipelines").json()["pipelines"][0]
    assert (
        line["halt"] == 1 and "ratchet void line 1" in line["halted_why"] and line["unfinished"][0]["waits"] == "person"
    )
    one = as_("vera").get("/pipelines/line/transactions/1").json()
    assert (one["halted_why"], one["may_move"]) == (line["halted_why"], False)
    assert as_("ulf").get("/pipelines/line/transactions/1").json()["may_move"]


def test_a_timeline_is_paged(as_: As, ledger, log):
    for run in "abc":
        committed(ledger, log, run)
    client = as_("vera")
    page = client.get("/pipelines/line", params={"most": 2}).json()
    assert [bar["txid"] for bar in page["bars"]] == [3, 2] and page["status"]["pipeline"] == "line"
    older = client.get("/pipelines/line", params={"before": page["earlier"], "most": 2}).json()
    assert [bar["txid"] for bar in older["bars"]] == [1] and older["earlier"] is None
    assert client.get("/pipelines/line", params={"most": 0}).status_code == 422


def test_a_transaction_is_shown_and_one_that_is_not_there_is_404(as_: As, ledger, log):
    committed(ledger, log, "a")
    client = as_("vera")
    whole = client.get("/pipelines/line/transactions/1").json()
    assert whole["applied"] == 0 and len(whole["slices"]) == 2 and whole["history"][0]["move"] == "OPEN"
    said = client.get("/pipelines/line/transactions/9")
    assert (said.status_code, said.json()["code"]) == (404, "RAT-401")
    said = client.get("/pipelines/none/transactions/1")
    assert (said.status_code, said.json()["code"]) == (404, "RAT-101")


def test_a_run_is_led_to_its_transactions(as_: As, ledger, log):
    name = "scheduled__2013-01-01T05:00:00+00:00/x"
    begin(ledger, SPEC, Run("line", name), log.offsets, always_active)
    client = as_("vera")
    (of,) = client.get("/pipelines/line/runs", params={"run_id": name}).json()["runs"]
    assert (of["txid"], of["revision"], of["clear_number"], of["outcome"]) == (1, 0, 0, None)
    assert client.get("/pipelines/line/runs", params={"run_id": "another"}).json() == {"runs": []}


def test_where_a_record_is_and_where_a_row_comes_from(as_: As, ledger, log):
    committed(ledger, log, "a")
    client = as_("vera")
    found = client.get("/pipelines/line/where", params={"partition": 1, "offset": 4}).json()
    of = found["places"][0]["sinks"][0]
    assert of["rows"] == [json.loads(row) for row in of["shown"]] == [{"a": 4, "_partition": 1, "_offset": 4, "_n": 0}]
    made = client.get("/pipelines/line/origin", params={"sink": "rows", "key": ["a=4", "_partition=1"]}).json()["made"]
    assert [(m["txid"], m["partition"], m["offset"]) for m in made] == [(1, 1, 4)]
    said = client.get("/pipelines/line/origin", params={"sink": "rows", "key": "a"})
    assert (said.status_code, said.json()["code"]) == (400, "RAT-102")


def test_letters_are_counted_cut_on_the_page_and_whole_in_the_download(as_: As, ledger, log):
    dead(ledger, SPEC, log)
    client = as_("vera")
    assert client.get("/pipelines/line/letters/counts").json()["counted"] == 2
    page = client.get("/pipelines/line/letters", params={"most": 1}).json()
    (letter,) = page["letters"]
    assert (letter["value_size"], letter["value_text"], letter["timestamp"]) == (
        20_000,
        None,
        "2013-01-01T05:00:00+00:00",
    )
    assert len(letter["value_base64"]) < 14_000 and page["next"] == "1.0.0" and not page["withheld"]
    (other,) = client.get("/pipelines/line/letters", params={"after": page["next"], "reason": "no"}).json()["letters"]
    assert other["partition"] == 1
    kept = client.get("/pipelines/line/letters/download")
    assert kept.headers["content-disposition"] == 'attachment; filename="line-dead-letters.jsonl"'
    assert [len(json.loads(line)["value_base64"]) for line in kept.text.splitlines()] == [26_668, 26_668]


def test_values_of_a_private_pipeline_are_for_those_who_may_change_it(as_: As, ledger, log):
    dead(ledger, SECRET, log)
    reads = ("letters", "letters/download", "where?partition=0&offset=1")
    for who, shown in (("vera", False), ("ulf", True)):
        client = as_(who)
        page = client.get("/pipelines/secret/letters").json()
        assert page["withheld"] is not shown and (page["letters"][0]["key_base64"] == "aw==") is shown
        assert page["letters"][0]["reason"] == "no" and page["letters"][0]["value_size"] == 20_000
        kept = json.loads(client.get("/pipelines/secret/letters/download").text.splitlines()[0])
        assert (kept["value_base64"] is not None) is shown
        rows = client.get(f"/pipelines/secret/{reads[2]}").json()["places"][0]["sinks"][0]["rows"]
        assert rows == ([{"a": 1, "_partition": 0, "_offset": 1, "_n": 0}] if shown else [{}])
        origin = client.get("/pipelines/secret/origin", params={"sink": "secret_rows", "key": "a=1"})
        assert origin.status_code == (200 if shown else 403)


def test_a_table_that_is_locked_keeps_nobody_waiting_for_long(as_: As, ledger, log):
    committed(ledger, log, "a")
    with ledger.begin() as conn:
        conn.execute(text("lock table ratchet.transactions"))
        said = as_("vera").get("/pipelines/line")
    assert (said.status_code, said.json()["code"]) == (503, "RAT-205")


def test_a_lag_that_kafka_does_not_tell_is_unknown_with_its_code(as_: As, ledger, log):
    committed(ledger, log, "a")
    said = as_("vera").get("/lag").json()
    assert said["lags"] == [] and [u["code"] for u in said["unknown"]] == ["RAT-301"]
    assert said["unknown"][0]["pipelines"] == ["line", "secret"]


def test_a_ledger_that_is_not_there_is_said_with_its_code_and_found_again(as_: As, postgres, log):
    client = as_("vera")
    with psycopg.connect(postgres.ledger_url, autocommit=True) as conn:
        conn.execute("drop database if exists page with (force)")
    said = client.get("/pipelines").json()
    assert said["pipelines"] == [] and said["unknown"][0]["code"] == "RAT-201"
    one = client.get("/pipelines/line")
    assert (one.status_code, one.json()["code"]) == (503, "RAT-201")
    with made_anew(postgres) as ledger:
        committed(ledger, log, "a")
        assert client.get("/pipelines").json()["pipelines"][0]["head"] == 1


def test_a_spec_that_comes_later_is_shown_without_a_restart(as_: As, ledger):
    client, new = as_("vera"), Path(pipelines.__file__).with_name("later.py")
    assert [of["pipeline"] for of in client.get("/pipelines").json()["pipelines"]] == ["line", "secret"]
    source = Path(pipelines.__file__).with_name("secret.py").read_text().replace("secret", "later")
    try:
        new.write_text(source)
        assert [of["pipeline"] for of in client.get("/pipelines").json()["pipelines"]] == ["later", "line", "secret"]
        new.write_text(source.replace('"private": True', '"private": False, "description": "x"'))
        assert not client.get("/pipelines").json()["pipelines"][0]["is_private"]
        new.write_text("PIPELINE = no_such_name")
        assert [of["pipeline"] for of in client.get("/pipelines").json()["pipelines"]] == ["line", "secret"]
    finally:
        new.unlink()


def test_the_routes_are_described(as_: As):
    found = as_("vera").get("/openapi.json").json()
    assert "/api/pipelines/{dag_id}/moves/void" in found["paths"]
