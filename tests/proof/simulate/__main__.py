"""`make simulate`: schedules of the real ledger code on a real PostgreSQL, as many as asked for.

A schedule that fails is shrunk, told as a story, and named by the seed that leads to it again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from psycopg import sql

from ratchet.dev.stack import CHECKOUT, Stack
from ratchet.dev.stack.server import die_with_parent
from tests.proof.simulate.machine import Machine
from tests.proof.simulate.schedule import Theatre
from tests.proof.simulate.statements import hooked

RULES = 30
"""So many rules a schedule has at most."""
LOT, SMALL_LOT = 50, 10
"""So many schedules are drawn at once; whichever process is free takes the next ones. Small where time is short, and at
the end, so that nobody waits for another one's last lot."""
DONE = "lot done:"


def main() -> None:
    said = _arguments()
    if said.database:
        _job(said.database, not said.unshrunk)
        return
    home = _home()
    with Stack(home, {"postgres"}) as stack:
        if os.nice(0) > 0:
            _stand_back([os.getpid(), *stack.pids().values()])
        many = f"{said.seconds} s of schedules" if said.seconds else f"{said.schedules:,} schedules"
        print(f"{many}, seed {said.seed}, {said.jobs} at once", flush=True)
        failed = simulate(stack, Lots(said.schedules, said.seed, said.seconds, said.jobs), said.jobs, not said.unshrunk)
    shutil.rmtree(home, ignore_errors=True)
    if failed:
        print(failed)
        sys.exit(1)


class Lots:
    """What is still to be done, so many schedules or as many as so many seconds allow; and what was counted so far."""

    def __init__(self, schedules: int, seed: int, seconds: int | None, jobs: int):
        self._left, self._seed, self._lock = schedules, seed, threading.Lock()
        self.counted: Counter[str] = Counter()
        # One alone does whole lots: so a lot that has failed comes again as it was.
        self._least = SMALL_LOT if jobs > 1 else LOT
        self._deadline = time.monotonic() + seconds if seconds else None

    def take(self) -> tuple[int, int] | None:
        """The next lot, as (seed, number of schedules), for whoever is free; None if nothing is left to do."""
        with self._lock:
            size = SMALL_LOT if self._deadline is not None else min(LOT, max(self._least, self._left // 4), self._left)
            if not size or (self._deadline is not None and time.monotonic() > self._deadline):
                return None
            lot = self._seed, size
            self._seed, self._left = self._seed + 1, self._left - size
            return lot

    def done(self, counted: dict[str, int]) -> None:
        """A lot is done, and has had so many of each thing."""
        with self._lock:
            self.counted.update(counted)
            print(f"{self.counted['schedules']:,} schedules", flush=True)

    def end(self) -> None:
        """Nothing more is to be done."""
        with self._lock:
            self._left, self._deadline = 0, None


def simulate(stack: Stack, lots: Lots, jobs: int, shrink: bool) -> str | None:
    """Run schedules in so many processes; prints the figures, and returns the story of one that failed."""
    started = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        stories = list(pool.map(lambda _: _process(stack, lots, shrink), range(jobs)))
    failed = [story for story in stories if story]
    if failed:
        return failed[0]
    figures = ", ".join(f"{number:,} {what}" for what, number in lots.counted.items() if ": " not in what)
    print(f"{figures}; {time.monotonic() - started:.0f} s", flush=True)
    print(f"drawn: {_drawn(lots.counted)}", flush=True)
    return None


def _drawn(counted: Counter[str]) -> str:
    """How many schedules had what of each dimension, which are counted as `dimension: what`."""
    of: dict[str, list[str]] = {}
    for name, number in sorted(counted.items()):
        dimension, is_one, what = name.partition(": ")
        if is_one:
            of.setdefault(dimension, []).append(f"{what} {number:,}")
    return "; ".join(f"{dimension}: {', '.join(each)}" for dimension, each in of.items())


def _process(stack: Stack, lots: Lots, shrink: bool) -> str | None:
    """Have a process do lot after lot; what it said when it failed."""
    name = f"schedules_{uuid4().hex[:12]}"
    with psycopg.connect(stack.ledger_url, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    command = [sys.executable, "-m", "tests.proof.simulate", "--database", stack.database_url(name)]
    command += [] if shrink else ["--unshrunk"]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # Else it would do its lot to the end, with nobody to tell.
    pipe |= {"preexec_fn": die_with_parent}
    with subprocess.Popen(command, cwd=CHECKOUT, text=True, bufsize=1, **pipe) as process:
        while lot := lots.take():
            with suppress(BrokenPipeError):
                process.stdin.write("{} {}\n".format(*lot))
            said = []
            for line in process.stdout:
                if line.startswith(DONE):
                    lots.done(json.loads(line.removeprefix(DONE)))
                    break
                said.append(line)
            else:
                lots.end()
                # Who was killed has said nothing.
                return "".join(said) or f"a process of schedules ended without a word, with status {process.wait()}"
    return None


def _job(url: str, shrink: bool) -> None:
    """The lots that come by standard input, in a database of its own."""
    with hooked():
        Machine.theatre = Theatre(url)
        # All that is imported is looked through at each full collection: an eighth of a schedule's time.
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        for line in sys.stdin:
            number, schedules = map(int, line.split())
            chosen = settings(
                max_examples=schedules,
                stateful_step_count=RULES,
                deadline=None,
                database=None,
                print_blob=False,
                phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            try:
                run_state_machine_as_test(seed(number)(Machine), settings=chosen)
            except BaseException:
                print(traceback.format_exc(limit=-3))
                print(f"again: make simulate SEED={number} SCHEDULES={schedules} JOBS=1", flush=True)
                # Actors that still stand somewhere would be waited for.
                Machine.theatre.troupe.release()
                os._exit(1)
            print(DONE, json.dumps(Machine.theatre.counted), flush=True)
            Machine.theatre.counted.clear()


def _stand_back(pids: list[int]) -> None:
    """Linux shares time out among sessions first, whose niceness is not that of their processes."""
    for pid in pids:
        with suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text("19")


def _home() -> Path:
    """A directory of this process's own; those of processes that were killed are removed."""
    state = CHECKOUT / ".state"
    for left in state.glob("simulate-*"):
        if not psutil.pid_exists(int(left.name.rpartition("-")[2])):
            shutil.rmtree(left, ignore_errors=True)
    return state / f"simulate-{os.getpid()}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, help="for so long, instead of a number of schedules")
    parser.add_argument("--unshrunk", action="store_true", help="do not look for a shorter story of what failed")
    parser.add_argument("--database", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
