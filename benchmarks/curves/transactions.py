"""An Append by transactions of 1,000 to 5,000,000 records, two of which are in flight at once."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.backlog import PARTITIONS
from benchmarks.bench import Bench
from benchmarks.curves.curve import Curve, Points, by_turns
from benchmarks.drain import drained
from benchmarks.table import append, check_range, renew, spec_of

SIZES = (1_000, 10_000, 100_000, 500_000, 1_000_000, 5_000_000)
MOST = 30
"""So many transactions say enough, where they are small."""


def measure(bench: Bench) -> Points:
    """At most 30 transactions of each size, of one topic."""
    return by_turns(bench, "Append", {size: partial(_rate, bench, size) for size in SIZES if size <= bench.records * 5})


def _rate(bench: Bench, size: int) -> float:
    backlog = bench.backlog(bench.records * 5 // 4)
    spec = spec_of(f"bench_transactions_{time.time_ns() // 10**6}", backlog, append())
    spec = spec.model_copy(update={"max_records": size})
    renew(bench.url, spec)
    records = min(backlog.records, MOST * size)
    until = dict.fromkeys(range(PARTITIONS), records // PARTITIONS)
    seconds, _ = drained(bench.stack, backlog, spec=spec, until=until)
    check_range(bench.url, append().name, dict.fromkeys(until, 0), until)
    return records / seconds


CURVE = Curve("Records of a transaction", "records", "records/s", frozenset({"postgres", "kafka", "connect"}), measure)
