"""Live commits over 1,000 keys after more and more transactions, and revisions of keys with more and more deltas."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from statistics import median

import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.curves.curve import LITTLE, Curve, Points
from benchmarks.keyed import KeyedLine
from ratchet import Accumulate, Upsert
from ratchet.spec.parts import DeclaredSink

TRANSACTIONS = (0, 1_000, 10_000, 50_000)
DELTAS = (100, 1_000, 10_000, 100_000)
KEYS, HOT = 1_000, 8
"""How many keys a live transaction has, and a revision's."""
SHARE = 40_000_000
"""With so many records to be measured an old transaction has all keys, else its share of them; see the page."""
SAMPLES = 10


def _latest(name: str) -> DeclaredSink:
    return Upsert(name, key="k string", columns="a bigint")


def _newest(name: str) -> DeclaredSink:
    return Upsert(name, key="k string", columns="at bigint, a bigint", order="at")


def _totals(name: str) -> DeclaredSink:
    return Accumulate(name, key="k string", sum="a bigint", min="a bigint", max="a bigint", count="n")


LINES: tuple[tuple[str, Callable[[str], DeclaredSink], bool], ...] = (
    ("Upsert", _latest, False),
    ("Upsert, half deleted", _latest, True),
    ("by order", _newest, False),
    ("by order, half deleted", _newest, True),
    ("Accumulate", _totals, False),
)
"""Each sink, and whether each second visit of a key deletes it."""
Figures = dict[str, Points]
"""{what was measured: the points}."""


@cache
def live(bench: Bench) -> Figures:
    """Live commits, each of all keys, after so many transactions."""
    found: Figures = {}
    share = _share(bench.records)
    for title, make, deletes in LINES:
        with _line(bench, make, KEYS, deletes) as line:
            line.commit("first")
            for place in TRANSACTIONS if bench.records >= LITTLE else TRANSACTIONS[:2]:
                line.lengthen(place, share)
                for number in range(SAMPLES):
                    _note(found, title, place, line, line.commit(f"{place}-{number}"))
                bench.tell(f"{title}, {place:,} transactions before: {_said(found, title, place)}")
            _end(bench, line)
    return found


@cache
def revised(bench: Bench) -> Figures:
    """Revisions of a transaction in the middle of so many that all have the same few keys."""
    found: Figures = {}
    for title, make, deletes in LINES:
        for place in DELTAS if bench.records >= LITTLE else DELTAS[:2]:
            with _line(bench, make, HOT, deletes) as line:
                line.commit("first")
                line.lengthen(place // 2, HOT)
                line.commit("middle")
                line.lengthen(place, HOT)
                for number in range(1, SAMPLES + 1):
                    _note(found, title, place, line, line.commit("middle", number))
                bench.tell(f"{title}, {place:,} deltas of each key: {_said(found, title, place)}")
                _end(bench, line)
    return found


def _share(records: int) -> int:
    """How many of the keys an old transaction has."""
    most = max(1, min(KEYS, KEYS * records // SHARE))
    return max(share for share in range(1, most + 1) if KEYS % share == 0)


def _note(found: Figures, title: str, place: int, line: KeyedLine, took: float) -> None:
    for figure, value in (("took", took), ("held", line.locked), ("read", float(line.rows_read))):
        found.setdefault(figure, {}).setdefault(title, {}).setdefault(place, []).append(value)


def _said(found: Figures, title: str, place: int) -> str:
    took, held, read = (median(found[figure][title][place]) for figure in ("took", "held", "read"))
    return f"{took:.1f} ms, of which {held:.1f} under the commit lock, {read:,.0f} rows read"


def _line(bench: Bench, make: Callable[[str], DeclaredSink], keys: int, deletes: bool) -> KeyedLine:
    name = f"bench_keys_{time.time_ns() // 10**6}"
    return KeyedLine(bench.url, name, make(name), keys, deletes)


def _end(bench: Bench, line: KeyedLine) -> None:
    """Hold the state against the deltas, and be rid of both."""
    line.check()
    with psycopg.connect(bench.url, autocommit=True) as conn:
        for relation in (line.rows, line.sink.table):
            conn.execute(sql.SQL("truncate {}").format(sql.Identifier(*relation)))


def _curve(title: str, axis: str, unit: str, measure: Callable[[Bench], Figures], figure: str) -> Curve:
    return Curve(title, axis, unit, frozenset({"postgres"}), lambda bench: measure(bench)[figure])


CURVES = {
    "keys": _curve("A commit of 1,000 keys", "transactions before", "ms", live, "took"),
    "keys-read": _curve("Rows that a commit of 1,000 keys reads", "transactions before", "rows", live, "read"),
    "hot": _curve("A revision of eight hot keys", "deltas of each key", "ms", revised, "took"),
    "hot-held": _curve("How long such a revision holds up commits", "deltas of each key", "ms", revised, "held"),
    "hot-read": _curve("Rows that such a revision reads", "deltas of each key", "rows", revised, "read"),
}
"""Measured together, so that whoever asks for several of them waits once."""
