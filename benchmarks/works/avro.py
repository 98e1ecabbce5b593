"""Records in Avro into an Append, beside Structured Streaming with COPY."""

from __future__ import annotations

from functools import partial

from benchmarks.backlog import Backlog
from benchmarks.bench import Aim, Bench, Figures, Work
from benchmarks.drain import drained
from benchmarks.streaming import APPENDED
from benchmarks.table import append, check_rows

RATCHET, STREAMING = "ratchet", "Structured Streaming, COPY"


def measure(bench: Bench) -> Figures:
    """Both by turns."""
    backlog = bench.backlog(bench.records, form="avro")
    return bench.alternate(backlog, [partial(_ratchet, bench), partial(_streaming, bench)])


def _ratchet(bench: Bench, backlog: Backlog) -> dict[str, float]:
    seconds, _ = drained(bench.stack, backlog, append())
    check_rows(bench.url, append().name, backlog)
    return {RATCHET: seconds}


def _streaming(bench: Bench, backlog: Backlog) -> dict[str, float]:
    ends = bench.driver.append(backlog, "copy", bench.batch_size("copy"))
    check_rows(bench.url, APPENDED, backlog)
    return {STREAMING: ends[-1]}


WORK = Work(
    "Append from Avro",
    frozenset({"postgres", "kafka", "connect"}),
    measure,
    (Aim(RATCHET, "times as fast as", 2, STREAMING),),
)
