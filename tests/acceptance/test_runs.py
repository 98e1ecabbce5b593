"""DAG runs as transactions, on the four Airflow processes, Kafka, PostgreSQL and Spark."""

from __future__ import annotations

import os
import signal
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from tests.until import until

from .line import Line

pytestmark = pytest.mark.timeout(240)


def test_a_triggered_run_commits_and_its_log_says_what_was_decided(warm: Line):
    warm.publish(80)
    run = warm.trigger(reason="a test")
    assert warm.ended(run) == "success"
    tx = warm.transaction(run)
    assert tx.state == "COMMITTED" and tx.records == 80 and warm.head() == tx.txid
    states = warm.states(run)
    assert states == {
        "begin": "success",
        "process 0": "success",
        "process 1": "success",
        "commit": "success",
        "settle": "success",
    }
    said = warm.log(run, "begin")
    assert f"transaction {tx.txid}: allocated; 2 slices, 80 offsets" in said and "because: a test" in said
    assert f"transaction {tx.txid}: committed" in warm.log(run, "commit")
    names = {t["map_index"]: t["rendered_map_index"] for t in warm.tasks(run) if t["task_id"] == "process"}
    assert names == {slice_: f"{tx.txid}: {name}" for slice_, name in warm.slice_names(tx.txid).items()}
    warm.is_whole()


def test_a_run_that_finds_nothing_skips_and_says_why(warm: Line):
    run = warm.trigger()
    assert warm.ended(run) == "success"
    assert set(warm.states(run).values()) == {"skipped"}
    assert "no records wait" in warm.log(run, "begin") or "has nothing of this pipeline" in warm.log(run, "begin")


@pytest.mark.invariant("I3")
def test_a_backlog_drains_by_itself_several_at_once_in_order(warm: Line):
    before = warm.head()
    warm.publish(600)
    warm.trigger()
    until("six transactions are committed", lambda: warm.head() == before + 6, 180)
    warm.is_whole()


@pytest.mark.invariant("I3")
def test_one_that_is_prepared_before_its_predecessor_waits_deferred(warm: Line):
    warm.publish(100)
    first = warm.trigger_held()
    warm.publish(100)
    second = warm.trigger()
    warm.task(second, "commit", "deferred")
    earlier, later = warm.transaction(first), warm.transaction(second)
    assert (earlier.state, later.state) == ("OPEN", "PREPARED") and later.txid == earlier.txid + 1
    assert warm.head() == earlier.txid - 1
    assert f"waits for {earlier.txid}, which run {first} is processing" in warm.log(second, "commit")
    warm.release()
    assert (warm.ended(first), warm.ended(second)) == ("success", "success")
    warm.is_whole()


@pytest.mark.invariant("I9")
def test_a_killed_task_is_tried_again_by_its_own_run(warm: Line):
    warm.publish(40)
    warm.hold()
    run = warm.trigger()
    os.kill(warm.held(), signal.SIGKILL)
    assert warm.ended(run) == "success"
    assert warm.tries(warm.transaction(run).txid) == {0: 2}
    warm.is_whole()


@pytest.mark.invariant("I10")
def test_a_run_that_is_failed_in_process_is_finished_by_the_next(warm: Line):
    warm.publish(100)
    warm.hold()
    first = warm.trigger()
    warm.held()
    warm.mark_failed(first)
    until("settle ended the claim", lambda: warm.transaction(first).claim_ended)
    second = warm.trigger()
    assert warm.ended(second) == "success"
    tx = warm.transaction(second)
    assert (tx.txid, tx.state, tx.run_id) == (warm.transaction(first).txid, "COMMITTED", second)
    assert f"adopted from run {first}" in warm.log(second, "begin")
    assert warm.ended(first) == "failed"
    warm.is_whole()


@pytest.mark.invariant("I10")
def test_the_work_of_a_run_that_airflow_does_not_have_is_adopted_when_its_lease_runs_out(warm: Line):
    warm.publish(100)
    txid = warm.begin_as("deleted")
    until("the lease has run out", lambda: warm.transaction("deleted").lease_ran_out, 30)
    run = warm.trigger()
    assert warm.ended(run) == "success"
    assert warm.transaction(run).txid == txid
    assert "adopted from run deleted" in warm.log(run, "begin")
    warm.is_whole()


