"""`make mutants`: small random changes of the protocol's code, and whether tests notice them.

Schedules are asked, then unit tests, then tests of the ledger with PostgreSQL alone: each only of what is left.

So many are drawn with SEED (MUTANTS=200), and 85 of 100 have to be noticed. `PART=2/4` does one part of four; a part
goes on where it stopped. The changes are cosmic-ray's, which is installed for itself, below `.state`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console

from ratchet.dev.stack import CHECKOUT
from tests.proof.parts import Part, Results, wide_console
from tests.proof.planted.checkout import Copy
from tests.proof.planted.layers import by_schedules, by_tests

STATE = CHECKOUT / ".state" / "mutants"
COSMIC_RAY = "cosmic-ray==8.7.0"
FILES = (
    *("ledger/connection.py", "ledger/transactions.py"),
    *(
        f"protocol/{what}.py"
        for what in "plan votes failures claims leases deadlines halts turns begin another commit".split()
    ),
    *(f"sinks/{what}.py" for what in ("stage", "append", "keyed", "accumulate", "upsert", "keys")),
)
"""Plan, ledger, stage and commit, and what they are made of."""
AT_LEAST = 0.85
TOGETHER = 2
UNIT = tuple(
    f"tests/unit/test_{what}.py"
    for what in "checksum pipelines properties_columns properties_plan properties_spec properties_vote values".split()
)
"""The unit tests of what is mutated."""
LEDGER = tuple(
    f"tests/ledger/test_{what}.py"
    for what in "begin commit gates losses moves refusals revisions roles schema verify doubles late_tries".split()
)
"""The quicker ones of the tests that need PostgreSQL and nothing else."""
SECONDS = 30
"""Of schedules for each mutant."""
LAYERS: dict[str, Callable[[Copy], str | None]] = {
    "schedules": lambda copy: by_schedules(copy, 1, "--seconds", str(SECONDS), "--jobs", "1"),
    "unit tests": lambda copy: by_tests(copy, *UNIT),
    "ledger tests": lambda copy: by_tests(copy, *LEDGER),
}


def main() -> int:
    """The exit status: 1 if too few are noticed."""
    console, part = wide_console(), Part.asked()
    drawn = _drawn(part)
    results = Results("mutants", part)
    known = {(found["file"], found["id"]) for found in results}
    todo = [mutant for mutant in part.mine(drawn) if (mutant["file"], mutant["id"]) not in known]
    console.print(f"{len(drawn)} mutants, {len(todo)} to be tried in part {part}")
    if todo:
        console.print("the untouched code comes first, which has to pass")
    copies: SimpleQueue[Copy] = SimpleQueue()
    for number in range(TOGETHER if todo else 0):
        copies.put(Copy(STATE / f"copy-{part.number}-{number}"))
    if todo and (failing := _untouched(copies)):
        console.print(f"the untouched code fails: {failing}")
        return 1
    started = time.monotonic()

    def one(mutant: dict[str, Any]) -> None:
        copy = copies.get()
        try:
            noticed, why = _noticed(copy, mutant)
        finally:
            copies.put(copy)
        said = {name: mutant[name] for name in ("file", "id", "line", "operator", "before", "after")}
        results.add(**said, noticed=noticed, why=why)
        minutes = (time.monotonic() - started) / 60
        where = f"{mutant['file']}:{mutant['line']}: {mutant['before']}  →  {mutant['after']}"
        seen = f"{noticed}: {why}" if noticed else "SURVIVES"
        console.print(f"{minutes:5.1f} min: {where}: {seen}", markup=False, soft_wrap=True)

    with ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(one, todo))
    return _report(console, list(results), drawn)


def _drawn(part: Part) -> list[dict[str, Any]]:
    """The sample, the same one for every part."""
    python = STATE / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", STATE / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", COSMIC_RAY], check=True)
    said = subprocess.run(
        [python, Path(__file__).with_name("mutate.py"), *FILES],
        cwd=CHECKOUT / "include" / "ratchet",
        capture_output=True,
        text=True,
        check=True,
    )
    every = [{**json.loads(line), "id": number} for number, line in enumerate(said.stdout.splitlines())]
    count = int(os.environ.get("MUTANTS") or 200)
    return random.Random(part.seed).sample(every, min(count, len(every)))


def _untouched(copies: SimpleQueue[Copy]) -> str | None:
    """What fails although nothing is changed, with as much at once as there will be; None if nothing does."""
    every = [copies.get() for _ in range(TOGETHER)]
    with ThreadPoolExecutor(TOGETHER) as pool:
        failing = [f"{who}: {why}" for who, why in pool.map(_who_fails, every) if who]
    for copy in every:
        copies.put(copy)
    return failing[0] if failing else None


def _noticed(copy: Copy, mutant: dict[str, Any]) -> tuple[str, str] | tuple[None, None]:
    """Who has noticed the mutant, and by what; None if nobody has."""
    file = copy.home / "include" / "ratchet" / mutant["file"]
    before = file.read_text()
    file.write_text(mutant["text"])
    try:
        return _who_fails(copy)
    finally:
        file.write_text(before)


def _who_fails(copy: Copy) -> tuple[str, str] | tuple[None, None]:
    """Which of the layers fails, and what of it; None if none does."""
    for name, ask in LAYERS.items():
        if why := ask(copy):
            return name, why
    return None, None


def _report(console: Console, results: list[dict[str, Any]], drawn: list[dict[str, Any]]) -> int:
    survivors = [found for found in results if not found["noticed"]]
    for found in survivors:
        console.print(
            f"{found['file']}:{found['line']}: {found['before']}  →  {found['after']}", markup=False, soft_wrap=True
        )
    by = ", ".join(f"{sum(found['noticed'] == who for found in results)} by {who}" for who in LAYERS)
    share = 1 - len(survivors) / max(1, len(results))
    console.print(
        f"{len(results)} of {len(drawn)} mutants were tried: {share:.1%} noticed, {by}; {len(survivors)} survive, above"
    )
    return 1 if share < AT_LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
