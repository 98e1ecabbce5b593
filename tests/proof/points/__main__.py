"""`make faults`: every point is derived, then killed before and after, and the pipelines have to finish by themselves.

`SEED=7 PART=2/4 make faults` does one part of four; without PART all is one part. A part goes on where it stopped,
and takes an hour at most. `POINT="after commit: …"` kills at that one point alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from ratchet.dev.stack import CHECKOUT
from tests.proof.parts import Part, wide_console

from .catalogue import Catalogue, derive
from .field import field
from .killing import Killing
from .points import Point
from .report import Report
from .results import Result, Results

STATE = CHECKOUT / ".state" / "points"
SECONDS = 38 * 60
"""After these, no trial is begun in a part; the last trials and the faults of servers take the rest of the hour."""


def main() -> int:
    """The exit status: 1 if something is lost, doubled, unfinished, written past the hook, or never reached."""
    console, deadline = wide_console(), time.monotonic() + SECONDS
    part = Part.asked()
    results = Results(part)
    listed = STATE / f"catalogue-{results.commit}.json"
    with (STATE / "derive.lock").open("w") as lock:
        # Of two parts that are started together one derives for both.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not listed.exists() and not _derive(listed, console):
            return 1
    catalogue = Catalogue.load(listed)
    todo = _chosen(catalogue, os.environ.get("POINT")) or part.mine(catalogue.shuffled(part.seed))
    left = [p for p in todo if os.environ.get("POINT") or p not in results.done()]
    console.print(f"{len(catalogue.reached)} points and sides, {len(todo)} in this part, {len(left)} to be killed")
    if left:
        _kill(catalogue, results, part, left, deadline, console)
    report = Report(catalogue, results)
    report.show(console)
    saved = STATE / f"report-{results.commit}-{part.seed}.json"
    report.save(saved)
    missed = [p for p in todo if p in set(report.open)]
    for point in missed:
        console.print(f"nobody was killed {point}", markup=False)
    console.print(f"{len(report.open)} of all parts are open; the report is {saved}")
    return 1 if report.bad or missed else 0


def _chosen(catalogue: Catalogue, said: str | None) -> list[Point]:
    if not said:
        return []
    side, _, name = said.partition(" ")
    if (point := Point(name, side)) not in catalogue.reached:
        sys.exit(f"POINT={said!r}: there is no such point; write 'before …' or 'after …' as the report has it")
    return [point]


def _derive(listed: Path, console: Console) -> bool:
    """Let everything run once, and write down the catalogue unless something was written past the hook."""
    with field(_fresh("derive"), traced=True) as traced:
        derived = derive(traced, console.print)
    for said in derived.unseen:
        console.print(f"written past the hook by {said.application}: {said.statement}", markup=False)
    for group, count in derived.groups.items():
        console.print(f"offsets of consumer group {group} were set {count} times past the hook")
    for fault in derived.faults:
        console.print(f"with nobody killed: {fault}", markup=False)
    if derived.unseen or derived.groups or derived.faults:
        return False
    derived.catalogue.save(listed)
    return True


def _kill(
    catalogue: Catalogue, results: Results, part: Part, left: list[Point], deadline: float, console: Console
) -> None:
    started = time.monotonic()
    with field(_fresh(f"{part.number}-of-{part.of}")) as grounds:
        killing = Killing(grounds, catalogue, results, left)

        def tell(found: list[Result]) -> None:
            killed = [result for result in found if result.fired]
            minutes = (time.monotonic() - started) / 60
            slowest = max((r.seconds or 0 for r in killed), default=0)
            said = f"{len(killed)} killed, all whole again after {slowest:.0f} s"
            for bad in found[:1]:
                said = bad.state if bad.is_bad else said
            where = f"{found[0].line} {found[0].scenario}" if found else ""
            console.print(f"{minutes:5.1f} min, {len(killing.agenda.todo):4} to go: {where}: {said}", markup=False)

        killing.run(tell, deadline)


def _fresh(name: str) -> Path:
    """A directory for servers that start anew; what the last ones have left is looked at until then."""
    home = STATE / f"servers-{name}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    return home


if __name__ == "__main__":
    sys.exit(main())
