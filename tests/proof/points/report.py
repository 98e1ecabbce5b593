"""The report: what all parts of one seed have found, as a table, as JSON, and as lines that reproduce what failed."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .catalogue import Catalogue
from .points import Point
from .results import Result, Results


class Report:
    """Every point of the catalogue, and the best that is known of it: a fault outweighs what went well."""

    def __init__(self, catalogue: Catalogue, results: Results):
        self.results, self.found = results, list(results)
        self.by_point: dict[Point, Result | None] = {point: None for point in catalogue.reached}
        for result in self.found:
            known = self.by_point.get(result.point)
            if known is None or result.is_bad or (result.fired and not known.is_bad):
                self.by_point[result.point] = result

    @property
    def bad(self) -> list[Result]:
        """After which a pipeline was not whole."""
        return [result for result in self.by_point.values() if result is not None and result.is_bad]

    @property
    def open(self) -> list[Point]:
        """Points at which nothing has been killed so far."""
        return [point for point, result in self.by_point.items() if result is None or not result.fired]

    def show(self, console: Console) -> None:
        """Who was killed how often, and how long it took until all was committed and no run was active."""
        parts = sorted({result.part for result in self.found})
        title = f"commit {self.results.commit}, seed {self.results.seed}, parts {', '.join(parts)}"
        table = Table("killed", "points", "killed there", "not whole", "p50 s", "worst s", "worst at", title=title)
        for column in table.columns[1:-1]:
            column.justify = "right"
        rows: dict[str, list[Point]] = defaultdict(list)
        for point in self.by_point:
            rows[point.role].append(point)
        for role, points in sorted(rows.items()):
            known = [r for p in points if (r := self.by_point[p]) is not None and r.fired]
            timed = sorted((r for r in known if r.seconds is not None), key=lambda r: r.seconds)
            worst = timed[-1] if timed else None
            table.add_row(
                role,
                str(len(points)),
                str(len(known)),
                str(sum(r.is_bad for r in known)),
                f"{statistics.median(r.seconds for r in timed):.1f}" if timed else "",
                f"{worst.seconds:.1f}" if worst else "",
                str(worst.point).replace("[", r"\[") if worst else "",
            )
        console.print(table)
        for result in self.bad:
            console.print(f"not whole after {result.point}: {result.state}", markup=False)
            console.print(f"  SEED={result.seed} POINT='{result.point}' make faults", markup=False)

    def save(self, file: Path) -> None:
        """The same, point by point."""
        rows = [
            {
                **point._asdict(),
                "fired": bool(result and result.fired),
                "seconds": result.seconds if result else None,
                "state": result.state if result else "not tried",
                "scenario": result.scenario if result else None,
                "line": result.line if result else None,
                "part": result.part if result else None,
            }
            for point, result in sorted(self.by_point.items())
        ]
        said = {"commit": self.results.commit, "seed": self.results.seed, "points": rows}
        file.write_text(json.dumps(said, indent=1) + "\n")
