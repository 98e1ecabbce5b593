"""`make planted`: wrong versions of the protocol, one at a time, and which tests see each, and how soon.

The untouched code passes first. A mistake that nothing sees fails the target: it is a hole in the tests.
`PART=2/3 make planted` does one part of three; a part goes on where it stopped. `PLANT=lease` asks only for those whose
name has that in it.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from ratchet.dev.stack import CHECKOUT
from tests.proof.parts import Part, Results, wide_console
from tests.proof.planted.checkout import Copy, DoesNotFit
from tests.proof.planted.layers import ask
from tests.proof.planted.plant import Plant
from tests.proof.planted.plants import PLANTS

UNTOUCHED = "the untouched code"


def main() -> int:
    """The exit status: 1 if a mistake is seen by nothing, or cannot be planted, or the untouched code fails."""
    console = wide_console()
    part = Part.asked()
    results = Results("planted", part)
    mine = [plant for plant in part.mine(PLANTS) if os.environ.get("PLANT", "") in plant.name]
    copy = Copy(CHECKOUT / ".state" / "planted" / f"copy-{part.number}")
    untouched = Plant(UNTOUCHED, (), tuple(sorted({layer for plant in mine for layer in plant.layers})))
    started = time.monotonic()
    for plant in [untouched, *mine]:
        for layer in plant.layers:
            if any(_is_of(found, plant, layer, part) for found in results):
                continue
            try:
                with copy.with_planted(plant):
                    answer = ask(copy, layer, part.seed)
            except DoesNotFit as error:
                console.print(str(error), markup=False, soft_wrap=True)
                return 1
            said = f"seen after {answer.seconds:.0f} s: {answer.caught_by}" if answer.caught_by else "nothing is seen"
            minutes = (time.monotonic() - started) / 60
            console.print(f"{minutes:5.1f} min: {plant.name}: {layer}: {said}", markup=False, soft_wrap=True)
            if plant is untouched and answer.caught_by:
                # Not written down: whoever starts this again begins with it again.
                return 1
            results.add(plant=plant.name, layer=layer, caught_by=answer.caught_by, seconds=answer.seconds)
    return _report(console, list(results))


def _is_of(found: dict[str, Any], plant: Plant, layer: str, part: Part) -> bool:
    mine = plant.name != UNTOUCHED or found["part"] == str(part)
    return mine and (found["plant"], found["layer"]) == (plant.name, layer)


def _report(console: Console, results: list[dict[str, Any]]) -> int:
    """A line for each mistake that any part has planted by now."""
    table = Table("mistake", "seen by", "after", "what failed")
    holes = []
    for plant in PLANTS:
        of = [found for found in results if found["plant"] == plant.name]
        seen = [found for found in of if found["caught_by"]]
        if {found["layer"] for found in of} == set(plant.layers) and not seen:
            holes.append(plant.name)
        for found in seen:
            first = plant.name if found is seen[0] else ""
            table.add_row(first, found["layer"], f"{found['seconds']:.0f} s", found["caught_by"])
    console.print(table)
    commits = sorted({(found["commit"], found["seed"], found["part"]) for found in results})
    console.print("parts: " + ", ".join(f"{part} of {commit}, seed {seed}" for commit, seed, part in commits))
    done = len({found["plant"] for found in results} - {UNTOUCHED})
    console.print(f"{done} of {len(PLANTS)} mistakes were planted; seen by nothing: {', '.join(holes) or 'none'}")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
