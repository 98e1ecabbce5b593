"""I1, I10: whatever is done to a process while transactions are in flight, all is committed once, without a person.

That each server may be killed is shown by tests/acceptance/test_recovery.py.
"""

from __future__ import annotations

import random
from subprocess import Popen

import psutil
import pytest

from tests.until import until

from .conftest import Endure
from .fault import NotNow
from .kinds import fault
from .servers import WorkerStopped

pytestmark = pytest.mark.timeout(1200)

KINDS = (
    "PostgreSQL backend killed",
    "Spark worker killed",
    "task killed",
    "supervisor of a task killed",
    "PostgreSQL stopped for 40 s",
    "Kafka stopped for 40 s",
    "Spark Connect stopped for 40 s",
    "scheduler stopped for 40 s",
    "triggerer stopped for 40 s",
    "api-server stopped for 40 s",
    "dag-processor stopped for 40 s",
    "PostgreSQL backend stopped for 40 s",
    "Spark worker stopped for 40 s",
    "task stopped for 40 s",
)


@pytest.mark.all
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_is_killed_or_stands_still_costs_time_and_nothing_else(world, endure: Endure, kind: str):
    endure(fault(world, kind))


def test_what_has_ended_before_it_was_stopped_is_not_struck():
    with Popen(["sleep", "60"]) as supervisor, Popen(["true"]) as task:
        group = [psutil.Process(process.pid) for process in (supervisor, task)]
        stopped = WorkerStopped("", lambda: [group], lambda: None, random.Random(1), 0)
        try:
            until("the task has ended", lambda: group[1].status() == psutil.STATUS_ZOMBIE, 10)
            with pytest.raises(NotNow):
                stopped.strike()
            until("its supervisor goes on", lambda: group[0].status() != psutil.STATUS_STOPPED, 10)
        finally:
            supervisor.kill()
