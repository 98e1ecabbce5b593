"""Accumulate: sums and numbers of 1,000 keys, beside Structured Streaming doing the same."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.backlog import ACCOUNTS, Backlog, account
from benchmarks.bench import Aim, Bench, Figures, Work
from benchmarks.drain import drained
from benchmarks.streaming import TOTALS
from benchmarks.table import check_same
from ratchet import Accumulate

RATCHET, STREAMING = "ratchet", "Structured Streaming"


def totals(name: str) -> Accumulate:
    """The sum of scores and the number of records of each account."""
    return Accumulate(name, key="account string", sum="score int", count="n")


def check_totals(bench: Bench, table: str, backlog: Backlog) -> None:
    """StageMismatch unless a table has exactly the sums and numbers that the backlog was made with."""
    sums = np.bincount(backlog.accounts, weights=backlog.scores, minlength=ACCOUNTS).astype(np.int64)
    counts = np.bincount(backlog.accounts, minlength=ACCOUNTS)
    wanted = [(account(n), int(sums[n]), int(counts[n])) for n in range(ACCOUNTS) if counts[n]]
    check_same(bench.url, table, ("account", "score_sum", "n"), wanted)


def measure(bench: Bench) -> Figures:
    """Both by turns."""
    return bench.alternate(bench.backlog(bench.records), [partial(_ratchet, bench), partial(_streaming, bench)])


def _ratchet(bench: Bench, backlog: Backlog) -> dict[str, float]:
    sink = totals("bench_totals")
    seconds, _ = drained(bench.stack, backlog, sink)
    check_totals(bench, sink.name, backlog)
    return {RATCHET: seconds}


def _streaming(bench: Bench, backlog: Backlog) -> dict[str, float]:
    # What it stages is a thousand rows, whoever writes them.
    ends = bench.driver.accumulate(backlog, "jdbc", ACCOUNTS)
    check_totals(bench, TOTALS, backlog)
    return {STREAMING: ends[-1]}


WORK = Work(
    "Accumulate, 1,000 keys",
    frozenset({"postgres", "kafka", "connect"}),
    measure,
    (Aim(RATCHET, "times as fast as", 3, STREAMING),),
)
