"""Append: every record as a row, in both lanes, beside Structured Streaming, a bare count and a plain loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

from benchmarks.backlog import Backlog
from benchmarks.bench import Aim, Bench, Contestant, Figures, Work
from benchmarks.drain import drained
from benchmarks.streaming import APPENDED, Writer
from benchmarks.table import PLAIN_COLUMNS, append, check_rows, make
from ratchet.spark.reader import read

PLAIN = "bench_plain"
RATCHET, ARROW, FRAMES = "ratchet, no transform", "ratchet, Arrow transform", "ratchet, DataFrame transform"
JDBC, COPY = "Structured Streaming, JDBC", "Structured Streaming, COPY"
COUNT, LOOP = "Spark's count", "the plain loop"


def measure(bench: Bench) -> Figures:
    """All seven by turns; of ratchet's lanes also where the seconds go."""
    steps: dict[str, list[dict[str, float]]] = {}
    lanes = {RATCHET: None, ARROW: "benchmarks.transforms:tables", FRAMES: "benchmarks.transforms:frames"}
    contestants: list[Contestant] = [
        *(partial(_ratchet, bench, steps, name, transform) for name, transform in lanes.items()),
        partial(_streaming, bench, JDBC, "jdbc"),
        partial(_streaming, bench, COPY, "copy"),
        partial(_timed, COUNT, partial(_count, bench)),
        partial(_timed, LOOP, partial(_plain, bench)),
    ]
    seconds = bench.alternate(bench.backlog(bench.records), contestants)
    bench.notes["seconds per transaction"] = {
        name: {step: round(median(run.get(step, 0.0) for run in runs[-bench.runs :]), 3) for step in runs[-1]}
        for name, runs in steps.items()
    }
    return seconds


def _ratchet(
    bench: Bench, steps: dict[str, list[dict[str, float]]], name: str, transform: str | None, backlog: Backlog
) -> dict[str, float]:
    seconds, drain = drained(bench.stack, backlog, append(), transform=transform)
    steps.setdefault(name, []).append(drain.from_ledger())
    check_rows(bench.url, append().name, backlog)
    return {name: seconds}


def _streaming(bench: Bench, name: str, writer: Writer, backlog: Backlog) -> dict[str, float]:
    ends = bench.driver.append(backlog, writer, bench.batch_size(writer))
    check_rows(bench.url, APPENDED, backlog)
    return {name: ends[-1]}


def _timed(name: str, work: Callable[[Backlog], float], backlog: Backlog) -> dict[str, float]:
    return {name: work(backlog)}


def _count(bench: Bench, backlog: Backlog) -> float:
    """Seconds to count the same ranges by Spark's own source, one batch job for each transaction's."""
    session = bench.session
    started = time.monotonic()
    counted = sum(read(session, ranges, bench.stack.kafka).count() for ranges in backlog.plans)
    seconds = time.monotonic() - started
    if counted != backlog.records:
        raise RuntimeError(f"{counted:,} records were counted of {backlog.records:,}")
    return seconds


def _plain(bench: Bench, backlog: Backlog) -> float:
    """Seconds of the plain loop, with the rows that it must have left."""
    make(bench.url, {PLAIN: PLAIN_COLUMNS})
    ranges = [r for planned in backlog.plans for r in planned]
    loop = bench.loop
    started = time.monotonic()
    loop.load(PLAIN, ranges)
    seconds = time.monotonic() - started
    check_rows(bench.url, PLAIN, backlog)
    return seconds


WORK = Work(
    "Append",
    frozenset({"postgres", "kafka", "connect"}),
    measure,
    (
        Aim(RATCHET, "times as fast as", 0.7, LOOP),
        Aim(RATCHET, "times as fast as", 0.8, COUNT),
        Aim(RATCHET, "times as fast as", 5, JDBC),
        Aim(RATCHET, "times as fast as", 2, COPY),
        Aim(ARROW, "times as fast as", 0.7, LOOP),
        Aim(ARROW, "times as fast as", 0.8, COUNT),
        Aim(ARROW, "times as fast as", 5, JDBC),
        Aim(ARROW, "times as fast as", 2, COPY),
        Aim(FRAMES, "times as fast as", 0.4, LOOP),
        Aim(FRAMES, "times as fast as", 1, COPY),
    ),
)
