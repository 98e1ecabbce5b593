"""What the sinks must hold: a transform whose result is known beforehand, and its fold in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, cast

from ratchet import Accumulate, Append, Json, Pipeline, Topic, Upsert
from ratchet.sinks.port import Sink
from ratchet.spec.parts import DeclaredSink
from ratchet.spec.pipeline import DEAD_LETTERS

KEYS = ("x", "y", "z", None)
PER_TOPIC = 1_000_000
"""A partition of a line is its topic's number times this, and Kafka's partition; written down here once more, so that a
change of the product's numbers is noticed."""
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
Deltas = dict[int, list[dict]]
"""{txid: its rows of one sink, with the position of their record}."""


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
    """The sinks as they must be, folded from nothing; of several topics these are the names, by number."""

    def __init__(self, topics: Sequence[str] | None = None) -> None:
        self._topics = topics
        self._deltas: dict[str, Deltas] = defaultdict(dict)

    def put(self, spec: Pipeline, txid: int, positions: Iterable[tuple[int, int]], make: Make) -> None:
        """A transaction's delta, in place of an older one, in each sink that the spec has."""
        for sink in (*(sink.name for sink in spec.sinks), DEAD_LETTERS):
            self._deltas[sink][txid] = []
        for partition, offset in sorted(positions):
            topic = self._topics[partition // PER_TOPIC] if self._topics else spec.source.name
            place = {"_topic": topic, "_partition": partition, "_offset": offset, "_n": 0, "_txid": txid}
            for sink, rows in make(partition, offset).items():
                self._deltas[sink][txid] += [{**row, **place} for row in rows]

    def release(self, spec: Pipeline, txid: int, make: Make) -> None:
        """A transaction's dead letters give way to what they give now; the rest of its delta stays."""
        letters, self._deltas[DEAD_LETTERS][txid] = self._deltas[DEAD_LETTERS][txid], []
        before = {sink: of.pop(txid, []) for sink, of in self._deltas.items()}
        self.put(spec, txid, [(row["_partition"], row["_offset"]) for row in letters], make)
        for sink, rows in before.items():
            self._deltas[sink][txid] = rows + self._deltas[sink].get(txid, [])

    def expire(self, sink: str, until: int) -> None:
        """The rows of all transactions up to this one are gone."""
        self._deltas[sink] = {txid: rows for txid, rows in self._deltas[sink].items() if txid > until}

    def contents(self, sinks: Iterable[DeclaredSink]) -> dict[str, list[tuple]]:
        """Every row that readers must see, by sink, sorted; of dead letters (topic, partition, offset, txid, error).

        A row that was written before its sink had a column has null there.
        """
        folded = {sink.name: self._shown(sink) for sink in sinks}
        return {**folded, DEAD_LETTERS: sorted(_dead_letters(self._of(DEAD_LETTERS)), key=repr)}

    def _shown(self, sink: DeclaredSink) -> list[tuple]:
        rows = _FOLDS[type(sink)](sink, self._of(sink.name))
        return sorted((tuple(row.get(name) for name in shown(sink)) for row in rows), key=repr)

    def _of(self, sink: str) -> list[dict]:
        return [row for _, rows in sorted(self._deltas[sink].items()) for row in rows]


def shown(sink: DeclaredSink) -> list[str]:
    """The columns that readers see of a sink."""
    return [column.name for column in cast(Sink, sink).working.target.columns]


def _every(sink: Append, deltas: list[dict]) -> Iterable[dict]:
    # In a view a partition is Kafka's; in a table of one's own it is the line's, as in states.
    return deltas if sink.existing else [{**row, "_partition": row["_partition"] % PER_TOPIC} for row in deltas]


def _accumulated(sink: Accumulate, deltas: list[dict]) -> Iterable[dict]:
    of: dict = defaultdict(list)
    for row in deltas:
        of[tuple(row[key] for key in sink.key_names)].append(row)
    for rows in of.values():
        yield {**rows[-1], **{measure: whole(sink, measure, rows) for measure in sink.measures}}


def whole(sink: Accumulate, measure: str, rows: list[dict]) -> int | None:
    """What stands for a measure of all these rows."""
    there = [row[measure] for row in rows if row.get(measure) is not None]
    how = sum if measure == sink.count else {"sum": sum, "min": min, "max": max}[measure.rpartition("_")[2]]
    return how(there) if there else None


def _last(sink: Upsert, deltas: list[dict]) -> Iterable[dict]:
    def rank(row: dict) -> tuple:
        at = row[sink.order] if sink.order else None
        return at is not None, at or 0, row["_txid"], row["_offset"], row["_partition"]

    best: dict = {}
    for row in deltas:
        key = tuple(row[name] for name in sink.key_names)
        if key not in best or rank(row) > rank(best[key]):
            best[key] = row
    return [row for row in best.values() if not row["_deleted"]]


def _dead_letters(deltas: list[dict]) -> list[tuple]:
    return [
        (row["_topic"], row["_partition"] % PER_TOPIC, row["_offset"], row["_txid"], row["error"]) for row in deltas
    ]


_FOLDS: dict[type, Callable[[Any, list[dict]], Iterable[dict]]] = {
    Append: _every,
    Accumulate: _accumulated,
    Upsert: _last,
}
