"""As on a server: two schedulers, of which one dies, and jobs that are submitted to a Spark cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from ratchet.dev.stack import SERVERS, Stack
from tests.until import until

from .conftest import line_of, stack_of
from .line import Line

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SPECS = "tests.acceptance.server"
SOON = {
    # How soon Airflow finds out that a scheduler, or a task with it, has ended.
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "45",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
}


@pytest.fixture(scope="module")
def two(scratch: Path) -> Iterator[tuple[Stack, Path]]:
    servers = SERVERS | {"standalone"}
    with stack_of(scratch / "server", servers, pipelines=SPECS, more=SOON, schedulers=2) as made:
        yield made


@pytest.fixture
def warm(two: tuple[Stack, Path]) -> Iterator[Line]:
    yield from line_of(two, "warm", SPECS)


@pytest.fixture
def standalone(two: tuple[Stack, Path]) -> Iterator[Line]:
    yield from line_of(two, "standalone", SPECS)


def schedulers_that_queued(stack: Stack) -> int:
    """How many schedulers have queued tasks of the pipeline."""
    with psycopg.connect(stack.database_url("airflow")) as conn:
        row = conn.execute(
            "select count(distinct queued_by_job_id) from task_instance where dag_id = 'warm'"
        ).fetchone()
    return row[0]


def test_a_backlog_drains_in_order_with_both_at_work(warm: Line, two):
    before = warm.head()
    warm.publish(600)
    warm.trigger()
    until("six transactions are committed", lambda: warm.head() == before + 6, 400)
    assert schedulers_that_queued(two[0]) == 2
    warm.is_whole()


def test_the_death_of_the_one_that_runs_a_task_loses_and_doubles_nothing(warm: Line, two):
    stack, before = two[0], warm.head()
    warm.publish(600)
    warm.hold()
    warm.trigger()
    task = psutil.Process(warm.held())
    schedulers = {pid: name for name, pid in stack.pids().items() if name.startswith("scheduler")}
    pid = next(p.pid for p in task.parents() if p.pid in schedulers)
    os.kill(pid, signal.SIGKILL)
    until("the task ended with its scheduler", lambda: not task.is_running())
    warm.release()
    until("six transactions are committed", lambda: warm.head() == before + 6, 400)
    assert stack.pids()[schedulers[pid]] != pid
    warm.is_whole()


def test_a_job_that_is_submitted_to_a_cluster_runs_on_an_executor_and_commits(standalone: Line, two):
    standalone.publish(150)
    standalone.hold()
    first = standalone.trigger()
    standalone.held()
    workers = [psutil.Process(pid) for name, pid in two[0].pids().items() if name.startswith("spark-worker")]
    until("both workers have an executor", lambda: all(worker.children() for worker in workers))
    standalone.release()
    assert standalone.ended(first, 400) == "success"
    until("the rest is committed", lambda: standalone.head() == 2, 400)
    assert "spark://" in standalone.log(first, "process", 0)
    standalone.is_whole()
