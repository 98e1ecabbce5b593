"""The schedules go on beside the other tests, in time that those leave over: most of them wait for servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable

import pytest

from ratchet.dev.stack import CHECKOUT

SCHEDULES, SEED, JOBS = 400, 1, 2
"""The same ones every time, so that no change is blamed for what another one has done; `make simulate` draws others."""
WITH_WHAT_IS_LEFT = 19
"""The nice value of them and of their PostgreSQL."""
STARTED = pytest.StashKey[tuple[subprocess.Popen, object]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever waits for their end comes last."""
    items.sort(key=lambda item: "schedules" in getattr(item, "fixturenames", ()))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start them as soon as it is known that they are asked for."""
    if session.config.option.collectonly or not any("schedules" in item.fixturenames for item in session.items):
        return
    said = tempfile.TemporaryFile("w+")
    command = [sys.executable, "-m", "tests.proof.simulate", "--schedules", str(SCHEDULES), "--seed", str(SEED)]
    process = subprocess.Popen(
        [*command, "--jobs", str(JOBS)],
        cwd=CHECKOUT,
        stdout=said,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: os.nice(WITH_WHAT_IS_LEFT),
        start_new_session=True,
    )
    session.config.stash[STARTED] = process, said


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nobody waits for them any more, if they have not ended."""
    process, _ = session.config.stash.get(STARTED, (None, None))
    if process is not None and process.poll() is None:
        # It ends PostgreSQL, whose sessions a schedule may have stopped: those would not see that it is gone.
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def schedules(request) -> Callable[[], tuple[int, str]]:
    """Waits for their end: the exit status, and what they have said."""
    process, said = request.config.stash[STARTED]

    def wait() -> tuple[int, str]:
        status = process.wait()
        said.seek(0)
        return status, said.read()

    return wait
