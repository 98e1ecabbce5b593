"""Readers: they look at the sinks while everything happens, and hold all that one snapshot shows against another.

One more reads what monitoring tools are told, which must not be ahead of what is committed.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from ratchet import Accumulate, Append, Pipeline, Upsert
from ratchet.errors import RatchetError
from ratchet.ledger.schema import DELTA_SCHEMA
from ratchet.source.kafka import Kafka
from ratchet.spec.pipeline import DEAD_LETTERS

from .restore import Committed

RECENT = 4
"""How many of the latest transactions a reader looks at, and as many others."""
PAUSE = (1.0, 5.0)
"""Seconds between two looks of a reader, at least."""
REST = 19
"""And so many times as long as it has looked: eight readers without a rest took two fifths of two processors, and the
longer the tables were, the more."""
WHOLE_EVERY = 30
"""One in so many readings holds a whole state against all of its deltas."""
SAME_ROWS = {"orders_sums": "orders_rows", "events_last": "events_rows"}
"""Sinks with keys that a transform gives the very rows which it also gives to another sink, as they are."""


@dataclass
class Readers:
    """So many readers of the pipelines' sinks; `torn` is what they have seen that no reader may see."""

    url: str
    kafka: dict[str, str]
    specs: list[Pipeline]
    count: int
    seed: int
    torn: list[str] = field(default_factory=list)
    snapshots: int = 0
    offsets: int = 0
    """Of partitions, as monitoring tools were told them."""
    _lost: Committed = field(default_factory=dict)
    """What had been committed, and told, before a backup came in place of the ledger."""
    _is_over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def restored(self, lost: Committed) -> None:
        """The ledger is an older one now; monitoring may have been told what was committed in the one that is gone."""
        with self._lock:
            self._lost = {place: max(offset, self._lost.get(place, 0)) for place, offset in lost.items()}

    def __enter__(self) -> Readers:
        self._pool = ThreadPoolExecutor(self.count + 1, thread_name_prefix="reader")
        choices = [random.Random(f"reader {self.seed} {number}") for number in range(self.count)]
        self._reading = [self._pool.submit(self._run, choice) for choice in choices] + [self._pool.submit(self._watch)]
        return self

    def __exit__(self, *_: object) -> None:
        """Raises what has ended a reader before its time."""
        self._is_over.set()
        self._pool.shutdown()
        for reading in self._reading:
            reading.result()

    def _run(self, choice: random.Random) -> None:
        while not self._is_over.wait(choice.uniform(0, 1)):
            with suppress(psycopg.OperationalError), psycopg.connect(self.url, row_factory=namedtuple_row) as conn:
                conn.isolation_level, conn.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
                looked = 0.0
                while not self._is_over.wait(max(choice.uniform(*PAUSE), REST * looked)):
                    started = time.monotonic()
                    self._read(conn, choice)
                    looked = time.monotonic() - started

    def _watch(self) -> None:
        with Kafka(self.kafka) as kafka:
            while not self._is_over.wait(PAUSE[1]):
                for spec in self.specs:
                    # Offsets first: what is committed only grows.
                    with suppress(RatchetError, psycopg.OperationalError):
                        shown = kafka.mirrored(f"ratchet-{spec.name}", spec.source.names)
                        told = {partition: at for (_, partition), at in shown.items()}
                        self._hold_offsets(spec.name, told)

    def _hold_offsets(self, name: str, told: dict[int, int]) -> None:
        with psycopg.connect(self.url, connect_timeout=5) as conn:
            rows = conn.execute(
                "select partition, max(until_offset) from ratchet.ranges r join ratchet.heads h using (pipeline) "
                "where pipeline = %s and r.txid <= h.txid group by partition",
                [name],
            )
            committed = dict(rows.fetchall())
        with self._lock:
            ahead = {
                partition: offset
                for partition, offset in told.items()
                if offset > max(committed.get(partition, 0), self._lost.get((name, partition), 0))
            }
            self.offsets += len(told)
            if ahead:
                self.torn.append(f"{name}: monitoring is told {ahead}, committed is {committed}")

    def _read(self, conn: psycopg.Connection, choice: random.Random) -> None:
        spec = choice.choice(self.specs)
        with conn.transaction():
            found = Reading(conn, spec, choice).faults()
        with self._lock:
            self.torn += found
            self.snapshots += 1


