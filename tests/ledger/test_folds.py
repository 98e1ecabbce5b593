"""States of sinks with keys, held against a fold in plain Python after random commits, revisions, voids, compactions.

The keys have nulls in one column or two, orders are equal or null, rows stand above the head, and commits come between
the folds of a revision.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from ratchet import Accumulate, Json, Pipeline, Topic, Upsert
from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.operate.verify import verify
from ratchet.protocol import commit as commit_module
from ratchet.protocol.begin import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.compact import compact
from ratchet.sinks.lookup import sinks_of

from .staging import Log, do, head, positions_of, start, state

SPEC = Pipeline(
    name="line",
    source=Topic("t", key="k string", value=Json("a bigint")),
    transform="tests.ledger.staging:rows_of",
    sinks=[
        Upsert("last", key="k string", columns="a bigint"),
        Upsert("pairs", key="k string, z int", columns="at string, a bigint", order="at"),
        Upsert("strict", key="k string not null", columns="at decimal(6,2) not null, a bigint", order="at"),
        Accumulate("pair_sums", key="z int, k string", sum="a bigint, d decimal(9,2)", min="at string", count="n"),
        Accumulate("most", key="k string not null", max="d decimal(9,2)"),
    ],
    max_records=20,
    slice_records=6,
    max_in_flight=8,
)
Row = dict[str, Any]
Rows = dict[str, list[Row]]


def made(version: object, partition: int, offset: int) -> Rows:
    """What one record gives for each sink; a few keys, so that nearly every transaction touches each."""
    dice = random.Random(f"{version} {partition} {offset}")
    a, d = dice.choice([None, *range(-3, 4)]), dice.choice([None, Decimal("-1.50"), Decimal("0.25"), Decimal("9.00")])
    k, z, at = dice.choice(["x", "y", None]), dice.choice([1, None]), dice.choice([None, "a", "b", "ä"])
    rows: Rows = {}
    if dice.random() < 0.7:
        # Without an order column a key must stay in its partition.
        gone = dice.random() < 0.4
        rows["last"] = [{"k": k and f"{partition}{k}", "a": None if gone else a, "_deleted": gone}]
        if k is None and partition:
            del rows["last"]
    if dice.random() < 0.7:
        gone = at is not None and dice.random() < 0.4
        rows["pairs"] = [{"k": k, "z": z, "at": at, "a": None if gone else a, "_deleted": gone}]
    if dice.random() < 0.7:
        gone = dice.random() < 0.4
        order = dice.choice([Decimal("1.00"), Decimal("1.10"), Decimal("-2.00")])
        rows["strict"] = [{"k": k or "", "at": order, "a": None if gone else a, "_deleted": gone}]
    if dice.random() < 0.7:
        rows["pair_sums"] = [{"z": z, "k": k, "a_sum": a, "d_sum": d, "at_min": at, "n": 1}]
        rows["most"] = [{"k": k or "", "d_max": d}]
    return rows


def folded(deltas: dict[int, list[tuple[int, int, Rows]]]) -> dict[str, list[tuple]]:
    """What every sink must show, as tuples in the order of its columns, sorted."""
    of: dict[str, dict[tuple, list[tuple[int, int, int, Row]]]] = defaultdict(lambda: defaultdict(list))
    for txid in sorted(deltas):
        for partition, offset, rows in deltas[txid]:
            for sink in SPEC.sinks:
                for row in rows.get(sink.name, []):
                    of[sink.name][tuple(row[c.name] for c in sink.key_columns)].append((txid, partition, offset, row))
    shown: dict[str, list[tuple]] = {}
    for sink in SPEC.sinks:
        fold = _last if isinstance(sink, Upsert) else _whole
        found = (fold(sink, key, rows) for key, rows in of[sink.name].items())
        shown[sink.name] = sorted((row for row in found if row is not None), key=repr)
    return shown


def _last(sink: Upsert, key: tuple, rows: list[tuple[int, int, int, Row]]) -> tuple | None:
    def rank(one: tuple[int, int, int, Row]) -> tuple:
        txid, partition, offset, row = one
        order = row[sink.order] if sink.order else None
        # Texts in the order of their bytes.
        order = order.encode() if isinstance(order, str) else order
        return (order is not None, *([order] if order is not None else []), txid, offset, partition)

    txid, partition, offset, row = max(rows, key=rank)
    return None if row["_deleted"] else (*key, *(row[c.name] for c in sink.fields), partition, offset, txid)


def _whole(sink: Accumulate, key: tuple, rows: list[tuple[int, int, int, Row]]) -> tuple:
    wholes = {"sum": sum, "min": partial(min, key=_bytes), "max": max}
    values = []
    for measure in sink.measures:
        there = [row[measure] for _, _, _, row in rows if row[measure] is not None]
        values.append(wholes.get(measure.rpartition("_")[2], sum)(there) if there else None)
    return (*key, *values, max(txid for txid, *_ in rows))


def _bytes(text: str) -> bytes:
    return text.encode()


class Line:
    """A line at work, and what its transactions' deltas are by now."""

    def __init__(self, ledger: Ledger, log: Log, dice: random.Random):
        self.ledger, self.log, self.dice = ledger, log, dice
        self.deltas: dict[int, list[tuple[int, int, Rows]]] = {}
        self.clears: dict[int, int] = defaultdict(int)
        self.waiting: list[tuple[Begun, list[tuple[int, int, Rows]]]] = []
        self.compacted = self.versions = 0

    def prepare(self, run: str, clear_number: int = 0) -> tuple[Begun, list[tuple[int, int, Rows]]]:
        self.versions += 1
        make = partial(made, self.versions)
        begun = start(self.ledger, SPEC, self.log, run, clear_number)
        do(self.ledger, SPEC, begun, make)
        return begun, [(p, o, make(p, o)) for p, o in sorted(positions_of(begun))]

    def ahead(self) -> None:
        """One more transaction, whose rows stand above the head."""
        self.log.stable = {p: until + self.dice.randrange(1, 9) for p, until in self.log.stable.items()}
        self.waiting.append(self.prepare(f"r{head(self.ledger) + len(self.waiting) + 1}"))

    def live(self) -> None:
        """One to three transactions, of which one may be voided; who is not committed goes with the first."""
        for _ in range(self.dice.choice([1, 1, 2, 3])):
            self.ahead()
        if self.dice.random() < 0.3:
            void(self.ledger, SPEC, self.dice.choice(self.waiting)[0].claim.txid, "for the test", "me")
        waiting, self.waiting = self.waiting, []
        for begun, delta in waiting:
            txid = begun.claim.txid
            assert isinstance(commit(self.ledger, SPEC, begun.claim), Committed)
            settle(self.ledger, SPEC, Run("dag", f"r{txid}"), succeeded=True)
            if state(self.ledger, txid) == State.COMMITTED:
                self.deltas[txid] = delta

    @property
    def revisable(self) -> list[int]:
        return [txid for txid in self.deltas if txid > self.compacted]

    def revise(self, meanwhile: Callable[[], None]) -> None:
        if len(self.waiting) < 3 and self.dice.random() < 0.6:
            self.ahead()
        txid = self.dice.choice(self.revisable)
        self.clears[txid] += 1
        begun, delta = self.prepare(f"r{txid}", self.clears[txid])
        meanwhile()
        assert isinstance(commit(self.ledger, SPEC, begun.claim), Committed)
        settle(self.ledger, SPEC, Run("dag", f"r{txid}", self.clears[txid]), succeeded=True)
        self.deltas[txid] = delta

    def compact(self) -> None:
        if compact(self.ledger, SPEC.model_copy(update={"keep_deltas": timedelta(0)})):
            self.compacted = head(self.ledger)

    def shown(self) -> dict[str, list[tuple]]:
        with self.ledger.begin() as conn:
            found = {sink.name: conn.execute(select(sink.target)).all() for sink in sinks_of(SPEC)[:-1]}
        return {name: sorted(map(tuple, rows), key=repr) for name, rows in found.items()}


@pytest.fixture
def migrated():
    return [SPEC], ""


@pytest.mark.invariant("I3", "I7")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.all) for seed in range(1, 6))])
def test_a_state_is_the_fold_of_its_deltas_whatever_is_committed_while_a_revision_folds(ledger, monkeypatch, seed):
    dice = random.Random(seed)
    line, whole = Line(ledger, Log(stable={0: 0, 1: 0}), dice), commit_module.lock_pipeline

    def between(conn, pipeline):
        """The revision has folded its keys up to the head, and does not have the commit lock yet."""
        monkeypatch.setattr(commit_module, "lock_pipeline", whole)
        line.live()
        return whole(conn, pipeline)

    def meanwhile() -> None:
        if dice.random() < 0.6:
            monkeypatch.setattr(commit_module, "lock_pipeline", between)

    line.live()
    for step in range(14):
        what = dice.choices(["live", "revise", "compact"], [3, 6 if line.revisable else 0, 1])[0]
        {"live": line.live, "revise": partial(line.revise, meanwhile), "compact": line.compact}[what]()
        assert line.shown() == folded(line.deltas), f"after step {step}, {what}"
    line.live()
    assert line.shown() == folded(line.deltas)
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []
