"""Clears: of a committed run, of some of its tasks, and of a run that works."""

from __future__ import annotations

import pytest

from tests.until import until

from .line import Line
from .shown import Record

pytestmark = pytest.mark.timeout(300)


def times(records: list[Record], factor: int) -> list[Record]:
    return [record._replace(v=record.v * factor) for record in records]


@pytest.mark.invariant("I7")
def test_clearing_a_committed_run_puts_a_new_result_in_place_of_the_old_and_holds_nobody_up(warm: Line):
    warm.publish(20)
    run = warm.trigger()
    assert warm.ended(run) == "success"
    txid = warm.transaction(run).txid
    records = warm.records(*warm.range(txid))
    assert len(records) == 20 and warm.rows(txid) == records
    # The old result is there until the new one is, and runs go on meanwhile.
    warm.hold()
    warm.clear(run)
    warm.held()
    warm.publish(10)
    other = warm.trigger()
    assert warm.ended(other) == "success" and warm.transaction(other).state == "COMMITTED"
    assert warm.rows(txid) == records and warm.states_of(txid) == ["COMMITTED", "OPEN"]
    warm.multiply(10)
    warm.release()
    assert warm.ended(run) == "success"
    assert warm.rows(txid) == times(records, 10)
    said = warm.last_log(run, "begin")
    assert f"revision 1 of transaction {txid}: the result committed at" in said and "is revised with code" in said
    assert f"revision 1 of transaction {txid}: committed, in place of the older result" in warm.last_log(run, "commit")
    # And once more: the second revision replaces the first.
    warm.multiply(3)
    warm.clear(run)
    assert warm.ended(run) == "success"
    assert warm.rows(txid) == times(records, 3) and warm.states_of(txid) == ["COMMITTED"] * 3
    warm.is_whole()


@pytest.mark.all
def test_of_several_cleared_runs_one_is_revised_and_the_others_follow_by_themselves(warm: Line):
    runs: list[str] = []
    for _ in range(3):
        warm.publish(10)
        runs.append(warm.trigger())
        assert warm.ended(runs[-1]) == "success"
    txids = [warm.transaction(run).txid for run in runs]
    records = [warm.rows(txid) for txid in txids]
    warm.hold()
    warm.clear(runs[0])
    warm.held()
    for run in runs[1:]:
        warm.clear(run)
        assert warm.ended(run) == "success" and warm.states(run)["begin"] == "skipped"
        assert "one at a time is worked on, live transactions go first" in warm.last_log(run, "begin")
    # Beside the revision that is held up, what comes is taken as ever.
    warm.publish(10)
    live = warm.trigger()
    assert warm.ended(live) == "success" and warm.transaction(live).txid == txids[-1] + 1
    assert [warm.rows(txid) for txid in txids] == records
    warm.multiply(10)
    warm.release()
    until("all are revised", lambda: all(warm.states_of(txid) == ["COMMITTED"] * 2 for txid in txids), 120)
    assert [warm.rows(txid) for txid in txids] == [times(of, 10) for of in records]
    until("its runs have ended", lambda: not warm.active(), 60)
    warm.is_whole()


@pytest.mark.all
@pytest.mark.invariant("I7")
@pytest.mark.parametrize(
    ("task", "downstream"),
    [
        pytest.param("commit", False, id="commit"),
        pytest.param(["process", 1], True, id="a slice and what follows", marks=pytest.mark.all),
        pytest.param(["process", 1], False, id="a slice", marks=pytest.mark.all),
    ],
)
def test_clearing_some_tasks_of_a_committed_run_leaves_the_old_result(warm: Line, task: str | list, downstream: bool):
    warm.publish(60)
    run = warm.trigger()
    assert warm.ended(run) == "success"
    txid = warm.transaction(run).txid
    before = warm.rows(txid)
    warm.multiply(10)
    warm.clear_task(run, task, downstream)
    assert warm.ended(run) == "failed"
    said = warm.last_log(run, "commit" if task == "commit" or downstream else "settle")
    assert "only some tasks of a committed run were cleared; clear the whole run" in said
    assert warm.rows(txid) == before and warm.states_of(txid) == ["COMMITTED", "ABORTED"]
    # Nobody goes on with it: the next run takes what is new.
    warm.publish(10)
    other = warm.trigger()
    assert warm.ended(other) == "success"
    assert warm.transaction(other).txid == warm.head() == txid + 1
    assert warm.rows(txid) == before
    warm.clear(run)
    assert warm.ended(run) == "success" and warm.rows(txid) == times(before, 10)
    warm.is_whole()


def test_clearing_a_run_that_processes_begins_again_under_a_new_claim(warm: Line):
    warm.publish(100)
    warm.hold()
    run = warm.trigger()
    warm.held()
    before = warm.transaction(run)
    warm.clear(run)
    assert warm.ended(run) == "success"
    tx = warm.transaction(run)
    assert (tx.txid, tx.claim, tx.epoch, tx.state) == (before.txid, before.claim + 1, before.epoch, "COMMITTED")
    warm.is_whole()


@pytest.mark.all
def test_clearing_a_run_that_waits_for_its_turn_waits_again_and_processes_nothing(warm: Line):
    warm.publish(40)
    first = warm.trigger_held()
    warm.publish(40)
    second = warm.trigger()
    warm.task(second, "commit", "deferred")
    before = warm.transaction(second)
    warm.clear(second)
    warm.task(second, "begin", "success")
    warm.task(second, "commit", "deferred")
    after = warm.transaction(second)
    assert (after.txid, after.claim, after.state) == (before.txid, before.claim + 1, "PREPARED")
    assert "nothing to do, the transaction is PREPARED" in warm.last_log(second, "process")
    assert warm.tries(after.txid) == {0: 1}
    warm.release()
    assert (warm.ended(first), warm.ended(second)) == ("success", "success")
    warm.is_whole()