@dataclass
class Reading:
    """One look at one pipeline, in one snapshot."""

    conn: psycopg.Connection
    spec: Pipeline
    choice: random.Random

    def faults(self) -> list[str]:
        """What is torn, in lines: a sink that lacks rows of a committed transaction, or has others than the rest."""
        query = (
            "select txid as head, merged from ratchet.pipelines join ratchet.heads using (pipeline) where pipeline = %s"
        )
        line = self.conn.execute(query, [self.spec.name]).fetchone()
        if line is None or line.head == 0:
            return []
        where = f"{self.spec.name}, head {line.head}"
        found = [f"{where}: {fault}" for txid in self._chosen(line.head) for fault in self._of(txid, line.merged)]
        found += [f"{where}: {fault}" for fault in self._beyond(line.head)]
        if self.choice.randrange(WHOLE_EVERY) == 0:
            found += [f"{where}: {fault}" for fault in self._whole(line.head)]
        return found

    def _chosen(self, head: int) -> list[int]:
        recent = list(range(max(1, head - RECENT + 1), head + 1))
        return sorted({*recent, *(self.choice.randint(1, head) for _ in range(RECENT))})

    def _of(self, txid: int, merged: int) -> list[str]:
        """What each sink has of one transaction, against what was committed; up to `merged` deltas are of many."""
        row = self.conn.execute(
            "select applied, state from ratchet.transactions where pipeline = %s and txid = %s "
            "and state in ('COMMITTED', 'VOIDED') order by applied is not null desc, revision desc limit 1",
            [self.spec.name, txid],
        ).fetchone()
        if row is None:
            return [f"{txid} is before the head, and not committed"]
        applied: dict = row.applied or {}
        found = []
        for sink in [*self.spec.sinks, None]:
            name = sink.name if sink else DEAD_LETTERS
            committed = (applied.get(name) or {"rows": 0})["rows"]
            if sink is None or isinstance(sink, Append):
                rows = self._count(sink, txid)
                if rows != committed:
                    found.append(f"{name} has {rows} rows of {txid}, committed were {committed}")
            elif txid > merged and (fault := self._unlike(sink, txid, committed)):
                found.append(f"{name} has of {txid} {fault}, committed were {committed}")
        return found

    def _count(self, sink: Append | None, txid: int) -> int:
        if sink is None:
            query = sql.SQL("select count(*) as n from ratchet.dead_letters where pipeline = %s and txid = %s")
            return self.conn.execute(query, [self.spec.name, txid]).fetchone().n
        query = sql.SQL("select count(*) as n from {} where _txid = %s").format(_table(sink))
        return self.conn.execute(query, [txid]).fetchone().n

    def _unlike(self, sink: Accumulate | Upsert, txid: int, committed: int) -> str | None:
        """What the delta of a transaction comes to, if it cannot be what was committed."""
        query = sql.SQL("select {} from {} where _txid = %s").format
        counts = isinstance(sink, Accumulate) and sink.count
        rows = sql.SQL("sum({})::bigint").format(sql.Identifier(sink.count)) if counts else sql.NULL
        keys = sql.SQL(", ").join(map(sql.Identifier, sink.key_names))
        folded = sql.SQL("count(distinct ({}, 1)) as keys, {} as rows").format(keys, rows)
        delta = self.conn.execute(query(folded, _delta(sink)), [txid]).fetchone()
        # At least one row was written of each key, and of several writers there may be more.
        if not min(committed, 1) <= delta.keys <= committed:
            return f"{delta.keys} keys"
        beside = next((other for other in self.spec.sinks if other.name == SAME_ROWS.get(sink.name)), None)
        if beside is None:
            return None
        there = sql.SQL("count(distinct ({}, 1)) as keys, count(*) as rows").format(keys)
        rows = self.conn.execute(query(there, _table(beside)), [txid]).fetchone()
        same = delta.keys == rows.keys and delta.rows in (None, rows.rows)
        return None if same else f"{delta.rows} rows in {delta.keys} keys, {beside.name} {rows.rows} in {rows.keys}"

    def _beyond(self, head: int) -> list[str]:
        """No sink has anything of a transaction that is not committed."""
        found = []
        for sink in self.spec.sinks:
            query = sql.SQL("select count(*) as n from {} where _txid > %s").format(_table(sink))
            if rows := self.conn.execute(query, [head]).fetchone().n:
                found.append(f"{sink.name} has {rows} rows beyond the head")
        return found

    def _whole(self, head: int) -> list[str]:
        """A state with keys, against its deltas."""
        found = []
        for sink in self.spec.sinks:
            if isinstance(sink, Accumulate) and sink.count:
                count = sql.Identifier(sink.count)
                state = self._sum(count, _table(sink), head)
                deltas = self._sum(count, _delta(sink), head)
                if state != deltas:
                    found.append(f"{sink.name} counts {state}, its deltas {deltas}")
            elif isinstance(sink, Upsert):
                found += self._latest(sink)
        return found

    def _sum(self, column: sql.Identifier, table: sql.Identifier, head: int) -> int:
        query = sql.SQL("select coalesce(sum({}), 0)::bigint as n from {} where _txid <= %s").format(column, table)
        return self.conn.execute(query, [head]).fetchone().n

    def _latest(self, sink: Upsert) -> list[str]:
        """Every row of an Upsert is one of its deltas."""
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in ("_txid", *sink.key_names))
        # A null is like another here, and PostgreSQL hashes; by IS NOT DISTINCT FROM it would compare all with all.
        query = sql.SQL("select count(*) as n from (select {0} from {1} except select {0} from {2}) as missing").format(
            columns, _table(sink), _delta(sink)
        )
        rows = self.conn.execute(query).fetchone().n
        return [f"{sink.name} has {rows} rows that no delta has"] if rows else []


def _table(sink: Append | Accumulate | Upsert) -> sql.Identifier:
    return sql.Identifier(*sink.table)


def _delta(sink: Accumulate | Upsert) -> sql.Identifier:
    return sql.Identifier(DELTA_SCHEMA, ".".join(sink.table))
