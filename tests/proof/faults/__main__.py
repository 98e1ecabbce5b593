"""The second half of `make faults`: each fault of servers, one after the other, while transactions are in flight.

`SEED=7 PART=2/4` does one part of four; a part goes on where it stopped.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from ratchet.dev.stack import CHECKOUT
from tests.acceptance.runs import MAINTENANCE
from tests.proof.parts import Part, Results, wide_console

from .endure import endure
from .fault import NotNow
from .kinds import fault, faults
from .shaken import Shaken
from .world import World

WHOLE = "whole"
ATTEMPTS = 3
"""So often a fault is tried that finds nothing to strike."""
HOME = CHECKOUT / ".state" / "faults"


def main() -> int:
    """The exit status: 1 if a fault has cost anything but time, or could not strike."""
    console, part = wide_console(), Part.asked()
    results = Results("faults", part)
    while not _is_through(console, results, part):
        console.print("the rest is endured by servers that start anew")
    return _report(console, list(results))


def _is_through(console: Console, results: Results, part: Part) -> bool:
    """Endure what is left; False where one has done harm, which might be taken for harm of the next."""
    home = HOME / f"servers-{part.number}"
    shutil.rmtree(home, ignore_errors=True)
    done = {found["kind"] for found in results}
    with World(home, say=lambda line: None) as world, Shaken(world) as line:
        todo = [one.kind for one in part.mine(faults(world, part.seed)) if one.kind not in done]
        console.print(f"{len(todo)} faults of servers to be endured in part {part}")
        line.find_dag(MAINTENANCE)
        with line.maintained():
            for kind in todo:
                line.reset()
                found = results.add(kind=kind, **_endured(world, line, kind, part.seed))
                console.print(f"{kind}: {found['state']}, {found['committed'] or 0:.0f} s", markup=False)
                if found["state"] != WHOLE:
                    return False
    return True


def _endured(world: World, line: Shaken, kind: str, seed: int) -> dict[str, Any]:
    for attempt in range(ATTEMPTS):
        try:
            recovery = endure(line, fault(world, kind, seed + attempt))
            return {"state": WHOLE, "committed": round(recovery.committed, 1), "ended": round(recovery.ended, 1)}
        except NotNow:
            line.let_go()
        except AssertionError as error:
            line.let_go()
            return {"state": f"{time.strftime('%H:%M:%S')}: {error}", "committed": None, "ended": None}
    return {"state": "it found nothing to strike", "committed": None, "ended": None}


def _report(console: Console, results: list[dict[str, Any]]) -> int:
    table = Table("fault", "all is committed after", "nothing runs after", "state")
    for found in sorted(results, key=lambda found: -(found["committed"] or 0)):
        seconds = [f"{found[name]:.1f} s" if found[name] is not None else "" for name in ("committed", "ended")]
        table.add_row(found["kind"], *seconds, found["state"])
    console.print(table)
    bad = [found for found in results if found["state"] != WHOLE]
    parts = sorted({found["part"] for found in results})
    console.print(f"{len(results)} faults of servers, {len(bad)} with harm; parts {', '.join(parts)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
