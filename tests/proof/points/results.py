"""Results: what has become of each armed point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.proof import parts
from tests.proof.parts import Part

from .points import Point
from .trial import Outcome


@dataclass(frozen=True)
class Result:
    """What a run has found out about a point: whether somebody was killed there, and how the pipeline was after it."""

    commit: str
    seed: int
    part: str
    point: Point
    scenario: str
    line: str
    fired: bool
    seconds: float | None
    state: str

    @property
    def is_good(self) -> bool:
        """Killed there, and the pipeline is whole."""
        return self.fired and self.state == "whole"

    @property
    def is_bad(self) -> bool:
        """The pipeline is not whole."""
        return self.state not in ("whole", "not reached")


class Results:
    """Those of one seed of one commit, in `.state/points`; parts add to them, also at the same time."""

    def __init__(self, part: Part):
        self._found = parts.Results("points", part)
        self.commit, self.seed, self.directory = self._found.commit, part.seed, self._found.directory

    def add(self, outcomes: list[Outcome]) -> list[Result]:
        """Write down what has become of some points."""
        found = []
        for o in outcomes:
            said = {"scenario": o.scenario, "line": o.line, "fired": o.kill is not None, "seconds": o.seconds}
            said |= {"point": o.point.name, "side": o.point.side, "state": o.state}
            found.append(_read(self._found.add(**said)))
        return found

    def __iter__(self) -> Iterator[Result]:
        return map(_read, self._found)

    def done(self) -> set[Point]:
        """The points that need not be tried again: killed, whatever came of it."""
        return {result.point for result in self if result.fired}


def _read(said: dict[str, Any]) -> Result:
    point = Point(said["point"], said["side"])
    return Result(**{**{name: said[name] for name in said if name != "side"}, "point": point})
