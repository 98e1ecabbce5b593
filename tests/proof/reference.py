"""What the sinks must hold: a transform whose result is known beforehand, and its fold in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cache

from ratchet import Accumulate, Append, Json, Pipeline, Topic, Upsert
from ratchet.spec.pipeline import DEAD_LETTERS

KEYS = ("x", "y", "z", None)
ROWS, TOTALS, LATEST, NEWEST = "rich_rows", "rich_totals", "rich_latest", "rich_newest"

RICH = Pipeline(
    name="rich",
    source=Topic("t", key="k string", value=Json("a bigint")),
    transform="tests.ledger.staging:rows_of",
    sinks=[
        Append(ROWS, columns="a bigint"),
        Accumulate(TOTALS, key="k string", sum="a bigint", min="a bigint", max="a bigint", count="n"),
        Upsert(LATEST, key="k string", columns="a bigint"),
        Upsert(NEWEST, key="k string", columns="at bigint, a bigint", order="at"),
    ],
    max_records=12,
    slice_records=5,
    max_in_flight=32,
    keep_deltas=timedelta(0),
)

Made = dict[str, list[dict]]
"""{sink: rows}, as they are staged but for the position of their record."""
Make = Callable[[int, int], Made]
"""What a transform makes of the record at (partition, offset)."""


@cache
def transform(version: object, partition: int, offset: int) -> Made:
    """What a version of the code makes of a record: some give nothing, some a dead letter, and keys come and go."""
    dice = random.Random(f"{version} {partition} {offset}")
    if dice.random() < 0.1:
        return {DEAD_LETTERS: [{"key": None, "value": b"?", "headers": None, "error": f"not for {version}"}]}
    a = dice.choice([None, *range(-5, 6)])
    made: Made = {}
    if dice.random() < 0.8:
        made[ROWS] = [{"a": a}]
    if dice.random() < 0.6:
        made[TOTALS] = [{"k": dice.choice(KEYS), "a_sum": a, "a_min": a, "a_max": a, "n": 1}]
    if dice.random() < 0.6:
        # Without an order column a key must stay in its partition.
        key = None if partition == 0 and dice.random() < 0.3 else f"{partition}-{dice.choice(KEYS)}"
        gone = dice.random() < 0.3
        made[LATEST] = [{"k": key, "a": None if gone else a, "_deleted": gone}]
    if dice.random() < 0.6:
        at = dice.choice([None, 1, 2, 3])
        # A deletion has an order, by which it is before or after other records of its key.
        gone = at is not None and dice.random() < 0.3
        made[NEWEST] = [{"k": dice.choice(KEYS), "at": at, "a": None if gone else a, "_deleted": gone}]
    return made


def staged_rows(spec: Pipeline, positions: Iterable[tuple[int, int]], make: Make) -> Made:
    """The rows that a slice stages for each sink of the spec and for the dead letters."""
    kinds = {sink.name: sink for sink in spec.sinks}
    staged: Made = {name: [] for name in (*kinds, DEAD_LETTERS)}
    for partition, offset in positions:
        place = {"_partition": partition, "_offset": offset}
        for name, rows in make(partition, offset).items():
            if name == DEAD_LETTERS:
                staged[name] += [{**place, **row} for row in rows]
            elif isinstance(kinds[name], Accumulate):
                staged[name] += rows
            else:
                staged[name] += [{**place, "_n": 0, **row} for row in rows]
    return staged


class Fold:
    """The sinks as they must be, folded from nothing."""

    def __init__(self) -> None:
        self._deltas: dict[int, Made] = {}

    def put(self, txid: int, positions: Iterable[tuple[int, int]], make: Make) -> None:
        """A transaction's delta, in place of an older one."""
        delta: Made = defaultdict(list)
        for partition, offset in sorted(positions):
            for sink, rows in make(partition, offset).items():
                delta[sink] += [{**row, "p": partition, "o": offset, "t": txid} for row in rows]
        self._deltas[txid] = delta

    def contents(self, spec: Pipeline) -> dict[str, list[tuple]]:
        """Every row that readers must see, by sink, sorted; the dead letters are (partition, offset, txid, error)."""
        names = [*(sink.name for sink in spec.sinks), DEAD_LETTERS]
        return {name: sorted(_FOLDS[name](self._of(name)), key=repr) for name in names}

    def _of(self, sink: str) -> list[dict]:
        return [row for txid in sorted(self._deltas) for row in self._deltas[txid][sink]]


def _rows(deltas: list[dict]) -> list[tuple]:
    return [(r["a"], "t", r["p"], r["o"], 0, r["t"]) for r in deltas]


def _totals(deltas: list[dict]) -> list[tuple]:
    of: dict = defaultdict(list)
    for row in deltas:
        of[row["k"]].append(row)
    return [(key, *_measures([r["a_sum"] for r in rows]), len(rows), rows[-1]["t"]) for key, rows in of.items()]


def _measures(values: list) -> tuple:
    there = [v for v in values if v is not None]
    return (sum(there), min(there), max(there)) if there else (None, None, None)


def _latest(deltas: list[dict]) -> list[tuple]:
    last = {row["k"]: row for row in deltas}
    return [(key, r["a"], r["p"], r["o"], r["t"]) for key, r in last.items() if not r["_deleted"]]


def _newest(deltas: list[dict]) -> list[tuple]:
    def rank(row: dict) -> tuple:
        return row["at"] is not None, row["at"] or 0, row["t"], row["o"], row["p"]

    best: dict = {}
    for row in deltas:
        if row["k"] not in best or rank(row) > rank(best[row["k"]]):
            best[row["k"]] = row
    return [(key, r["at"], r["a"], r["p"], r["o"], r["t"]) for key, r in best.items() if not r["_deleted"]]


def _dead_letters(deltas: list[dict]) -> list[tuple]:
    return [(r["p"], r["o"], r["t"], r["error"]) for r in deltas]


_FOLDS = {ROWS: _rows, TOTALS: _totals, LATEST: _latest, NEWEST: _newest, DEAD_LETTERS: _dead_letters}
