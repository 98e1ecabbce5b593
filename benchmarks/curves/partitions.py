"""An Append of a topic with 1 to 200 partitions."""

from __future__ import annotations

from functools import partial

from benchmarks.backlog import Backlog
from benchmarks.bench import Bench
from benchmarks.curves.curve import Curve, Points, by_turns
from benchmarks.drain import drained
from benchmarks.table import append, check_rows

PARTITIONS = (1, 4, 20, 50, 100, 200)


def measure(bench: Bench) -> Points:
    """A quarter of the bench's records, in topics of as many partitions."""
    return by_turns(bench, "Append", {number: partial(_rate, bench, number) for number in PARTITIONS})


def _rate(bench: Bench, number: int) -> float:
    backlog = Backlog(bench.stack.kafka, bench.records // 4, partitions=number)
    backlog.fill()
    seconds, _ = drained(bench.stack, backlog, append())
    check_rows(bench.url, append().name, backlog)
    return backlog.records / seconds


CURVE = Curve(
    "Partitions of the topic", "partitions", "records/s", frozenset({"postgres", "kafka", "connect"}), measure
)
