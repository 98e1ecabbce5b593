"""The demo's three kinds of sinks in one pass, with about as many keys as flights have, beside the Append alone."""

from __future__ import annotations

from functools import partial

from benchmarks.backlog import KINDS, Backlog, account
from benchmarks.bench import Aim, Bench, Figures, Work
from benchmarks.drain import drained
from benchmarks.table import append, check_rows, check_same
from benchmarks.works.accumulate import check_totals, totals
from ratchet import Upsert
from ratchet.spec.parts import DeclaredSink

THREE, ALONE = "Append, Accumulate and Upsert", "Append alone"
LAST = Upsert(
    "bench_last",
    key="account string, kind string",
    columns="id bigint, amount double, score int",
    order="id",
)


def measure(bench: Bench) -> Figures:
    """Both by turns."""
    three = (append(), totals("bench_totals"), LAST)
    contestants = [partial(_ratchet, bench, THREE, three), partial(_ratchet, bench, ALONE, (append(),))]
    return bench.alternate(bench.backlog(bench.records), contestants)


def _ratchet(bench: Bench, name: str, sinks: tuple[DeclaredSink, ...], backlog: Backlog) -> dict[str, float]:
    seconds, _ = drained(bench.stack, backlog, *sinks)
    check_rows(bench.url, append().name, backlog)
    if len(sinks) > 1:
        check_totals(bench, "bench_totals", backlog)
        _check_last(bench, backlog)
    return {name: seconds}


def _check_last(bench: Bench, backlog: Backlog) -> None:
    """StageMismatch unless the Upsert has the greatest id of each key."""
    greatest: dict[tuple[int, int], int] = {}
    kinds = backlog.ids % len(KINDS)
    # Later ids are greater, so the last one of a key stays.
    greatest.update(zip(zip(backlog.accounts.tolist(), kinds.tolist(), strict=True), backlog.ids.tolist(), strict=True))
    wanted = [(account(a), KINDS[k], last) for (a, k), last in greatest.items()]
    check_same(bench.url, LAST.name, ("account", "kind", "id"), wanted)


WORK = Work(
    "Three sinks in one pass",
    frozenset({"postgres", "kafka", "connect"}),
    measure,
    (Aim(THREE, "times the time of", 2, ALONE),),
)
