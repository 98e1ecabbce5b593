"""The catalogue: every point there is and which scenario comes to it, derived by letting all of them run once."""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .field import Field
from .points import Point, is_killable, read_trace
from .sidebyside import side_by_side
from .trial import MINUTE, QUIET, Trial
from .written import Logged, group_points, group_writes, unseen

SEQUENCES: dict[str, tuple[str, ...]] = {
    "connect_1": ("flow", "revised", "released", "refused", "gated", "lost"),
    "connect_2": ("flow", "halved", "left", "voided", "forgotten"),
    "connect_3": ("failed", "grown", "late", "aborted", "retried"),
    "compacting": ("flow", "lost"),
    "sending": ("flow", "revised", "released"),
    "keyed_1": ("flow", "rekeyed"),
    "keyed_2": ("flow", "rekeyed"),
    "chained": ("flow", "released"),
    "submit": ("alone", "refused", "failed"),
}
"""What each pipeline is asked to do, one after the other: every scenario of every shape."""


def shape_of(pipeline: str) -> str:
    """`connect`, `compacting`, `sending`, `keyed`, `chained` or `submit`."""
    return pipeline.partition("_")[0]


@dataclass(frozen=True)
class Catalogue:
    """{point: {"shape:scenario": how often it was passed there}}."""

    reached: dict[Point, dict[str, int]]

    def save(self, file: Path) -> None:
        rows = [{**point._asdict(), "reached": by} for point, by in sorted(self.reached.items())]
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(rows, indent=1))
        fresh.rename(file)

    @classmethod
    def load(cls, file: Path) -> Catalogue:
        return cls({Point(row["name"], row["side"]): row["reached"] for row in json.loads(file.read_text())})

    def shuffled(self, seed: int) -> list[Point]:
        """Every point, in the order in which the seed has them."""
        points = sorted(self.reached)
        random.Random(seed).shuffle(points)
        return points


@dataclass(frozen=True)
class Derived:
    """What letting everything run once has shown: the catalogue, and what was written past the hook."""

    catalogue: Catalogue
    unseen: list[Logged]
    groups: Counter[str]
    """{consumer group: writes that Kafka knows of and the trace does not}."""
    faults: list[str]


def derive(field: Field, say: Callable[[str], None], asked: dict[str, tuple[str, ...]] = SEQUENCES) -> Derived:
    """Let every scenario run once with nothing armed; the field is a traced one."""
    began: list[tuple[str, str, int]] = []
    faults: list[str] = []

    cores = threading.Semaphore(os.cpu_count() or 1)

    def go_through(line: str) -> None:
        for scenario in asked[line]:
            # Maintenance has a last look at each pipeline.
            quiet = MINUTE if scenario == asked[line][-1] else QUIET
            with cores:
                say(f"{line}: {scenario}")
                began.append((line, scenario, field.armoury.trace.stat().st_size))
                trial = Trial(field.victims[line], field.armoury, scenario, (), quiet)
                faults.extend(f"{line}, {scenario}: {fault}" for fault in trial.finish())

    side_by_side(go_through, asked)
    reached: dict[Point, Counter[str]] = defaultdict(Counter)
    scenario_of: dict[str, str] = {}
    marks = sorted(began, key=lambda mark: mark[2])
    for passed in read_trace(field.armoury.trace):
        while marks and marks[0][2] <= passed.at:
            line, scenario_of[line], _ = marks.pop(0)
        if passed.pipeline in scenario_of and is_killable(passed.point):
            reached[passed.point][f"{shape_of(passed.pipeline)}:{scenario_of[passed.pipeline]}"] += 1
    written, sets = unseen(field.postgres_log, field.armoury.trace), group_writes(field.stack.kafka)
    return Derived(
        Catalogue({point: dict(by) for point, by in reached.items()}),
        written,
        sets - group_points(field.armoury.trace),
        faults,
    )
