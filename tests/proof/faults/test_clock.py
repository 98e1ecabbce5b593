"""A clock that is set is no reason to lose or to double anything."""

from __future__ import annotations

import shutil
import sys
import time

import psutil
import pytest

from ratchet.dev.stack.server import Server
from ratchet.dev.stack.supervisor import Supervisor
from tests.until import until

from .clock import Clock, Clocks
from .conftest import Endure
from .kinds import NAMES, STEPS, fault

CLOCK = """
import time
print("up", flush=True)
while True:
    print(time.time(), time.monotonic(), flush=True)
    time.sleep(0.1)
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_a_process_sees_another_time_while_its_clock_is_wrong_and_waits_as_long_as_ever(tmp_path):
    log = tmp_path / "log"

    def seen() -> tuple[float, float]:
        """(how far its clock is ahead of the machine's, how far its count of seconds is)."""
        wall, monotonic = map(float, log.read_text().splitlines()[-2].split())
        return wall - time.time(), monotonic - time.monotonic()

    clocks, supervisor = Clocks(tmp_path / "clocks"), Supervisor(tmp_path / "processes.json", print)
    server = Server("s", [sys.executable, "-c", CLOCK], log, lambda: log.exists() and log.read_text().count("\n") > 3)
    clocks.fit(server)
    supervisor.start([server])
    try:
        for by in (3600, -3600):
            wrong = Clock(clocks, "s", lambda: psutil.Process(server.process.pid), "server", by)
            wrong.strike()
            assert wrong.met
            until("the clock has stepped", lambda by=by: abs(seen()[0] - by) < 5)
            assert abs(seen()[1]) < 5
            wrong.heal()
            until("the clock is right again", lambda: abs(seen()[0]) < 5)
        assert not clocks.is_seen("s", psutil.Process()), "this process has the machine's clock"
    finally:
        supervisor.stop()


@pytest.mark.all
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", ["ahead", "behind"])
@pytest.mark.parametrize("server", STEPS)
def test_a_clock_that_is_set_costs_time_and_nothing_else(world, endure: Endure, server: str, way: str):
    by = STEPS[server]
    said = f"{by // 3600} h" if by >= 3600 else f"{by} s"
    endure(fault(world, f"{NAMES[server]}'s clock {said} {way}"))
