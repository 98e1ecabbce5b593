"""A line that has a history, whose spec changes; and what its sinks must show, in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from ratchet import Accumulate, Append, Json, Pipeline, Topic, Upsert
from ratchet.errors import OtherCode
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import slices, transactions
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.operate.migrate import differences, migrate
from ratchet.operate.verify import verify
from ratchet.protocol.begin import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.compact import compact
from ratchet.spec.parts import DeclaredSink
from tests.databases import Databases
from tests.proof.reference import Make

from .staging import Log, do, positions_of, start

KEYS = ("x", "y", "z", "u", "v", "w")

GROWN = Pipeline(
    name="grown",
    source=Topic("t", key="k string", value=Json("a bigint, b string, c int, at bigint, j string")),
    transform="tests.ledger.staging:rows_of",
    sinks=[
        Append("every", columns="a bigint, b string not null"),
        Append("mine", columns="a bigint, b string", existing=True),
        Accumulate("totals", key="k string", sum="a bigint", max="a bigint", count="n"),
        Accumulate("least", key="k string, j string not null", min="c int"),
        Upsert("latest", key="k string", columns="a bigint, b string not null"),
        Upsert("newest", key="k string", columns="at bigint, a bigint, b string not null", order="at"),
    ],
    max_records=10,
    slice_records=5,
    max_in_flight=4,
)

TOMBSTONES = GROWN.model_copy(
    update={"source": GROWN.source.model_copy(update={"tombstones": "delete"}), "sinks": GROWN.sinks[:5]}
)
"""Without an order column; a tombstone deletes."""

SUMS = GROWN.model_copy(update={"sinks": [Accumulate("totals", key="k string", sum="a bigint", count="n")]})
"""Of a measure its sum alone, whose column is as wide for integers of any width."""

OWN = (
    "create table mine (a bigint, b text, _topic text not null, _partition int not null, _offset bigint not null, "
    "_n int not null, _txid bigint not null)"
)


def record(version: int, partition: int, offset: int) -> dict[str, Any]:
    """What a version of the code makes of a record: a value for each column that some sink may have, or have had."""
    dice = Random(f"{version} {partition} {offset}")
    # Without an order column a key must stay in its partition.
    key = None if partition == 0 and dice.random() < 0.2 else f"{partition}-{dice.choice(KEYS)}"
    value = dice.choice([None, *range(-4, 5)])
    return {
        "k": key,
        "a": value,
        "b": dice.choice([None, "p", "q"]),
        "c": dice.choice([None, 1, 2, 3]),
        "at": dice.choice([1, 2, 3]),
        "j": dice.choice(["u", "v"]),
        "gone": dice.random() < 0.25,
        "given": dice.random() < 0.85,
    }


FILLED = {"k": "none", "a": 0, "b": "none", "c": 0, "at": 0}
"""In place of a null where a spec allows none."""


def row_of(sink: DeclaredSink, made: dict[str, Any]) -> dict[str, Any]:
    """A record's row for a sink, as it is staged but for its position."""
    filled = {
        c.name: FILLED.get(c.name) if made[c.name] is None and not c.nullable else made[c.name] for c in sink.needed
    }
    if isinstance(sink, Accumulate):
        keys = {name: filled[name] for name in sink.key_names}
        counts = {sink.count: 1} if sink.count else {}
        return keys | {m: filled[m.rpartition("_")[0]] for m in sink.measures if m != sink.count} | counts
    if isinstance(sink, Upsert):
        stays = {*sink.key_names, sink.order}
        row = {name: value if name in stays or not made["gone"] else None for name, value in filled.items()}
        return {**row, "_deleted": made["gone"]}
    return filled


def make_of(spec: Pipeline, version: int) -> Make:
    """What a spec and a version of the code make of a record."""

    def make(partition: int, offset: int) -> dict[str, list[dict]]:
        made = record(version, partition, offset)
        return {sink.name: [row_of(sink, made)] for sink in spec.sinks} if made["given"] else {}

    return make