@pytest.mark.all
def test_a_task_that_airflow_has_lost_in_its_queue_is_queued_again(whole, warm: Line):
    stack, _ = whole
    warm.publish(40)
    run = warm.trigger_held()
    lost = (
        "update task_instance set state = 'queued', queued_dttm = now() - interval '1 hour', queued_by_job_id = "
        "(select max(id) from job where job_type = 'SchedulerJob' and state = 'running') "
        "where dag_id = %s and run_id = %s and task_id = 'begin'"
    )
    with psycopg.connect(stack.database_url("airflow"), autocommit=True) as conn:
        assert conn.execute(lost, [warm.name, run]).rowcount == 1
    warm.task(run, "begin", "success", 60)
    warm.release()
    assert warm.ended(run) == "success"
    warm.is_whole()


@pytest.mark.all
@pytest.mark.invariant("I10")
def test_a_run_that_is_lost_while_it_waits_is_finished_by_the_next_in_order(warm: Line):
    warm.publish(100)
    first = warm.trigger_held()
    warm.publish(100)
    second = warm.trigger()
    warm.task(second, "commit", "deferred")
    warm.mark_failed(second)
    until("settle ended the claim", lambda: warm.transaction(second).claim_ended)
    third = warm.trigger()
    warm.task(third, "commit", "deferred")
    assert warm.transaction(third).txid == warm.transaction(second).txid
    assert warm.ended(second) == "failed"
    assert "nothing to do, the transaction is PREPARED" in warm.log(third, "process", 0)
    warm.release()
    assert (warm.ended(first), warm.ended(third)) == ("success", "success")
    warm.is_whole()


def test_clearing_a_failed_run_resumes_its_transaction(warm: Line):
    warm.publish(60)
    warm.fail(True)
    run = warm.trigger()
    assert warm.ended(run) == "failed"
    states = warm.states(run)
    assert states["settle"] == "failed" and states["commit"] == "upstream_failed"
    aborted = warm.transaction(run)
    assert f"transaction {aborted.txid} is left OPEN; the next run of any kind finishes it" in warm.log(run, "settle")
    warm.fail(False)
    warm.clear(run)
    assert until("the cleared run succeeds", lambda: warm.ended(run) == "success")
    tx = warm.transaction(run)
    assert tx.txid == aborted.txid and tx.state == "COMMITTED" and tx.claim == aborted.claim + 1
    warm.is_whole()


def test_a_missing_connection_fails_before_anything_starts(lost: Line):
    run = lost.trigger()
    assert lost.ended(run) == "failed"
    assert "there is no Airflow connection 'nowhere'" in lost.log(run, "begin")
    assert "airflow connections add nowhere" in lost.log(run, "begin")
    assert lost.transaction(run) is None and lost.head() == 0


@pytest.mark.all
@pytest.mark.invariant("I10")
def test_a_submitted_driver_ends_with_its_run_the_next_one_finishes_and_shows_no_secret(cold: Line, whole):
    cold.publish(100)
    cold.hold()
    first = cold.trigger()
    driver = psutil.Process(cold.held())
    cold.mark_failed(first)
    until("the driver has ended", lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE, 60)
    until("settle ended the claim", lambda: cold.transaction(first).claim_ended)
    second = cold.trigger()
    assert cold.ended(second, 150) == "success"
    assert cold.transaction(second).txid == cold.transaction(first).txid
    cold.is_whole()
    password, log = urlsplit(whole[0].ledger_url).password, cold.log(second, "process", 0)
    assert "process_slice.py" in log and password not in log and password not in cold.rendered(second)


@pytest.mark.all
def test_a_killed_driver_is_tried_again_and_one_whose_transform_is_wrong_is_not(cold: Line):
    cold.publish(60)
    cold.hold()
    run = cold.trigger()
    os.kill(cold.held(), signal.SIGKILL)
    assert cold.ended(run, 200) == "success"
    assert cold.tries(cold.transaction(run).txid) == {0: 2}
    cold.publish(10)
    cold.fail(True)
    wrong = cold.trigger()
    assert cold.ended(wrong, 150) == "failed"
    cold.fail(False)
    assert cold.tries(cold.transaction(wrong).txid) == {0: 1}
    said = cold.log(wrong, "process", 0)
    assert "the test wants this transform to fail" in said and "failed for good" in said
    # The driver's own words are in the ledger, so the run's end and a halt can name them.
    assert "the test wants this transform to fail" in cold.last_log(wrong, "settle")
    assert cold.ended(cold.trigger(), 150) == "success"
    cold.is_whole()
