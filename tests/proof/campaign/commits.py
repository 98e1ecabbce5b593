"""Commits as they come, by a clock that nobody steps: the ledger is asked again and again which there are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg
from psycopg.rows import namedtuple_row

from .record import CommitRecord, FaultRecord

EVERY = 0.25
BACK = 1000
"""So many events back a commit may turn up that was not there before."""
_QUERY = """
    select e.id, e.hash, e.pipeline, e.txid, e.revision, e.epoch, t.records,
           extract(epoch from t.committed_at - t.prepared_at)::float8 as waited,
           (select coalesce(sum(try_number), 0) from ratchet.slices s
            where (s.pipeline, s.txid) = (e.pipeline, e.txid)) as tries
    from ratchet.events e join ratchet.transactions t using (pipeline, txid, revision)
    where e.move = 'COMMITTED' and e.id > (select max(id) from ratchet.events) - %s order by e.id
"""


@dataclass
class Commits:
    """Every commit since it was started; `at` is when it was seen."""

    url: str
    clock: Callable[[], float]
    seen: list[CommitRecord] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _known: set[str] = field(default_factory=set)
    """By hash: a ledger that was restored gives an event's number again."""

    def __enter__(self) -> Commits:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="commits")
        self._looking = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        """Raises what has ended the looking before its time."""
        self._is_over.set()
        self._pool.shutdown()
        self._looking.result()

    def last(self) -> dict[str, float]:
        """{pipeline: when it has committed last}, of those that have."""
        return {commit.pipeline: commit.at for commit in list(self.seen)}

    def _run(self) -> None:
        while not self._is_over.wait(EVERY):
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(self.url, autocommit=True, row_factory=namedtuple_row, connect_timeout=5) as conn,
            ):
                self._look(conn)
                while not self._is_over.wait(EVERY):
                    self._look(conn)

    def _look(self, conn: psycopg.Connection) -> None:
        # Of two pipelines that commit at once, the greater number may be seen first.
        rows = conn.execute(_QUERY, [BACK]).fetchall()
        at = self.clock()
        for row in rows:
            if row.hash in self._known:
                continue
            self._known.add(row.hash)
            # Where PostgreSQL's clock was stepped in between, the wait is less than nothing.
            waited = max(row.waited or 0.0, 0.0)
            self.seen.append(
                CommitRecord(row.pipeline, row.txid, row.revision, at, row.records or 0, row.epoch, row.tries, waited)
            )

    def recovered(self, fault: FaultRecord) -> float | None:
        """Seconds from the end of a fault until every pipeline that still commits after it has done so again."""
        first = {}
        for commit in self.seen:
            if fault.healed_at is not None and commit.at >= fault.healed_at:
                first.setdefault(commit.pipeline, commit.at - fault.healed_at)
        return round(max(first.values()), 2) if first else None
