"""Schedules in which everything that can be killed, lost, doubled or late is so, between any two statements."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile

import pytest

from ratchet.dev.stack import CHECKOUT
from ratchet.dev.stack.server import die_with_parent

from .schedule import COMMITS, GROUPS, WAITS

SCHEDULES, SEED, JOBS = 12, 4, 2
"""The same ones every time, so that no change is blamed for what another one has done; `make simulate` draws others.

Among these topics join a line, are left and come back, a spec grows, and a ledger is restored."""
WITH_WHAT_IS_LEFT = 19
"""The nice value of them and of their PostgreSQL: where tests run side by side, most of them wait for servers."""


@pytest.mark.timeout(2400)
def test_whatever_is_interleaved_and_cut_off_each_record_takes_effect_once():
    status, said = simulated()
    print(said)
    assert status == 0, said
    found = {what: int(number.replace(",", "")) for number, what in re.findall(r"(\d[\d,]*) ([a-z ]+)", said)}
    assert found["finished"] >= SCHEDULES
    # A schedule that never comes to a commit shows nothing of it.
    for what, share in ((COMMITS, 4), (WAITS, 8), (GROUPS, 50)):
        assert found[what] >= SCHEDULES / share, f"{found[what]} {what} in {SCHEDULES} schedules"


def simulated() -> tuple[int, str]:
    """The exit status of the schedules, and what they have said."""
    command = [sys.executable, "-m", "tests.proof.simulate", "--schedules", str(SCHEDULES), "--seed", str(SEED)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*command, "--jobs", str(JOBS)],
            cwd=CHECKOUT,
            stdout=said,
            stderr=subprocess.STDOUT,
            preexec_fn=stand_back,
            start_new_session=True,
        )
        try:
            status = process.wait()
        finally:
            if process.poll() is None:
                end(process)
        said.seek(0)
        return status, said.read()


def stand_back() -> None:
    os.nice(WITH_WHAT_IS_LEFT)
    # A session of tests that is ended by a signal ends nothing that its processes have started.
    die_with_parent()


def end(process: subprocess.Popen[bytes]) -> None:
    # It ends PostgreSQL, whose sessions a schedule may have stopped: those would not see that it is gone.
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
