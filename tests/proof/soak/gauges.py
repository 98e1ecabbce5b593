"""What must stay flat while everything runs, and the look at a series that says whether it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil
import psycopg
from psycopg import sql

from ratchet.dev.stack import Stack

MIB = 2**20
BARS = "▁▂▃▄▅▆▇█"
PAGE, PAGES = 8192, 16
"""So many pages more than before are no bloat: a small table and its indexes grow by one at a time."""
_TABLES = """
    select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind = 'r' and n.nspname !~ '^pg_|^information_schema$|^ratchet_stage$' order by 1, 2
"""
_CATALOG = """
    select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'pg_catalog' and c.relkind = 'r'
"""
_COUNTS = {
    "PostgreSQL: sessions": "select count(*) from pg_stat_activity where backend_type = 'client backend'",
    "PostgreSQL: locks": "select count(distinct pid) from pg_locks where pid <> pg_backend_pid()",
    "ledger: tables and partitions": "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace "
    "where c.relkind in ('r', 'p') and n.nspname not like 'pg\\_%'",
    "ledger: staged tables": "select count(*) from pg_tables where schemaname = 'ratchet_stage'",
}


@dataclass(frozen=True)
class Kind:
    """A kind of gauge: how it is written, and by how much it may be more in the end and still be flat."""

    unit: str
    share: float
    slack: float


MEMORY = Kind("MiB", 0.10, 48)
FILES = Kind("", 0.10, 8)
COUNT = Kind("", 0.10, 6)
SIZE = Kind("MiB", 0.10, 4)


def row_of(rows: int) -> Kind:
    """What each of so many rows takes."""
    return Kind("B a row", 0.10, PAGES * PAGE / max(rows, 1))


@dataclass
class Gauge:
    """Everything that was measured of one thing."""

    name: str
    kind: Kind
    values: list[float] = field(default_factory=list)

    @property
    def middle(self) -> float:
        """The median of the second third: by then caches are full and pools are open."""
        third = len(self.values) // 3
        return median(self.values[third : 2 * third] or self.values)

    @property
    def end(self) -> float:
        """The median of the last third."""
        return median(self.values[2 * (len(self.values) // 3) :])

    @property
    def is_flat(self) -> bool:
        """Whether the end is no more than the middle, but for a tenth or what is too little to say anything."""
        return self.end <= self.middle + max(self.kind.share * self.middle, self.kind.slack)

    def drawn(self, width: int) -> str:
        """A line of bars from nothing to the most there was, each as high as the most of its stretch."""
        count, most = len(self.values), max(self.values, default=0) or 1
        edges = [count * bar // width for bar in range(width + 1)] if count > width else list(range(count + 1))
        stretches = [self.values[a:b] for a, b in pairwise(edges)]
        return "".join(BARS[round(max(part) / most * (len(BARS) - 1))] for part in stretches)


@dataclass
class Gauges:
    """All gauges of a stack, by name, as far as they were measured."""

    stack: Stack
    all: dict[str, Gauge] = field(default_factory=dict)

    def measure(self) -> None:
        """Add a value to each."""
        for name, kind, value in (*self._processes(), *self._database()):
            gauge = self.all.setdefault(name, Gauge(name, kind))
            gauge.kind = kind
            gauge.values.append(value)

    def _processes(self) -> Iterator[tuple[str, Kind, float]]:
        """Memory and open files of each server with its children."""
        for server, pid in sorted(self.stack.pids().items()):
            memory = files = 0
            leader = psutil.Process(pid)
            for process in (leader, *leader.children(recursive=True)):
                # Tasks and workers may end at any moment.
                with suppress(psutil.NoSuchProcess):
                    memory += _memory(process.pid)
                    files += process.num_fds()
            yield f"{server}: memory", MEMORY, memory / MIB
            yield f"{server}: open files", FILES, files

    def _database(self) -> Iterator[tuple[str, Kind, float]]:
        """Counts, and the bytes that each table takes for one of its rows: what is dead in it makes them more."""
        with psycopg.connect(self.stack.ledger_url, autocommit=True) as conn:
            for name, query in _COUNTS.items():
                yield name, COUNT, conn.execute(query).fetchone()[0]
            yield "PostgreSQL: its catalog", SIZE, float(conn.execute(_CATALOG).fetchone()[0]) / MIB
            for schema, table in conn.execute(_TABLES).fetchall():
                query = sql.SQL("select count(*), pg_total_relation_size({}::regclass) from {}")
                name = sql.Identifier(schema, table)
                rows, size = conn.execute(query.format(sql.Literal(name.as_string(conn)), name)).fetchone()
                yield f"{schema}.{table}", row_of(rows), size / max(rows, 1)


def _memory(pid: int) -> int:
    """The bytes of a process, a page that n have counted as one nth.

    Without PostgreSQL's shared buffers, which fill up to what they are set to. Raises psutil.NoSuchProcess.
    """
    try:
        said = dict(line.split()[:2] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    return (int(said["Pss:"]) - int(said["Pss_Shmem:"])) * 1024
