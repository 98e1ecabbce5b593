"""A line that goes no further: after failures, past a deadline, by a refusal, by a gate, by a person's pause."""

from __future__ import annotations

from datetime import timedelta

import psutil
import pytest

from tests.until import until

from .line import Line

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def halted(strict: Line) -> tuple[int, str]:
    """(the txid at which the line is halted, the run that waits right behind it, prepared)."""
    strict.publish(100)
    first = strict.trigger_held()
    strict.publish(100)
    behind = strict.trigger()
    strict.task(behind, "commit", "deferred")
    strict.fail(True)
    strict.release()
    assert strict.ended(first) == "failed"
    second = strict.trigger()
    assert strict.ended(second) == "failed"
    txid = strict.transaction(first).txid
    assert strict.transaction(second).txid == txid
    assert f"strict is halted at transaction {txid} since " in strict.last_log(second, "settle")
    assert strict.states(behind)["commit"] == "deferred"
    # Of each task that has failed, and of a run that takes longer than its second.
    until(
        "Airflow has called what the spec names", lambda: strict.called() >= {"failed.process", "failed.settle", "late"}
    )
    return txid, behind


@pytest.mark.all
@pytest.mark.invariant("I10")
def test_every_later_run_of_a_halted_line_says_why_and_after_a_retry_it_goes_on_by_itself(
    strict: Line, halted: tuple[int, str]
):
    txid, behind = halted
    failed_last = strict.claimant(txid)
    for _ in range(2):
        refused = strict.trigger()
        assert strict.ended(refused) == "failed" and strict.tried(refused, "begin") == [1]
        said = strict.log(refused, "begin")
        for part in (
            f"strict is halted at transaction {txid} since ",
            f"after 2 failures: failed: process[0]: transaction {txid}, slice 0",
            "raised ValueError: the test wants this transform to fail (tests/acceptance/transforms.py, line ",
            " (RAT-501; ratchet explain RAT-501); correct the cause",
            f"clear run {failed_last}",
            f"`ratchet retry strict {txid}`",
            f"`ratchet void strict {txid} --reason",
        ):
            assert part in said
        assert strict.transaction(refused) is None
    strict.fail(False)
    with strict.maintained():
        # Nothing goes on by itself before.
        assert f"strict is halted at transaction {txid}" in strict.maintain()
        assert strict.active() == [behind]
        assert f"transaction {txid} is OPEN and may be tried again" in strict.command("retry", "strict")
        assert strict.ended(behind, 150) == "success"
    until("no run is active", lambda: not strict.active())
    assert strict.head() == txid + 1 and strict.states_of(txid) == ["COMMITTED"]
    strict.is_whole()


@pytest.mark.all
def test_after_a_void_what_waited_behind_the_halt_is_committed_and_woken(strict: Line, halted: tuple[int, str]):
    txid, behind = halted
    said = strict.command("void", "strict", str(txid), "--reason", "nobody needs it")
    assert f"the head is {txid + 1}; committed on the way: {txid + 1}" in said
    assert strict.states_of(txid) == ["VOIDED"]
    assert strict.ended(behind) == "success"
    assert "was committed at" in strict.last_log(behind, "commit")
    strict.fail(False)
    strict.publish(10)
    run = strict.trigger()
    assert strict.ended(run) == "success" and strict.transaction(run).txid == txid + 2
    strict.is_whole()


def test_clearing_the_halted_run_goes_on(strict: Line, halted: tuple[int, str]):
    txid, behind = halted
    strict.fail(False)
    strict.clear(strict.claimant(txid))
    assert strict.ended(behind) == "success"
    assert strict.head() == txid + 1
    until("no run is active", lambda: not strict.active())
    strict.is_whole()


