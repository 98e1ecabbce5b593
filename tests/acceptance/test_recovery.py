"""I10: each server is killed in the midst of a transaction, and without a person everything is committed.

The test ends one server and touches nothing more. The stack's supervisor starts it again; runs that Airflow tries
again, the leases, begin and settle and the maintenance DAG do the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import httpx
import psutil
import psycopg
import pytest

from ratchet.dev.stack import Stack
from ratchet.ledger.connection import Ledger
from ratchet.operate.verify import verify
from tests.until import until

from .line import Line
from .pipelines.crash import PIPELINE

pytestmark = pytest.mark.timeout(600)

SECONDS = 300
"""Within which all must be committed after a kill; how long it took is in the summary of the test session."""


def kill(stack: Stack, name: str) -> psutil.Process:
    """What `kill -9` does to a server; PostgreSQL's children too, which would else end by themselves."""
    server = psutil.Process(stack.pids()[name])
    family = [server, *(server.children(recursive=True) if name == "postgres" else ())]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return server


def answers(look: Callable[[], object]) -> Callable[[], object]:
    """`look`, which says no as long as a server does not answer."""

    def answer() -> object:
        with suppress(psycopg.Error, httpx.HTTPError, AssertionError):
            return look()

    return answer


NAMES = ("postgres", "kafka", "connect", "scheduler", "triggerer", "api-server", "dag-processor")


@pytest.mark.all
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_server_costs_time_and_nothing_else(whole, crash: Line, recovered, name: str):
    stack, _ = whole
    first = crash.head() + 1
    in_the_midst(crash, deferred=name == "triggerer")
    everything = Counter((0, offset) for offset in range(crash.end()))
    killed, started = kill(stack, name), time.monotonic()
    let_go(crash)
    until(f"{name} is started again", lambda: stack.pids()[name] != killed.pid, 60)
    until("all is committed", answers(lambda: crash.positions() == everything), SECONDS)
    committed = time.monotonic() - started
    until("no run is active", answers(lambda: not crash.active()), 120)
    recovered(name, committed, time.monotonic() - started)
    until("no stage is left", answers(lambda: not crash.leftovers()), 120)
    assert crash.commits() == list(range(1, crash.head() + 1)) and crash.head() >= first + 2
    assert crash.unfinished() == 0
    with Ledger(stack.ledger_url) as ledger:
        assert [fault for check in verify(ledger, PIPELINE) for fault in check.faults] == []


def in_the_midst(line: Line, *, deferred: bool) -> None:
    """Three transactions' records wait; the first is being processed, and where `deferred` the second waits for it."""
    line.publish(300)
    if not deferred:
        line.wait_in_spark(True)
        line.trigger()
        until("a Spark task waits", line.is_waiting_in_spark, 120)
        return
    line.hold()
    line.trigger()
    line.held()
    second = line.trigger()
    line.task(second, "commit", "deferred", 120)


def let_go(line: Line) -> None:
    if any(line.holds.glob(f"{line.name}.wait")):
        line.wait_in_spark(False)
    line.release()
