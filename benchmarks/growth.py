"""`make curves`: how the cost grows with what is larger or more; see docs/performance.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console

# A script's own directory comes first; the package is beside it.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.bench import Bench  # noqa: E402
from benchmarks.curves import CURVES  # noqa: E402
from benchmarks.curves.curve import drawn  # noqa: E402
from ratchet.dev.stack import CHECKOUT, Stack  # noqa: E402


def main() -> None:
    """Measure, and leave charts and tables in .state/bench/curves.md, and all figures in .state/bench/curves.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--curves", default=",".join(CURVES), help=f"some of {','.join(CURVES)}")
    chosen = parser.parse_args()
    names = chosen.curves.split(",")
    if unknown := [name for name in names if name not in CURVES]:
        parser.error(f"no curve is called {', '.join(unknown)}; there are {', '.join(CURVES)}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    home = CHECKOUT / ".state" / "bench"
    servers = frozenset().union(*(CURVES[name].servers for name in names))
    began = time.monotonic()
    found = {}
    with Stack(home, servers, lasting=True) as stack:
        with Bench(stack, chosen.records, chosen.runs, lambda line: console.print(line, markup=False)) as bench:
            for name in names:
                found[name] = CURVES[name].measure(bench)
                # One that takes long, or is broken off, does not take the others with it.
                charts = "\n\n".join(f"### {CURVES[n].title}\n\n{drawn(CURVES[n], found[n])}" for n in found)
                (home / "curves.md").write_text(f"{charts}\n")
                (home / "curves.json").write_text(json.dumps(found, indent=2))
                console.print(drawn(CURVES[name], found[name]), markup=False)
    console.print(f"{(time.monotonic() - began) / 60:.0f} minutes; {home / 'curves.md'}", markup=False)


if __name__ == "__main__":
    main()
