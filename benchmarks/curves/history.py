"""Ten thousand commits while a reader holds a snapshot open, so that nothing dead can be removed."""

from __future__ import annotations

import time

import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.curves.curve import LITTLE, Curve, Points
from benchmarks.staged import Line
from benchmarks.table import check_range
from ratchet.protocol.commit import Committed, commit

COMMITS, EVERY = 10_000, 1_000
SAMPLES = 50
"""How many of the last commits before a place on the axis, and how many lookups at it, are looked at."""
RECORDS = 8


def measure(bench: Bench) -> Points:
    """Milliseconds of a commit, and of what every query of a view does: the lookup of the head."""
    points: Points = {"a commit": {}, "the head's lookup": {}}
    with (
        Line(bench.url, f"bench_history_{time.time_ns() // 10**6}") as line,
        psycopg.connect(bench.url) as holding,
        psycopg.connect(bench.url, autocommit=True) as reading,
    ):
        holding.execute("set transaction isolation level repeatable read")
        holding.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(line.spec.sinks[0].name)))
        took: list[float] = []
        commits = COMMITS if bench.records >= LITTLE else COMMITS // 100
        every = min(EVERY, commits)
        for number in range(1, commits + 1):
            claim = line.prepare(RECORDS, str(number))
            started = time.monotonic()
            done = commit(line.ledger, line.spec, claim)
            took.append(1_000 * (time.monotonic() - started))
            assert isinstance(done, Committed), done
            if number % every == 0 or number == SAMPLES:
                points["a commit"][number] = took[-SAMPLES:]
                points["the head's lookup"][number] = [_lookup(reading, line.spec.name) for _ in range(SAMPLES)]
                bench.tell(f"{number:,} commits: the last took {took[-1]:.1f} ms")
        check_range(bench.url, line.spec.sinks[0].name, dict.fromkeys(line.until, 0), line.until)
    return points


def _lookup(conn: psycopg.Connection, pipeline: str) -> float:
    started = time.monotonic()
    conn.execute("select txid from ratchet.heads where pipeline = %s", [pipeline]).fetchone()
    return 1_000 * (time.monotonic() - started)


CURVE = Curve("Commits while a snapshot is held", "commits", "ms", frozenset({"postgres"}), measure)
