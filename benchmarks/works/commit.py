"""The commit of a prepared Append: an eighth of the records, and ten times as many."""

from __future__ import annotations

import time

from benchmarks.bench import Aim, Bench, Figures, Work
from benchmarks.staged import Line
from benchmarks.table import check_range, checkpoint, empty
from ratchet.protocol.commit import Committed, commit

SMALL, LARGE = "commit of records/8", "commit of ten times as many"
TIMES = 10
"""How many times as many records the large transactions have."""


def measure(bench: Bench) -> Figures:
    """Commits of both sizes by turns, two for each run and one to warm up; nothing else is going on."""
    small = bench.records // 8
    seconds: Figures = {}
    with Line(bench.url, f"bench_commit_{time.time_ns() // 10**6}") as line:
        for number in range(2 * bench.runs + 1):
            for name, records in ((SMALL, small), (LARGE, TIMES * small)):
                before = dict(line.until)
                # Before, since nobody's commit follows a checkpoint at once and logs whole pages of the ledger.
                checkpoint(bench.url)
                claim = line.prepare(records, f"{number} {records}")
                started = time.monotonic()
                done = commit(line.ledger, line.spec, claim)
                took = time.monotonic() - started
                assert isinstance(done, Committed), done
                check_range(bench.url, line.spec.sinks[0].name, before, line.until)
                # Else the disk would fill up.
                empty(bench.url, line.rows)
                if number:
                    seconds.setdefault(name, []).append(took)
                    bench.tell(f"commit of {records:,} records: {took * 1000:.1f} ms")
    bench.notes["records of commits"] = [small, TIMES * small]
    return seconds


WORK = Work(
    "Commit of a prepared Append",
    frozenset({"postgres"}),
    measure,
    (
        Aim(SMALL, "seconds", 0.010),
        Aim(LARGE, "seconds", 0.010),
        Aim(LARGE, "times the time of", 1.25, SMALL),
    ),
)