@pytest.mark.all
@pytest.mark.invariant("I10")
def test_an_epoch_past_its_deadline_is_aborted_its_job_stopped_and_begun_anew(strict: Line):
    strict.publish(30)
    strict.hold()
    first = strict.trigger()
    job = psutil.Process(strict.held())
    tx = strict.transaction(first)
    assert timedelta(seconds=599) < tx.deadline - tx.opened_at < timedelta(seconds=601)
    strict.pass_deadline(tx.txid)
    assert strict.ended(first) == "failed" and strict.tried(first, "process") == [1]
    until("the job is stopped", lambda: not job.is_running() or job.status() == psutil.STATUS_ZOMBIE)
    tx = strict.transaction(first)
    assert (tx.state, tx.epoch) == ("ABORTED", 1) and tx.reason.startswith("epoch 1 was not prepared by its deadline")
    for task in ("process", "settle"):
        assert tx.reason in strict.last_log(first, task)
    second = strict.trigger()
    assert strict.ended(second) == "success"
    tx = strict.transaction(second)
    assert (tx.state, tx.epoch) == ("COMMITTED", 2) and strict.why(tx.txid, "ABORTED")[0].startswith("epoch 1 was not")
    strict.is_whole()


def test_a_refusal_ends_the_run_at_once_with_the_transforms_own_words(warm: Line):
    warm.publish(30)
    warm.refuse("prices are missing since noon")
    first = warm.trigger()
    assert warm.ended(first) == "failed" and warm.tried(first, "process") == [1]
    tx = warm.transaction(first)
    assert (tx.state, tx.reason) == ("ABORTED", "prices are missing since noon")
    for task in ("process", "settle"):
        assert "prices are missing since noon" in warm.last_log(first, task)
    warm.refuse(None)
    second = warm.trigger()
    assert warm.ended(second) == "success"
    assert (warm.transaction(second).txid, warm.transaction(second).epoch) == (tx.txid, 2)
    warm.is_whole()


@pytest.mark.all
@pytest.mark.invariant("I2")
def test_what_waits_behind_a_pause_is_committed_after_it_by_itself_in_order_and_once(asked: Line):
    asked.publish(100)
    first = asked.trigger_held()
    behind = []
    for _ in range(2):
        asked.publish(100)
        behind.append(asked.trigger())
        asked.task(behind[-1], "commit", "deferred")
    txid = asked.transaction(first).txid
    asked.command("pause-at", "asked", str(txid), "--reason", "the books are audited")
    asked.release()
    # The pause does not hold up the transaction behind which the line stops.
    assert asked.ended(first) == "success" and asked.head() == txid
    # A later run begins nothing, and has ended, with what waits where it was.
    asked.publish(100)
    refused = asked.trigger()
    assert asked.ended(refused) == "success" and asked.transaction(refused) is None
    assert f"asked is paused behind transaction {txid} by " in asked.log(refused, "begin")
    assert f"asked is paused behind transaction {txid} by " in asked.command("status", "asked")
    assert [asked.transaction(run).state for run in behind] == ["PREPARED"] * 2 and asked.head() == txid
    assert [asked.states(run)["commit"] for run in behind] == ["deferred"] * 2
    asked.command("resume", "asked", "--reason", "they are right")
    assert [asked.ended(run) for run in behind] == ["success"] * 2
    committed = [asked.transaction(run) for run in (first, *behind)]
    assert [tx.txid for tx in committed] == [txid, txid + 1, txid + 2]
    times = [tx.committed_at for tx in committed]
    assert times == sorted(times) and {(tx.state, tx.epoch) for tx in committed} == {("COMMITTED", 1)}
    # What was published during the pause is taken after it, by this run or by one that had started by itself.
    assert asked.ended(asked.trigger()) == "success"
    until("no run is active", lambda: not asked.active())
    assert asked.head() == txid + 3
    asked.is_whole()


def test_a_gate_that_says_no_says_its_numbers_and_commits_nothing(strict: Line):
    strict.publish(50, bad=20)
    run = strict.trigger()
    assert strict.ended(run) == "failed" and strict.tried(run, "commit") == [1]
    numbers = "20 of 70 records are dead letters, 0.2857; the limit is 0.1"
    tx = strict.transaction(run)
    assert tx.state == "ABORTED" and numbers in tx.reason and tx.txid == strict.head() + 1
    for task in ("commit", "settle"):
        assert numbers in strict.last_log(run, task)
    assert strict.rows(tx.txid) == [] and strict.positions() + strict.dead_letters() == strict.expected()
    strict.command("void", "strict", str(tx.txid), "--reason", "bad records")
    strict.is_whole()