@dataclass
class Grown:
    """A line, and the rows that each transaction has last given to each sink."""

    ledger: Ledger
    spec: Pipeline
    log: Log = field(default_factory=lambda: Log(stable={0: 500, 1: 500}))
    deltas: dict[str, dict[int, list[dict]]] = field(default_factory=lambda: defaultdict(dict))
    runs: int = 0
    owners: dict[int, str] = field(default_factory=dict)
    clears: int = 0
    left: list[tuple[str, Begun]] = field(default_factory=list)
    dropped: dict[str, DeclaredSink] = field(default_factory=dict)

    def begin(self) -> tuple[str, Begun]:
        """A new run; what is abandoned comes first."""
        self.runs += 1
        run = f"run {self.runs}"
        begun = start(self.ledger, self.spec, self.log, run)
        self.owners[begun.claim.txid] = run
        return run, begun

    def committed(self, version: int = 1) -> int:
        """A transaction from its begin to its end."""
        run, begun = self.begin()
        self.finish(begun, version)
        settle(self.ledger, self.spec, Run("dag", run), succeeded=True)
        return begun.claim.txid

    def leave(self) -> None:
        """Two that are not finished: one prepared, one of which a slice has voted."""
        for voted in (2, 1):
            run, begun = self.begin()
            do(self.ledger, self.spec, replace(begun, slices=begun.slices[:voted]), make_of(self.spec, 1))
            self.left.append((run, begun))

    def go_on(self, before: Pipeline) -> None:
        """What was left is finished by this spec alone; then comes a new one, and an old one is revised."""
        if self.spec.code_hash != before.code_hash:
            with pytest.raises(OtherCode, match="nothing was changed"):
                commit(self.ledger, self.spec, self.left[0][1].claim)
        for run, _ in self.left:
            settle(self.ledger, self.spec, Run("dag", run), succeeded=False, reason="lost")
        assert [self.committed() for _ in self.left] == [begun.claim.txid for _, begun in self.left]
        self.left = []
        self.revised(self.committed(3) - 3, 4)
        self.is_right()

    def revised(self, txid: int, version: int) -> None:
        """A clear of the transaction's run."""
        self.clears += 1
        begun = start(self.ledger, self.spec, self.log, self.owners[txid], self.clears)
        assert begun.claim.txid == txid
        self.finish(begun, version)
        settle(self.ledger, self.spec, Run("dag", self.owners[txid], self.clears), succeeded=True)

    def voided(self) -> None:
        run, begun = self.begin()
        void(self.ledger, self.spec, begun.claim.txid, "for the test", "me")
        settle(self.ledger, self.spec, Run("dag", run), succeeded=False, reason="voided")

    def finish(self, begun: Begun, version: int) -> None:
        """Process it and commit."""
        open_ = [part for part in begun.slices if not self._has_voted(begun, part.number)]
        do(self.ledger, self.spec, replace(begun, slices=open_), make_of(self.spec, version))
        done = commit(self.ledger, self.spec, begun.claim)
        assert isinstance(done, Committed) and begun.claim.txid in done.txids, done
        self.note(begun, version)

    def _has_voted(self, begun: Begun, number: int) -> bool:
        c = slices.c
        mine = (c.txid == begun.claim.txid, c.epoch == begun.claim.epoch, c.slice == number)
        with self.ledger.begin() as conn:
            return conn.execute(select(c.voted_at).where(*mine)).scalar_one() is not None

    def note(self, begun: Begun, version: int) -> None:
        make = make_of(self.spec, version)
        for sink in self.spec.sinks:
            rows = [(p, o, row) for p, o in positions_of(begun) for row in make(p, o).get(sink.name, [])]
            self.deltas[sink.name][begun.claim.txid] = [
                {**row, "_partition": p, "_offset": o, "_txid": begun.claim.txid} for p, o, row in rows
            ]

    def compacted(self, until: int) -> None:
        """Merge what was committed up to a transaction, as if it were old."""
        c = transactions.c
        old = func.clock_timestamp() - text("interval '90 days'")
        with self.ledger.begin() as conn:
            conn.execute(
                update(transactions).where(c.txid <= until, c.committed_at.is_not(None)).values(committed_at=old)
            )
            conn.execute(update(transactions).where(c.txid <= until).values(opened_at=old))
        compact(self.ledger, self.spec)

    def migrated(self, spec: Pipeline) -> None:
        """Go on with this spec; what is done is what was foreseen."""
        with self.ledger.snapshot() as conn:
            foreseen = differences(conn, spec)
        assert list(migrate(self.ledger.url, [spec]).sinks) == foreseen
        names = {sink.name for sink in spec.sinks}
        self.dropped |= {sink.name: sink for sink in self.spec.sinks}
        self.dropped = {name: sink for name, sink in self.dropped.items() if name not in names}
        self.spec = spec

    def faults(self) -> list[str]:
        return [fault for check in verify(self.ledger, self.spec) for fault in check.faults]

    def is_right(self) -> None:
        """All is verified, and readers see what they must, also of sinks that the spec has no more."""
        assert self.faults() == []
        for sink in (*self.spec.sinks, *self.dropped.values()):
            assert self.shown(sink) == self.wanted(sink), sink.name

    def shown(self, sink: DeclaredSink) -> list[str]:
        """Every row that readers see, in all columns that the sink has ever had."""
        with self.ledger.begin() as conn:
            rows = conn.execute(text(f"select * from {sink.name}")).mappings().all()  # noqa: S608
        return sorted(_line({name: row[name] for name in self._columns(sink)}) for row in rows)

    def wanted(self, sink: DeclaredSink) -> list[str]:
        """Every row that readers must see, folded from what each transaction has given."""
        columns = self._columns(sink)
        rows = [row for _, rows in sorted(self.deltas[sink.name].items()) for row in rows]
        folded = _FOLDS[type(sink)](sink, rows, columns)
        return sorted(_line({name: row.get(name) for name in columns}) for row in folded)

    def _columns(self, sink: DeclaredSink) -> list[str]:
        ever = {name for rows in self.deltas[sink.name].values() for row in rows for name in row}
        with self.ledger.begin() as conn:
            there = conn.execute(text(f"select * from {sink.name} limit 0")).keys()  # noqa: S608
        return [name for name in there if name in ever]


