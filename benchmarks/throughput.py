"""`make bench`: how fast ratchet works beside others, and whether that is what is wanted; see docs/performance.md."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bench import Figures, Work
from benchmarks.command import HOME, asked, bench_of, console
from benchmarks.works import WORKS
from ratchet.dev.stack import CORES


def main() -> None:
    """Measure, print, and leave the figures in .state/bench/result.json."""
    chosen = asked(__doc__, "works", WORKS)
    out = console()
    works: dict[str, Any] = {}
    began = time.monotonic()
    servers = (WORKS[name].servers for name in chosen.names)
    with bench_of(chosen, servers, lambda line: out.print(line, markup=False)) as (stack, bench):
        for name in chosen.names:
            works[name] = _judged(WORKS[name], WORKS[name].measure(bench))
        memory = stack.peak_memory()
    result = {
        "records": chosen.records,
        "runs": chosen.runs,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "machine": {"cores": CORES, "system": platform.platform(), "python": platform.python_version()},
        "works": works,
        "notes": bench.notes,
        "peak_memory": memory,
    }
    (HOME / "result.json").write_text(json.dumps(result, indent=2))
    show(out, result)


def _judged(work: Work, figures: Figures) -> dict[str, Any]:
    """The figures of a work, their medians, and what its aims come to."""
    aims = [
        {**asdict(aim), "said": str(aim), "value": (value := aim.value(figures)), "is_met": aim.is_met(value)}
        for aim in work.aims
    ]
    medians = {name: median(of) for name, of in figures.items()}
    return {"title": work.title, "unit": work.unit, "figures": figures, "median": medians, "aims": aims}


def show(console: Console, result: dict[str, Any]) -> None:
    """Two tables: the figures of every contestant, and the aims."""
    times = Table(title=f"{result['records']:,} records, {result['runs']} runs, {result['minutes']} minutes")
    for heading in ("work", "contestant", "unit", "each run", "median"):
        times.add_column(heading, justify="right" if heading == "median" else "left")
    aims = Table(title="aims")
    for heading in ("work", "aim", "measured", "met"):
        aims.add_column(heading, justify="right" if heading == "measured" else "left")
    for work in result["works"].values():
        for name, each in work["figures"].items():
            shown = [f"{figure:.{3 if work['unit'] == 's' else 0}f}" for figure in (*each, work["median"][name])]
            times.add_row(work["title"], name, work["unit"], " ".join(shown[:-1]), shown[-1])
        for aim in work["aims"]:
            aims.add_row(work["title"], aim["said"], f"{aim['value']:.3g}", "yes" if aim["is_met"] else "NO")
    console.print(times)
    console.print(aims)
    for name, note in result["notes"].items():
        console.print(f"{name}: {note}", markup=False)
    said = ", ".join(f"{name} {held / 2**20:,.0f}" for name, held in result["peak_memory"].items())
    console.print(f"peak memory in MiB: {said}", markup=False)


if __name__ == "__main__":
    main()
