"""An aggregate over the whole table, through the view that readers have and over the rows behind it."""

from __future__ import annotations

import time

import psycopg
from psycopg import sql

from benchmarks.bench import Aim, Bench, Figures, Work
from benchmarks.staged import Line
from benchmarks.table import check_range, empty
from ratchet.protocol.commit import Committed, commit

VIEW, TABLE = "through the view", "the bare table"
AGGREGATE = "select count(*), sum(id)::bigint, sum(score)::bigint, max(amount) from {}"
PARTS = 8
"""Transactions, each of which has an eighth of the records."""


def measure(bench: Bench) -> Figures:
    """Both by turns, each three times a run, with everything in memory that fits there."""
    seconds: Figures = {}
    with Line(bench.url, f"bench_view_{time.time_ns() // 10**6}") as line:
        for number in range(PARTS):
            done = commit(line.ledger, line.spec, line.prepare(bench.records // PARTS, str(number)))
            assert isinstance(done, Committed), done
        name = line.spec.sinks[0].name
        check_range(bench.url, name, dict.fromkeys(line.until, 0), line.until)
        relations = {VIEW: sql.Identifier(name), TABLE: sql.Identifier(*line.rows)}
        with psycopg.connect(bench.url, autocommit=True) as conn:
            conn.execute(sql.SQL("vacuum analyze {}").format(relations[TABLE]))
            answers = set()
            for number in range(3 * bench.runs + 1):
                for contestant, relation in relations.items():
                    started = time.monotonic()
                    answers.add(conn.execute(sql.SQL(AGGREGATE).format(relation)).fetchone())
                    took = time.monotonic() - started
                    if number:
                        seconds.setdefault(contestant, []).append(took)
                        bench.tell(f"aggregate {contestant}: {took:.3f} s")
        if len(answers) != 1:
            raise RuntimeError(f"the view and its table give {answers}")
        empty(bench.url, line.rows)
    return seconds


WORK = Work(
    "Whole-table aggregate",
    frozenset({"postgres"}),
    measure,
    (Aim(VIEW, "times the time of", 1.3, TABLE),),
)
