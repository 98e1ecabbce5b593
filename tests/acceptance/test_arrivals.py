"""Records start runs: enough of them at once, fewer after a while; and no run begins that finds nothing to do."""

from __future__ import annotations

import json
import re

import pytest
from deltalake import DeltaTable

from tests.until import until

from .line import Line

pytestmark = pytest.mark.timeout(300)


def begun(line: Line) -> dict[str, str]:
    """{run: the state of its begin} of all runs that records have started."""
    return {run: line.states(run).get("begin", "none") for run in line.runs("asset_triggered__")}


def is_idle(line: Line) -> bool:
    return line.reached() == line.end() and not line.active()


@pytest.mark.all
@pytest.mark.invariant("I2")
def test_records_start_the_runs_that_take_them_and_no_other(arriving: Line):
    before, known = arriving.head(), begun(arriving)
    # More than a run takes, and a rest that is no reason for a run before it has waited.
    arriving.publish(210)
    until("all is taken", lambda: is_idle(arriving), 150)
    assert arriving.head() == before + 3
    found = {run: state for run, state in begun(arriving).items() if run not in known}
    assert len(found) == 3 and set(found.values()) == {"success"}
    for run in found:
        assert arriving.states(run).keys() == {"begin", "process 0", "commit", "settle"}
    # Where the watch began after they had come, the rest counts as waiting for long enough at once.
    waited = sorted(int(n) for run in found for n in re.findall(r"(\d+) records", arriving.asked_by(run)))
    assert waited[0] == 10 and len(waited) == 3 and waited[1] >= 20
    arriving.is_whole()
    # A run is green when the destinations have its rows too.
    here, there = arriving.rows_in("public.arriving_rows"), arriving.rows_in("elsewhere.arriving")
    assert here == there and len(here) >= 210
    sent = [(key.decode(), json.loads(value)) for _, _, key, value in arriving.topic("arriving-out")]
    assert sorted((k, value["v"]) for k, value in sent) == sorted((k, v) for k, v, *_ in here)
    assert all(key == value["k"] for key, value in sent)
    lake = DeltaTable(str(arriving.holds / "lake"))
    rows = lake.to_pyarrow_table().select(["k", "v", "_txid", "_partition", "_offset", "_n"]).to_pylist()
    assert sorted((row["k"], row["v"]) for row in rows) == sorted((k, v) for k, v, *_ in here)
    assert lake.metadata().partition_columns == ["k"] and {row["k"] for row in rows} == {f"key {n}" for n in range(7)}
    said = arriving.command("status", "arriving")
    assert f"delta:{arriving.holds}/lake, of arriving_rows: has all" in said
    assert "kafka:arriving-out, of arriving_rows: has all" in said
    assert "ratchet_ledger:elsewhere.arriving, of arriving_rows: has all" in said


@pytest.mark.all
@pytest.mark.invariant("I10")
def test_a_halted_line_starts_nothing_and_goes_on_when_a_person_has_decided(arriving: Line):
    known = begun(arriving)
    arriving.fail(True)
    arriving.publish(30)
    until("the run has failed", lambda: any(s == "success" for r, s in begun(arriving).items() if r not in known), 60)
    until("no run is active", lambda: not arriving.active(), 60)
    # Two claims more, and it halts.
    for _ in range(2):
        assert arriving.ended(arriving.trigger()) == "failed"
    halted = set(begun(arriving))
    arriving.publish(40)
    with arriving.maintained():
        assert "arriving is halted" in arriving.maintain()
        assert set(begun(arriving)) == halted and not arriving.active()
        arriving.fail(False)
        arriving.command("retry", "arriving")
        until("all is taken", lambda: is_idle(arriving), 150)
    # Whoever came first has adopted what was left, and no begin has found nothing.
    assert {state for run, state in begun(arriving).items() if run not in halted} == {"success"}
    arriving.is_whole()


@pytest.mark.all
def test_a_paused_pipeline_gathers_no_runs_and_takes_all_when_it_is_let_go(arriving: Line):
    before, known = arriving.head(), set(begun(arriving))
    arriving.pause(True)
    arriving.publish(25)
    until("Airflow has let the watcher go", lambda: not arriving.watchers(), 90)
    arriving.publish(25)
    assert set(begun(arriving)) == known and not arriving.active()
    arriving.pause(False)
    until("all is taken", lambda: is_idle(arriving), 90)
    started = {run: state for run, state in begun(arriving).items() if run not in known}
    assert list(started.values()) == ["success"] and arriving.head() == before + 1
    arriving.is_whole()
