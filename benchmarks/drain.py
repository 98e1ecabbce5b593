"""The project itself: its own begin, process and commit, driven by threads in place of Airflow."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from pyspark.sql import SparkSession
from sqlalchemy import select

from benchmarks.backlog import Backlog
from benchmarks.table import renew, spec_of
from ratchet.dev.stack import Stack
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import events, slices, transactions
from ratchet.ledger.states import State
from ratchet.ledger.work import Claim, Run
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.follow import Open, nowhere
from ratchet.protocol.process import process_slice
from ratchet.protocol.votes import NothingToDo, take_try
from ratchet.source.kafka import Kafka
from ratchet.source.offsets import KnownLogs, TopicOffsets
from ratchet.spark.engine import connect_session, shared_session
from ratchet.spark.servers import Servers
from ratchet.spark.slice import run_slice
from ratchet.spec.parts import DeclaredSink
from ratchet.spec.pipeline import Pipeline
from ratchet.transforms.kinds import Kind, kind_of

SLOTS = 2
"""Slices that are worked on at once: one for each core."""
SESSION = "bench"
"""All runs share one kept session, as the runs of one pipeline do."""


@dataclass
class Drain:
    """Empties the backlog of one pipeline; `seconds` sums what each step took over all transactions.

    `until` is where each partition ends for now.
    """

    ledger_url: str
    kafka: dict[str, str]
    spark_url: str
    spec: Pipeline
    until: dict[int, int] | None = None
    opens: Open = nowhere
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock, self._mine = threading.Lock(), threading.local()
        self._code = self.spec.code_hash

    def run(self) -> float:
        """Drain it all; seconds from the first begin to the last commit."""
        with (
            Ledger(self.ledger_url) as self._ledger,
            Kafka(self.kafka) as self._brokers,
            ExitStack() as self._sessions,
            ThreadPoolExecutor(SLOTS) as self._slots,
            ThreadPoolExecutor(self.spec.max_in_flight) as runs,
        ):
            # The barrier makes each thread open its own session before the clock starts.
            ready = threading.Barrier(SLOTS)
            list(self._slots.map(lambda _: (self._session(), ready.wait()), range(SLOTS)))
            started = time.monotonic()
            for future in [runs.submit(self._loop, number) for number in range(self.spec.max_in_flight)]:
                future.result()
            return self._last_commit - started

    def from_ledger(self) -> dict[str, float]:
        """Seconds per transaction by the ledger's own word: a slice's steps over the slots, and the commit."""
        e, s, t = events.c, slices.c, transactions.c
        with Ledger(self.ledger_url) as ledger, ledger.begin() as conn:
            votes = conn.execute(select(s.seconds).where(s.pipeline == self.spec.name)).scalars().all()
            commits = conn.execute(
                select(e.detail).where(e.pipeline == self.spec.name, e.move == str(State.COMMITTED))
            ).scalars()
            inside = [detail["seconds"] for detail in commits]
            waits = conn.execute(select(t.committed_at - t.prepared_at).where(t.pipeline == self.spec.name)).scalars()
            after = [wait.total_seconds() for wait in waits]
        said: dict[str, float] = {}
        for vote in votes:
            for step, seconds in vote.items():
                said[step] = said.get(step, 0.0) + seconds / SLOTS
        said["in commit"], said["wait"] = sum(inside), max(0.0, sum(after) - sum(inside))
        said |= {step: seconds for step, seconds in self.seconds.items() if step in ("begin", "commit")}
        said |= {step: seconds / SLOTS for step, seconds in self.seconds.items() if step in ("try", "process")}
        return {step: seconds / len(inside) for step, seconds in said.items()}

    def _loop(self, number: int) -> None:
        """Runs, one after the other, until there is nothing left."""
        while True:
            run = Run(self.spec.name, f"bench_{number}_{time.monotonic_ns()}")
            began = self._timed(
                "begin",
                lambda run=run: begin(self._ledger, self.spec, run, self._offsets, lambda *_: True),
            )
            if not isinstance(began, Begun):
                return
            jobs = [self._slots.submit(self._slice, began.claim, part.number) for part in began.slices]
            for job in jobs:
                job.result()
            self._commit(began.claim)

    def _offsets(self, before: datetime | None, known: KnownLogs | None) -> TopicOffsets:
        # One client for all threads; it is not made for two at once.
        with self._lock:
            found = self._brokers.offsets(self.spec.source, before, known)
        return found if self.until is None else replace(found, stable=self.until)

    def _slice(self, claim: Claim, number: int) -> None:
        work = self._timed("try", lambda: take_try(self._ledger, self.spec, claim, number))
        if isinstance(work, NothingToDo):
            raise RuntimeError(work.message)
        session = self._session()
        run = partial(run_slice, session, self.spec, work, self._ledger.url, Servers(self.kafka))
        self._timed("process", lambda: process_slice(self._ledger, self.spec, work, run))

    def _commit(self, claim: Claim) -> None:
        while True:
            started = time.monotonic()
            if isinstance(commit(self._ledger, self.spec, claim, self.opens), Committed):
                self._last_commit = time.monotonic()
                self._add("commit", self._last_commit - started)
                return
            time.sleep(0.05)

    def _session(self) -> SparkSession:
        if not hasattr(self._mine, "session"):
            with self._lock:
                if kind_of(self.spec) is Kind.FRAMES:
                    opening = connect_session(self.spark_url, SESSION, self._code)
                else:
                    opening = shared_session(self.spark_url, SESSION, self.spec.transform_hash)
                self._mine.session = self._sessions.enter_context(opening)
        return self._mine.session

    def _timed(self, step: str, do):
        started = time.monotonic()
        try:
            return do()
        finally:
            self._add(step, time.monotonic() - started)

    def _add(self, step: str, seconds: float) -> None:
        with self._lock:
            self.seconds[step] = self.seconds.get(step, 0.0) + seconds


def drained(
    stack: Stack,
    backlog: Backlog,
    *sinks: DeclaredSink,
    transform: str | None = None,
    until: dict[int, int] | None = None,
    spec: Pipeline | None = None,
    opens: Open = nowhere,
) -> tuple[float, Drain]:
    """Seconds of a pipeline from its first begin to its last commit, and the drain; a fresh one unless `spec` is it.

    Where it has destinations, which `opens` opens, to the moment at which the last of them has all.
    """
    if spec is None:
        spec = spec_of(f"bench_{time.time_ns() // 10**6}", backlog, *sinks, transform=transform)
        renew(stack.ledger_url, spec)
    drain = Drain(stack.ledger_url, stack.kafka, stack.spark, spec, until, opens)
    return drain.run(), drain
