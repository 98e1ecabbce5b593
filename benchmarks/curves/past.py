"""What each step costs with up to a million transactions of ten partitions behind it: milliseconds, and rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache

import psycopg

from benchmarks.bench import Bench
from benchmarks.curves.curve import LITTLE, Curve, Points
from benchmarks.looked import looked_at
from benchmarks.past import grow
from benchmarks.staged import Line
from ratchet.errors import IllegalMove
from ratchet.ledger import history
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss, void
from ratchet.operate.snapshot.status import status
from ratchet.operate.upkeep import clean, upkeep
from ratchet.protocol.another import wants_another_run
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.plan import reached

PARTITIONS = 10
SIZES = (1_000, 10_000, 100_000, 1_000_000)
SAMPLES = 10
Step = tuple[str, Callable[[], object]]


def milliseconds(bench: Bench) -> Points:
    """How long each step takes."""
    return _measured(bench)[0]


def rows(bench: Bench) -> Points:
    """How many rows and entries of indexes of the ledger it looks at, which no other work on the machine changes."""
    return _measured(bench)[1]


@cache
def _measured(bench: Bench) -> tuple[Points, Points]:
    took: Points = {}
    seen: Points = {}
    with Line(bench.url, f"bench_past_{time.time_ns() // 10**6}", partitions=PARTITIONS) as line:
        commit(line.ledger, line.spec, line.prepare(PARTITIONS, "1"))
        settle(line.ledger, line.spec, Run(line.spec.name, "1"), succeeded=True)
        runs = iter(range(2, 10_000))
        for size in SIZES if bench.records >= LITTLE else (100, 1_000):
            _grow(bench, line, size)
            for name, step in _steps(line, next(runs), size):
                with looked_at(line.ledger) as looked:
                    step()
                seen.setdefault(name, {})[size] = [looked.rows]
            for _ in range(SAMPLES):
                for name, step in _steps(line, next(runs), size):
                    started = time.monotonic()
                    step()
                    took.setdefault(name, {}).setdefault(size, []).append(1_000 * (time.monotonic() - started))
            bench.tell(f"{size:,} transactions: {sum(of[size][0] for of in seen.values()):,.0f} rows in all steps")
    return took, seen


def _grow(bench: Bench, line: Line, size: int) -> None:
    with psycopg.connect(bench.url, autocommit=True) as conn:
        grow(bench.url, line.spec.name, size)
        conn.execute("vacuum analyze")
    line.until = dict.fromkeys(line.until, size)
    # A task is a session of its own, and knows no plan that was made for a short past.
    line.ledger.engine.dispose()


def _steps(line: Line, number: int, size: int) -> Iterator[Step]:
    """What a run does, and what maintenance and a person do, one after the other."""
    name, run = line.spec.name, Run(line.spec.name, str(number))
    of = line.ledger, line.spec
    begun: list[Begun] = []

    def allocate() -> None:
        found = begin(*of, run, line.offsets, lambda *_: True)
        assert isinstance(found, Begun) and found.how == "allocated", found
        begun.append(found)

    def mirrored() -> None:
        with line.ledger.begin() as conn:
            known = read_line(conn, name)
            assert known is not None and len(reached(conn, known)[1]) == PARTITIONS

    def told() -> None:
        with line.ledger.begin() as conn:
            assert history.read(conn, name, size // 2)

    def repeated() -> None:
        found = begin(*of, Run(name, f"1+{size // 2}"), line.offsets, lambda *_: True)
        assert isinstance(found, Skipped), found

    def lost() -> None:
        with suppress(IllegalMove):
            accept_loss(*of, line.offsets, "none", "bench", dry_run=True)

    line.arrive(PARTITIONS)
    yield "begin", allocate
    yield "next", lambda: wants_another_run(*of, line.offsets, lambda *_: True)
    yield "try and vote", lambda: line.process(begun[0])
    yield "status", lambda: status(line.ledger, name)
    yield "void --dry-run", lambda: void(*of, begun[0].claim.txid, "none", "bench", dry_run=True)
    yield "commit", lambda: isinstance(commit(*of, begun[0].claim), Committed)
    yield "settle", lambda: settle(*of, run, succeeded=True)
    yield "upkeep", lambda: list(upkeep(*of, lambda *_: True))
    yield "clean", lambda: list(clean(*of))
    yield "mirror", mirrored
    yield "history TXID", told
    yield "begin of an old run", repeated
    yield "accept-loss --dry-run", lost


TITLE = "Transactions before"
CURVE = Curve(f"{TITLE}: time of a step", "transactions", "ms", frozenset({"postgres"}), milliseconds)
ROWS = Curve(f"{TITLE}: rows that a step looks at", "transactions", "rows", frozenset({"postgres"}), rows)
