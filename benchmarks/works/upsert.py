"""Upsert: a quarter of the records, first all keys new, then all known, beside bare statements and Streaming."""

from __future__ import annotations

import time
from functools import partial

import psycopg

from benchmarks.backlog import COLUMNS, Backlog
from benchmarks.bench import Aim, Bench, Figures, Work
from benchmarks.drain import drained
from benchmarks.streaming import LATEST, upsert_of
from benchmarks.table import PLAIN_COLUMNS, check_sums, checkpoint, make
from ratchet import Upsert

PARTS = ("all keys new", "all keys known")
RATCHET, BARE, STREAMING = "ratchet", "bare INSERT … ON CONFLICT", "Structured Streaming, COPY"
TARGET = "bench_bare"


def latest(name: str) -> Upsert:
    """The last record of each id, by its score."""
    columns = ", ".join(part for part in COLUMNS.split(", ") if part != "id bigint")
    return Upsert(name, key="id bigint", columns=columns, order="score")


def measure(bench: Bench) -> Figures:
    """All three by turns, each with the new keys before the known ones."""
    backlog = bench.backlog(bench.records // 4, times=len(PARTS))
    contestants = [partial(of, bench) for of in (_ratchet, _bare, _streaming)]
    return bench.alternate(backlog, contestants)


def _ratchet(bench: Bench, backlog: Backlog) -> dict[str, float]:
    sink = latest("bench_latest")
    seconds: dict[str, float] = {}
    spec = None
    for number, part in enumerate(PARTS):
        plan = backlog.plans[(number + 1) * backlog.part // backlog.cap - 1]
        until = {r.partition: r.until_offset for r in plan}
        seconds[f"{RATCHET}, {part}"], drain = drained(bench.stack, backlog, sink, until=until, spec=spec)
        _check(bench, sink.name, backlog, number)
        checkpoint(bench.url)
        spec = drain.spec
    return seconds


def _bare(bench: Bench, backlog: Backlog) -> dict[str, float]:
    """The same rows, out of a table for each part, by one statement a part."""
    rows = [f"bench_rows_{number}" for number in range(len(PARTS))]
    # The target has the same room in its pages that ratchet's has.
    target = f"{PLAIN_COLUMNS}, primary key (id)) with (fillfactor = 80"
    make(bench.url, {**dict.fromkeys(rows, PLAIN_COLUMNS), TARGET: target})
    a_part = len(backlog.plans) // len(PARTS)
    for number, name in enumerate(rows):
        plans = backlog.plans[number * a_part : (number + 1) * a_part]
        bench.loop.load(name, [r for planned in plans for r in planned])
    seconds: dict[str, float] = {}
    with psycopg.connect(bench.url, autocommit=True) as conn:
        for number, (name, part) in enumerate(zip(rows, PARTS, strict=True)):
            checkpoint(bench.url)
            started = time.monotonic()
            conn.execute(upsert_of(TARGET, name).encode())
            seconds[f"{BARE}, {part}"] = time.monotonic() - started
            _check(bench, TARGET, backlog, number)
    return seconds


def _streaming(bench: Bench, backlog: Backlog) -> dict[str, float]:
    ends = bench.driver.upsert(backlog, "copy", bench.batch_size("copy"))
    _check(bench, LATEST, backlog, 1)
    new = ends[len(ends) // len(PARTS) - 1]
    return {f"{STREAMING}, {PARTS[0]}": new, f"{STREAMING}, {PARTS[1]}": ends[-1] - new}


def _check(bench: Bench, table: str, backlog: Backlog, number: int) -> None:
    """The table holds exactly the records of one part."""
    check_sums(bench.url, table, backlog, slice(number * backlog.part, (number + 1) * backlog.part))


WORK = Work(
    "Upsert",
    frozenset({"postgres", "kafka", "connect"}),
    measure,
    tuple(
        aim
        for part in PARTS
        for aim in (
            Aim(f"{RATCHET}, {part}", "times the time of", 1.7, f"{BARE}, {part}"),
            Aim(f"{RATCHET}, {part}", "times as fast as", 1, f"{STREAMING}, {part}"),
        )
    ),
)
