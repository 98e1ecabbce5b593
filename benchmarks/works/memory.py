"""What a Spark worker holds at most: slices of 100,000 and of 5,000,000 records, in an Append and in an Upsert."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.backlog import Backlog
from benchmarks.bench import Aim, Bench, Figures, Work
from benchmarks.drain import drained
from benchmarks.table import append, check_rows, check_sums, renew, spec_of
from benchmarks.works.upsert import latest
from ratchet.spec.parts import DeclaredSink

SMALL, LARGE = 100_000, 5_000_000
Check = Callable[[str, str, Backlog], None]
"""Raises unless a table, of a ledger's URL and by its name, holds the backlog."""
SINKS: dict[str, tuple[DeclaredSink, Check]] = {
    "Append": (append(), check_rows),
    "Upsert": (latest("bench_latest"), check_sums),
}
"""By what aims call them; every record of the Upsert has a key of its own."""


def measure(bench: Bench) -> Figures:
    """The worker that has held most, in MiB, for each size of slice and each sink; one slice a transaction."""
    figures: Figures = {}
    backlogs = {size: bench.backlog(size) for size in (SMALL, LARGE)}
    for number in range(bench.runs + 1):
        for kind, (sink, check) in SINKS.items():
            for size, backlog in backlogs.items():
                held = _held(bench, backlog, sink)
                check(bench.url, sink.name, backlog)
                if number:
                    figures.setdefault(_name(kind, size), []).append(held)
                    bench.tell(f"run {number}, {_name(kind, size)}: a worker held at most {held:.0f} MiB")
    return figures


def _held(bench: Bench, backlog: Backlog, sink: DeclaredSink) -> float:
    """Drain the backlog, all of it in one slice, and say what the worker that has held most has held."""
    for worker in _workers(bench):
        # What it has held at most counts from here.
        Path(f"/proc/{worker.pid}/clear_refs").write_text("5")
    spec = spec_of(f"bench_memory_{time.time_ns() // 10**6}", backlog, sink)
    spec = spec.model_copy(update={"max_records": backlog.records, "slice_records": backlog.records})
    renew(bench.url, spec)
    drained(bench.stack, backlog, spec=spec)
    return max(_peak(worker) for worker in _workers(bench)) / 1024


def _workers(bench: Bench) -> list[psutil.Process]:
    """Spark's Python workers: what their daemon has forked."""
    server = psutil.Process(bench.stack.pids()["connect"])
    found = {process.pid: process for process in server.children(recursive=True) if _is_worker(process)}
    return [process for process in found.values() if process.ppid() in found]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "ratchet.spark.workers" in process.cmdline()
    except psutil.NoSuchProcess:
        # One that has ended, and that its parent has not looked at yet.
        return False


def _peak(process: psutil.Process) -> int:
    """The most that a process has had in memory, in KiB, with what it shares."""
    said = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", said)
    assert found is not None, said
    return int(found[1])


def _name(kind: str, size: int) -> str:
    return f"{kind}, a slice of {size:,}"


WORK = Work(
    "Memory of a Spark worker",
    frozenset({"postgres", "kafka", "connect"}),
    measure,
    tuple(
        aim
        for kind in SINKS
        for aim in (
            Aim(_name(kind, SMALL), "MiB", 400),
            Aim(_name(kind, LARGE), "MiB", 400),
            Aim(_name(kind, LARGE), "times the memory of", 1.1, _name(kind, SMALL)),
        )
    ),
    unit="MiB",
)
