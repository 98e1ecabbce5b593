"""`make simulate`: schedules of the real ledger code on a real PostgreSQL, as many as asked for.

A schedule that fails is shrunk, told as a story, and named by the seed that leads to it again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from psycopg import sql

from ratchet.stack import CHECKOUT, Stack
from tests.simulate.machine import Machine
from tests.simulate.schedule import Theatre
from tests.simulate.statements import hooked

RULES = 40
"""So many rules a schedule has at most."""
LOT = 20
"""So many schedules are drawn between two looks at the time."""


def main() -> None:
    said = _arguments()
    if said.database:
        _job(said.database, said.schedules, said.seed, not said.unshrunk, said.seconds)
        return
    home = _home()
    with Stack(home, {"postgres"}) as stack:
        if os.nice(0) > 0:
            _stand_back([os.getpid(), *stack.pids().values()])
        many = f"{said.seconds} s of schedules" if said.seconds else f"{said.schedules:,} schedules"
        print(f"{many}, seed {said.seed}, {said.jobs} at once", flush=True)
        more = (["--unshrunk"] if said.unshrunk else []) + (["--seconds", str(said.seconds)] if said.seconds else [])
        failed = simulate(stack, said.schedules, said.seed, said.jobs, more)
    shutil.rmtree(home, ignore_errors=True)
    if failed:
        print(failed)
        sys.exit(1)


def simulate(stack: Stack, schedules: int, seed: int, jobs: int, more: Sequence[str] = ()) -> str | None:
    """Run so many schedules, in so many processes; prints the figures, and returns the story of one that failed."""
    started = time.monotonic()
    each = -(-schedules // jobs)
    with ThreadPoolExecutor(jobs) as pool:
        done = list(pool.map(lambda job: _process(stack, each, seed + job, more), range(jobs)))
    counted: Counter[str] = Counter()
    for process in done:
        if process.returncode:
            return process.stdout + process.stderr
        counted.update(json.loads(process.stdout.splitlines()[-1]))
    figures = ", ".join(f"{number:,} {what}" for what, number in counted.items())
    print(f"{figures}; {time.monotonic() - started:.0f} s", flush=True)
    return None


def _process(stack: Stack, schedules: int, seed: int, more: Sequence[str]) -> subprocess.CompletedProcess[str]:
    name = f"schedules_{uuid4().hex[:12]}"
    with psycopg.connect(stack.ledger_url, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    given = ["--database", stack.database_url(name), "--schedules", str(schedules), "--seed", str(seed)]
    command = [sys.executable, "-m", "tests.simulate", *given, *more]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)


def _job(url: str, schedules: int, first: int, shrink: bool, seconds: int | None) -> None:
    """The schedules of one process, in a database of its own; of `seconds`, as many small lots as fit into them."""
    deadline = time.monotonic() + (seconds or 0)
    numbers = itertools.takewhile(lambda _: time.monotonic() < deadline, itertools.count(first)) if seconds else [first]
    schedules = LOT if seconds else schedules
    with hooked():
        Machine.theatre = Theatre(url)
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
            for number in numbers:
                run_state_machine_as_test(seed(number)(Machine), settings=chosen)
        except BaseException:
            print(traceback.format_exc(limit=-3))
            print(f"again: make simulate SEED={number} SCHEDULES={schedules} JOBS=1", flush=True)
            # Actors that still stand somewhere would be waited for.
            Machine.theatre.troupe.release()
            os._exit(1)
    print(json.dumps(Machine.theatre.counted))


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
