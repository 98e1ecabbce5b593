"""Triggerers that watch for records: one that is killed, two beside each other, one that is late."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from ratchet.dev.stack import Stack
from ratchet.dev.stack.server import end
from tests.until import until

from .line import Line
from .test_arrivals import begun, is_idle

pytestmark = [pytest.mark.all, pytest.mark.timeout(400)]


WATCHES = """
    select j.id from trigger t join job j on j.id = t.triggerer_id
    join asset_watcher w on w.trigger_id = t.id join asset a on a.id = w.asset_id
    where a.uri like 'x-ratchet://arriving/%%' and j.latest_heartbeat > %s
"""
STARTED = "select id from job where job_type = 'TriggererJob' and start_date > %s and latest_heartbeat > start_date"
Ask = Callable[[str], int | None]


@pytest.fixture
def ask(whole: tuple[Stack, Path]) -> Iterator[Ask]:
    """Asks Airflow's database for the number of a triggerer's job; what is asked for has been seen since now."""
    with psycopg.connect(whole[0].database_url("airflow"), autocommit=True) as conn:
        since = conn.execute("select clock_timestamp()").fetchone()

        def asked(query: str) -> int | None:
            found = conn.execute(query, since).fetchone()  # pyright: ignore[reportArgumentType]
            return found and found[0]

        yield asked


@pytest.fixture
def watching(arriving: Line, ask: Ask) -> int:
    """The triggerer of the stack, which is the only one and has the watch."""
    found = until("the triggerer watches", lambda: ask(WATCHES), 60)
    assert found is not None
    return found


@pytest.fixture
def second(whole: tuple[Stack, Path], watching: int, ask: Ask) -> Iterator[int]:
    """A triggerer beside that of the stack, which nobody starts again."""
    stack, _ = whole
    first = psutil.Process(stack.pids()["triggerer"])
    with (stack.home / "logs" / "triggerer-2.log").open("w") as log:
        made = subprocess.Popen(first.cmdline(), env=first.environ(), cwd=first.cwd(), stdout=log, stderr=log)
    process = psutil.Process(made.pid)
    try:
        found = until("there is a second triggerer", lambda: ask(STARTED), 60)
        assert found is not None and found != watching
        yield found
    finally:
        end([*process.children(recursive=True), process], signal.SIGTERM, 20)


def signal_all(process: psutil.Process, number: signal.Signals) -> None:
    for one in [*process.children(recursive=True), process]:
        one.send_signal(number)


def takes_all_in_one_run(line: Line) -> None:
    """Thirty records, which are as many as one run takes."""
    before, known = line.head(), set(begun(line))
    line.publish(30)
    until("all is taken", lambda: is_idle(line), 120)
    started = {run: state for run, state in begun(line).items() if run not in known}
    assert list(started.values()) == ["success"] and line.head() == before + 1


@pytest.mark.invariant("I10")
def test_a_triggerer_that_is_killed_costs_a_while_and_starts_no_run_twice(arriving: Line, whole):
    stack, _ = whole
    killed = psutil.Process(stack.pids()["triggerer"])
    signal_all(killed, signal.SIGKILL)
    takes_all_in_one_run(arriving)
    assert stack.pids()["triggerer"] != killed.pid
    arriving.is_whole()


@pytest.mark.invariant("I10")
def test_of_two_triggerers_one_watches_and_another_does_when_it_is_killed(arriving: Line, whole, watching, second, ask):
    stack, _ = whole
    takes_all_in_one_run(arriving)
    assert ask(WATCHES) == watching
    signal_all(psutil.Process(stack.pids()["triggerer"]), signal.SIGKILL)
    takes_all_in_one_run(arriving)
    # That is the second one, or the first one's successor.
    assert ask(WATCHES) != watching
    arriving.is_whole()


@pytest.mark.invariant("I9")
def test_a_triggerer_that_stands_still_and_comes_back_late_commits_nothing_twice(
    arriving: Line, whole, watching, second, ask
):
    stack, _ = whole
    stopped = psutil.Process(stack.pids()["triggerer"])
    signal_all(stopped, signal.SIGSTOP)
    try:
        takes_all_in_one_run(arriving)
        assert ask(WATCHES) == second
    finally:
        signal_all(stopped, signal.SIGCONT)
    takes_all_in_one_run(arriving)
    arriving.is_whole()
