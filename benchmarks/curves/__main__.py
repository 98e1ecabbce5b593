"""`make curves`: how the cost grows with what is larger or more; see docs/performance.md."""

from __future__ import annotations

import json
import time

from benchmarks.command import HOME, asked, bench_of, console
from benchmarks.curves import CURVES
from benchmarks.curves.curve import Points, drawn


def main() -> None:
    """Measure, and leave charts and tables in .state/bench/curves.md, and all figures in .state/bench/curves.json."""
    chosen = asked(__doc__, "curves", CURVES)
    out = console()

    def tell(line: str) -> None:
        out.print(line, markup=False)

    began = time.monotonic()
    found: dict[str, Points] = {}
    with bench_of(chosen, (CURVES[name].servers for name in chosen.names), tell) as (_, bench):
        for name in chosen.names:
            found[name] = CURVES[name].measure(bench)
            # One that takes long, or is broken off, does not take the others with it.
            charts = "\n\n".join(f"### {CURVES[n].title}\n\n{drawn(CURVES[n], found[n])}" for n in found)
            (HOME / "curves.md").write_text(f"{charts}\n")
            (HOME / "curves.json").write_text(json.dumps(found, indent=2))
            tell(drawn(CURVES[name], found[name]))
    tell(f"{(time.monotonic() - began) / 60:.0f} minutes; {HOME / 'curves.md'}")


if __name__ == "__main__":
    main()
