"""A revision of a large Append while small transactions are committed: how long one of these is held up."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.bench import Aim, Bench, Figures, Work
from benchmarks.staged import Line
from benchmarks.table import check_range, checkpoint, empty
from ratchet.ledger.work import Claim
from ratchet.protocol.commit import Committed, commit

DELAYED, ALONE, ITSELF = "longest live commit meanwhile", "longest live commit before", "the revision's commit"
LIVE = 1_000
"""Records of a live transaction."""
BEFORE = 20
"""Live commits before the revision, for comparison."""


def measure(bench: Bench) -> Figures:
    """One revision a run, of 1.25 times the records, in a pipeline of its own."""
    seconds: Figures = {DELAYED: [], ALONE: [], ITSELF: []}
    for run in range(bench.runs):
        with Line(bench.url, f"bench_revision_{time.time_ns() // 10**6}") as line, ThreadPoolExecutor(1) as beside:
            first = line.prepare(bench.records * 5 // 4, "first")
            _commit(line, first)
            revision = line.revise("first")
            checkpoint(bench.url)
            before = [_live(line, f"before {n}") for n in range(BEFORE)]
            ended = threading.Event()

            def revise(line: Line = line, claim: Claim = revision, ended: threading.Event = ended) -> float:
                try:
                    return _commit(line, claim)
                finally:
                    ended.set()

            itself = beside.submit(revise)
            meanwhile: list[float] = []
            while not ended.is_set():
                meanwhile.append(_live(line, f"meanwhile {len(meanwhile)}"))
            took = {DELAYED: max(meanwhile), ALONE: max(before), ITSELF: itself.result()}
            check_range(bench.url, line.spec.sinks[0].name, dict.fromkeys(line.until, 0), line.until)
            empty(bench.url, line.rows)
        for name, of in took.items():
            seconds[name].append(of)
            bench.tell(f"run {run + 1}, {name}: {of:.3f} s")
        bench.tell(f"run {run + 1}: {len(meanwhile)} live commits meanwhile")
    return seconds


def _live(line: Line, run_id: str) -> float:
    """Seconds of the commit of a small transaction."""
    return _commit(line, line.prepare(LIVE, run_id))


def _commit(line: Line, claim: Claim) -> float:
    started = time.monotonic()
    done = commit(line.ledger, line.spec, claim)
    assert isinstance(done, Committed), done
    return time.monotonic() - started


WORK = Work("Revision of a large Append", frozenset({"postgres"}), measure, (Aim(DELAYED, "seconds", 1.0),))
