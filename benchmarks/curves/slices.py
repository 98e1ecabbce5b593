"""An Append whose transactions of 500,000 records are cut into 1 to 8 slices, two of which are worked on at once."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.backlog import CAP
from benchmarks.bench import Bench
from benchmarks.curves.curve import Curve, Points, by_turns
from benchmarks.drain import drained
from benchmarks.table import append, check_rows, renew, spec_of

SLICES = (1, 2, 3, 4, 6, 8)


def measure(bench: Bench) -> Points:
    """Half of the bench's records, by as many slices a transaction."""
    return by_turns(bench, "Append", {number: partial(_rate, bench, number) for number in SLICES})


def _rate(bench: Bench, number: int) -> float:
    backlog = bench.backlog(bench.records // 2)
    spec = spec_of(f"bench_slices_{time.time_ns() // 10**6}", backlog, append())
    spec = spec.model_copy(update={"slice_records": -(-min(CAP, backlog.cap) // number)})
    renew(bench.url, spec)
    seconds, _ = drained(bench.stack, backlog, spec=spec)
    check_rows(bench.url, append().name, backlog)
    return backlog.records / seconds


CURVE = Curve("Slices of a transaction", "slices", "records/s", frozenset({"postgres", "kafka", "connect"}), measure)
