"""What a person does to a run by hand: marks it, deletes it. Nothing is lost, nothing doubled, all is finished."""

from __future__ import annotations

import pytest

from tests.until import until

from .line import Line

pytestmark = pytest.mark.timeout(300)


def test_a_run_marked_success_while_it_processes_is_red_and_finished_by_the_next(warm: Line):
    warm.publish(100)
    warm.hold()
    first = warm.trigger()
    warm.held()
    warm.mark(first, "success")
    assert warm.ended(first) == "failed"
    assert "the run ended without its commit" in warm.last_log(first, "settle")
    second = warm.trigger()
    assert warm.ended(second) == "success"
    assert warm.transaction(second).txid == warm.transaction(first).txid == warm.head()
    warm.is_whole()


@pytest.mark.all
@pytest.mark.invariant("I10")
def test_a_run_marked_success_while_it_waits_is_red_and_committed_by_the_one_before_it(warm: Line):
    warm.publish(100)
    first = warm.trigger_held()
    warm.publish(100)
    second = warm.trigger()
    warm.task(second, "commit", "deferred")
    warm.mark(second, "success")
    assert warm.ended(second) == "failed"
    assert "is left PREPARED" in warm.last_log(second, "settle")
    warm.release()
    assert warm.ended(first) == "success"
    assert warm.transaction(second).state == "COMMITTED" and warm.transaction(second).txid == warm.head()
    warm.is_whole()


def test_marking_a_committed_run_changes_nothing_but_its_colour(warm: Line):
    warm.publish(30)
    run = warm.trigger()
    assert warm.ended(run) == "success"
    txid, rows = warm.transaction(run).txid, warm.rows()
    for state in ("failed", "success"):
        warm.mark(run, state)
        assert warm.ended(run) == state
        other = warm.trigger()
        assert warm.ended(other) == "success" and warm.transaction(other) is None
    assert warm.rows() == rows and warm.states_of(txid) == ["COMMITTED"]
    warm.is_whole()


@pytest.mark.invariant("I10")
def test_a_run_that_is_deleted_is_finished_by_the_next(warm: Line):
    warm.publish(100)
    warm.hold()
    first = warm.trigger()
    warm.held()
    assert not warm.delete(first), "Airflow deletes no run that is running"
    warm.mark(first, "failed")
    until("the run is deleted", lambda: warm.delete(first))
    second = warm.trigger()
    assert warm.ended(second) == "success"
    assert warm.transaction(second).txid == warm.transaction(first).txid == warm.head()
    assert f"adopted from run {first}" in warm.log(second, "begin")
    warm.is_whole()


@pytest.mark.all
def test_a_run_that_is_deleted_before_it_begins_again_is_finished_by_the_next(warm: Line):
    warm.publish(50)
    warm.fail(True)
    first = warm.trigger()
    assert warm.ended(first) == "failed"
    warm.fail(False)
    warm.pause(True)
    warm.clear(first)
    assert warm.active() == [first] and warm.delete(first)
    warm.pause(False)
    second = warm.trigger()
    assert warm.ended(second) == "success"
    assert warm.transaction(second).txid == warm.transaction(first).txid == warm.head()
    warm.is_whole()


@pytest.mark.all
def test_a_run_that_is_deleted_and_made_again_under_its_id_says_that_it_does_nothing(warm: Line):
    warm.publish(30)
    run = warm.trigger()
    assert warm.ended(run) == "success"
    txid = warm.transaction(run).txid
    until("the run is deleted", lambda: warm.delete(run))
    warm.publish(30)
    warm.make(run)
    assert warm.ended(run) == "success"
    assert {task["state"] for task in warm.tasks(run)} == {"skipped"}
    assert f"transaction {txid} is committed, by this run or one of its id that was deleted" in warm.log(run, "begin")
    assert warm.head() == txid and warm.ended(warm.trigger()) == "success" and warm.head() == txid + 1
    warm.is_whole()
