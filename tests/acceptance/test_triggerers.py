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


@pytest.fixture
def watching(whole: tuple[Stack, Path]) -> Callable[[], int | None]:
    """Asks Airflow for the triggerer, by the number of its job, that watches for the line's records."""

    def asked() -> int | None:
        with psycopg.connect(whole[0].database_url("airflow")) as conn:
            rows = conn.execute(
                "select t.triggerer_id from trigger t join asset_watcher w on w.trigger_id = t.id "
                "join asset a on a.id = w.asset_id where a.uri like 'x-ratchet://arriving/%'"
            ).fetchall()
        return rows[0][0] if rows else None

    return asked


@pytest.fixture
def second(whole: tuple[Stack, Path], arriving: Line, watching: Callable[[], int | None]) -> Iterator[psutil.Process]:
    """A triggerer beside that of the stack, which has the watch by then."""
    stack, _ = whole
    until("the only triggerer watches", watching, 60)
    first = psutil.Process(stack.pids()["triggerer"])

    def running() -> int:
        with psycopg.connect(stack.database_url("airflow")) as conn:
            asked = "select count(*) from job where job_type = 'TriggererJob' and state = 'running'"
            return conn.execute(asked).fetchone()[0]  # pyright: ignore[reportOptionalSubscript]

    before = running()
    with (stack.home / "logs" / "triggerer-2.log").open("w") as log:
        made = subprocess.Popen(first.cmdline(), env=first.environ(), cwd=first.cwd(), stdout=log, stderr=log)
    until("there is a triggerer more", lambda: running() == before + 1, 60)
    process = psutil.Process(made.pid)
    yield process
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
def test_of_two_triggerers_one_watches_and_another_does_when_it_is_killed(arriving: Line, whole, watching, second):
    stack, _ = whole
    was = watching()
    takes_all_in_one_run(arriving)
    assert watching() == was
    signal_all(psutil.Process(stack.pids()["triggerer"]), signal.SIGKILL)
    takes_all_in_one_run(arriving)
    assert watching() != was
    arriving.is_whole()


@pytest.mark.invariant("I9")
def test_a_triggerer_that_stands_still_and_comes_back_late_commits_nothing_twice(
    arriving: Line, whole, watching, second
):
    stack, _ = whole
    was, stopped = watching(), psutil.Process(stack.pids()["triggerer"])
    signal_all(stopped, signal.SIGSTOP)
    try:
        takes_all_in_one_run(arriving)
    finally:
        signal_all(stopped, signal.SIGCONT)
    assert watching() != was
    takes_all_in_one_run(arriving)
    arriving.is_whole()
