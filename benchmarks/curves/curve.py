"""What all curves share: points along an axis, one or more lines over them, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.bench import Bench

LITTLE = 1_000_000
"""Of fewer records a bench only shows that it runs."""
Points = dict[str, dict[int, list[float]]]
"""{line: {place on the axis: the figure of each run}}."""


@dataclass(frozen=True)
class Curve:
    """What is varied and what is measured: the servers that it needs, and the words for both axes."""

    title: str
    axis: str
    unit: str
    servers: frozenset[str]
    measure: Callable[[Bench], Points]


def by_turns(bench: Bench, line: str, figures: Mapping[int, Callable[[], float]]) -> Points:
    """Measure each place on the axis as often as there are runs, by turns, after a turn each that does not count."""
    points: Points = {line: {}}
    for number in range(bench.runs + 1):
        for place, figure in figures.items():
            found = figure()
            if number:
                points[line].setdefault(place, []).append(found)
                bench.tell(f"run {number}, {line}, {place:,}: {found:,.4g}")
    return points


def drawn(curve: Curve, points: Mapping[str, Mapping[int, Sequence[float]]]) -> str:
    """The medians as a chart for Markdown, in the words of Mermaid, and as a table."""
    medians = {line: {place: median(figures) for place, figures in of.items()} for line, of in points.items()}
    places = list(next(iter(medians.values())))
    most = max(figure for of in medians.values() for figure in of.values())
    said = ["```mermaid", "xychart-beta", f'    title "{curve.title}"']
    said += [f'    x-axis "{curve.axis}" [{", ".join(map(_short, places))}]']
    said += [f'    y-axis "{curve.unit}" 0 --> {most:.0f}']
    said += [f"    line [{', '.join(f'{of[place]:.3f}' for place in places)}]" for of in medians.values()]
    said += ["```", "", f"| {curve.axis} | {' | '.join(f'{line}, {curve.unit}' for line in medians)} |"]
    said += [f"| --- |{' --- |' * len(medians)}"]
    said += [f"| {place:,} | {' | '.join(_figure(of[place]) for of in medians.values())} |" for place in places]
    return "\n".join(said)


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _short(number: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size and number % (size // 10) == 0:
            return f"{number / size:g}{letter}"
    return str(number)
