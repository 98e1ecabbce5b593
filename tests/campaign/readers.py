"""Readers: they look at the sinks while everything happens, each time in one snapshot, and hold all against another."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from ratchet.pipeline import DEAD_LETTERS, Accumulate, Append, Pipeline, Upsert
from ratchet.schema import DELTA_SCHEMA

RECENT = 4
"""How many of the latest transactions a reader looks at, and as many others."""
PAUSE = (1.0, 5.0)
"""Seconds between two looks of a reader: eight that looked without a rest took two fifths of two processors."""
WHOLE_EVERY = 30
"""One in so many readings holds a whole state against all of its deltas."""


@dataclass
class Readers:
    """So many readers of the pipelines' sinks; `torn` is what they have seen that no reader may see."""

    url: str
    specs: list[Pipeline]
    count: int
    seed: int
    torn: list[str] = field(default_factory=list)
    snapshots: int = 0
    _is_over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Readers:
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="reader")
        choices = [random.Random(f"reader {self.seed} {number}") for number in range(self.count)]
        self._reading = [self._pool.submit(self._run, choice) for choice in choices]
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
                while not self._is_over.wait(choice.uniform(*PAUSE)):
                    self._read(conn, choice)

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
        line = self.conn.execute("select head from ratchet.pipelines where pipeline = %s", [self.spec.name]).fetchone()
        if line is None or line.head == 0:
            return []
        where = f"{self.spec.name}, head {line.head}"
        found = [f"{where}: {fault}" for txid in self._chosen(line.head) for fault in self._of(txid)]
        found += [f"{where}: {fault}" for fault in self._beyond(line.head)]
        if self.choice.randrange(WHOLE_EVERY) == 0:
            found += [f"{where}: {fault}" for fault in self._whole()]
        return found

    def _chosen(self, head: int) -> list[int]:
        recent = list(range(max(1, head - RECENT + 1), head + 1))
        return sorted({*recent, *(self.choice.randint(1, head) for _ in range(RECENT))})

    def _of(self, txid: int) -> list[str]:
        """What each sink has of one transaction, against what was committed."""
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
            if sink is not None and not isinstance(sink, Append):
                continue
            rows = self._count(name, sink, txid)
            if rows != (applied.get(name) or {"rows": 0})["rows"]:
                found.append(f"{name} has {rows} rows of {txid}, committed were {applied.get(name)}")
        return found

    def _count(self, name: str, sink: Append | None, txid: int) -> int:
        if sink is None:
            query = sql.SQL("select count(*) as n from ratchet.dead_letters where pipeline = %s and txid = %s")
            return self.conn.execute(query, [self.spec.name, txid]).fetchone().n
        query = sql.SQL("select count(*) as n from {} where _txid = %s").format(_table(sink))
        return self.conn.execute(query, [txid]).fetchone().n

    def _beyond(self, head: int) -> list[str]:
        """No sink has anything of a transaction that is not committed."""
        found = []
        for sink in self.spec.sinks:
            query = sql.SQL("select count(*) as n from {} where _txid > %s").format(_table(sink))
            if rows := self.conn.execute(query, [head]).fetchone().n:
                found.append(f"{sink.name} has {rows} rows beyond the head")
        return found

    def _whole(self) -> list[str]:
        """A state with keys, against the sum of its deltas; the sinks that count the same, against one another."""
        found = []
        for sink in self.spec.sinks:
            if isinstance(sink, Accumulate) and sink.count:
                count = sql.Identifier(sink.count)
                state = self._sum(count, _table(sink))
                deltas = self._sum(count, sql.Identifier(DELTA_SCHEMA, ".".join(sink.table)))
                if state != deltas:
                    found.append(f"{sink.name} counts {state}, its deltas {deltas}")
            elif isinstance(sink, Upsert):
                found += self._latest(sink)
        return found

    def _sum(self, column: sql.Identifier, table: sql.Identifier) -> int:
        query = sql.SQL("select coalesce(sum({}), 0)::bigint as n from {}").format(column, table)
        return self.conn.execute(query).fetchone().n

    def _latest(self, sink: Upsert) -> list[str]:
        """Every row of an Upsert is one of its deltas."""
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in ("_txid", *(key.name for key in sink.keys)))
        # A null is like another here, and PostgreSQL hashes; by IS NOT DISTINCT FROM it would compare all with all.
        query = sql.SQL("select count(*) as n from (select {0} from {1} except select {0} from {2}) as missing").format(
            columns, _table(sink), sql.Identifier(DELTA_SCHEMA, ".".join(sink.table))
        )
        rows = self.conn.execute(query).fetchone().n
        return [f"{sink.name} has {rows} rows that no delta has"] if rows else []


def _table(sink: Append | Accumulate | Upsert) -> sql.Identifier:
    return sql.Identifier(*sink.table)
