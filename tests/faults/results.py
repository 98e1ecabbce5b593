"""Results: a line of JSON for each armed point, written as it comes, so that a part goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ratchet.stack import CHECKOUT

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
    """The file of one seed of one commit; parts append to it, also at the same time."""

    def __init__(self, directory: Path, commit: str, seed: int):
        directory.mkdir(parents=True, exist_ok=True)
        self.commit, self.seed = commit, seed
        self.file = directory / f"points-{commit}-{seed}.jsonl"

    def add(self, part: str, outcomes: list[Outcome]) -> list[Result]:
        """Write down what has become of some points."""
        found = [
            Result(self.commit, self.seed, part, o.point, o.scenario, o.line, o.kill is not None, o.seconds, o.state)
            for o in outcomes
        ]
        with self.file.open("a") as file:
            for result in found:
                said = {**result.__dict__, "point": result.point.name, "side": result.point.side}
                file.write(json.dumps(said) + "\n")
        return found

    def __iter__(self) -> Iterator[Result]:
        if not self.file.exists():
            return
        for line in self.file.read_text().splitlines():
            said = json.loads(line)
            said["point"] = Point(said["point"], said.pop("side"))
            yield Result(**said)

    def done(self) -> set[Point]:
        """The points that need not be tried again: killed, whatever came of it."""
        return {result.point for result in self if result.fired}


def commit() -> str:
    """The checkout's commit, in twelve digits, with a plus where files of it have been changed since."""
    said = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=CHECKOUT, capture_output=True, text=True)
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=CHECKOUT, capture_output=True, text=True)
    return (said.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")