def _line(row: dict[str, Any]) -> str:
    return repr(sorted((name, int(v) if isinstance(v, Decimal) else v) for name, v in row.items()))


def _kept(sink: Append, rows: list[dict], columns: list[str]) -> Iterable[dict]:
    return rows


def _accumulated(sink: Accumulate, rows: list[dict], columns: list[str]) -> Iterable[dict]:
    of: dict[tuple, list[dict]] = defaultdict(list)
    for row in rows:
        of[tuple(row[k] for k in sink.key_names)].append(row)
    for key, mine in of.items():
        folded: dict[str, Any] = dict(zip(sink.key_names, key, strict=True))
        for name in (c for c in columns if c not in (*sink.key_names, "_txid")):
            values = [row[name] for row in mine if row.get(name) is not None]
            how = {"min": min, "max": max}.get(name.rpartition("_")[2], sum) if name != sink.count else sum
            folded[name] = how(values) if values else None
        yield {**folded, "_txid": mine[-1]["_txid"]}


def _upserted(sink: Upsert, rows: list[dict], columns: list[str]) -> Iterable[dict]:
    last: dict[tuple, tuple[tuple, dict]] = {}
    for row in rows:
        key = tuple(row[k] for k in sink.key_names)
        rank = (row[sink.order] if sink.order else 0, row["_txid"], row["_offset"], row["_partition"])
        if key not in last or rank >= last[key][0]:
            last[key] = rank, row
    return [row for _, row in last.values() if not row["_deleted"]]


_FOLDS: dict[type, Callable[[Any, list[dict], list[str]], Iterable[dict]]] = {
    Append: _kept,
    Accumulate: _accumulated,
    Upsert: _upserted,
}


def grow(ledger: Ledger, spec: Pipeline) -> Grown:
    """A line with transactions committed, revised, voided and merged; one is prepared, and one half done."""
    with ledger.begin() as conn:
        conn.execute(text(OWN))
    migrate(ledger.url, [spec])
    grown = Grown(ledger, spec)
    for _ in range(2):
        grown.committed()
    grown.voided()
    grown.committed()
    grown.revised(2, 2)
    grown.compacted(1)
    grown.is_right()
    grown.leave()
    return grown


@contextmanager
def copied(databases: Databases, spec: Pipeline, grow: Callable[[Grown], object], before: str = "") -> Iterator[Grown]:
    """A line as `grow` leaves it, behind this SQL, in a database of a test's own: it takes a second to grow, and a
    tenth to copy.
    """

    def fill(url: str) -> dict[str, Any]:
        with Ledger(url) as ledger:
            with ledger.begin() as conn:
                conn.execute(text(before))
            migrate(url, [spec])
            line = Grown(ledger, spec)
            grow(line)
        return {name: value for name, value in vars(line).items() if name != "ledger"}

    with databases.copied(f"{grow.__module__}.{grow.__qualname__}", fill) as (url, given), Ledger(url) as ledger:
        yield Grown(ledger, **given)
