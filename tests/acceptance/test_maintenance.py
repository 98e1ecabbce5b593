"""The maintenance DAG: what nobody triggers a run for."""

from __future__ import annotations

import pytest

from tests.until import until

from .line import Line

pytestmark = pytest.mark.timeout(300)


@pytest.mark.invariant("I10")
def test_abandoned_work_is_finished_without_anybody_starting_a_run(warm: Line):
    warm.publish(100)
    txid = warm.begin_as("gone")
    with warm.maintained():
        until("the abandoned transaction is committed", lambda: warm.head() == txid, 150)
    until("no run is active", lambda: not warm.active())
    tx = warm.transaction("gone")
    assert tx.run_id.startswith("maintenance_") and tx.state == "COMMITTED"
    # Whoever found it lost counted the failure, once.
    assert tx.failures == 1 and warm.why(txid, "end")[0] == "run gone was lost"
    warm.is_whole()


@pytest.mark.all
@pytest.mark.invariant("I11")
def test_a_backlog_without_a_run_is_taken_and_the_mirrored_offsets_are_the_ledgers(warm: Line):
    warm.publish(10)
    assert warm.ended(warm.trigger()) == "success"
    before = warm.head()
    with warm.maintained():
        warm.maintain()
        until("no run is active", lambda: not warm.active())
        assert warm.mirrored() == warm.reached()
        # More than one run takes, and its run is lost: the others are started by their tasks.
        warm.publish(250)
        txid = warm.begin_as("gone again")
        until("the lease has run out", lambda: warm.transaction("gone again").lease_ran_out, 30)
        warm.maintain()
        until("three transactions are committed", lambda: warm.head() == before + 3, 150)
        assert txid == before + 1
        until("no run is active", lambda: not warm.active())
    # Two are in work or prepared: what monitoring sees stays at the head.
    head = warm.reached()
    warm.publish(100)
    first = warm.trigger_held()
    warm.publish(100)
    second = warm.trigger()
    warm.task(second, "commit", "deferred")
    with warm.maintained():
        warm.maintain()
        assert warm.mirrored() == warm.reached() == head < warm.reached("OPEN") < warm.reached("PREPARED")
        warm.release()
        assert (warm.ended(first), warm.ended(second)) == ("success", "success")
        warm.maintain()
    assert warm.mirrored() == warm.reached() == head + 200
    warm.is_whole()


@pytest.mark.all
@pytest.mark.invariant("I10")
def test_what_an_aborted_epoch_has_written_is_discarded(strict: Line):
    strict.publish(50, bad=20)
    run = strict.trigger()
    assert strict.ended(run) == "failed"
    tx = strict.transaction(run)
    assert (tx.state, tx.epoch) == ("ABORTED", 1) and strict.written(tx.txid) and strict.leftovers()
    strict.pause(True)
    with strict.maintained():
        strict.maintain()
    assert (strict.written(tx.txid), strict.leftovers()) == (0, [])
    for left in strict.active():
        strict.delete(left)
    strict.pause(False)
    strict.command("void", "strict", str(tx.txid), "--reason", "the test is over")
    strict.is_whole()


@pytest.mark.all
def test_no_runs_pile_up_behind_a_paused_pipeline(warm: Line):
    warm.publish(20)
    assert warm.ended(warm.trigger()) == "success"
    before = warm.head()
    warm.pause(True)
    warm.publish(20)
    warm.begin_as("paused")
    until("the lease has run out", lambda: warm.transaction("paused").lease_ran_out, 30)
    with warm.maintained():
        warm.maintain()
        (queued,) = warm.active()
        for _ in range(2):
            assert "no run is due" in warm.maintain()
            assert warm.active() == [queued]
    warm.pause(False)
    until("the records are taken", lambda: warm.head() == before + 1)
    until("no run is active", lambda: not warm.active())
    warm.is_whole()
