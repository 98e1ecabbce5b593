"""The catalogue: every point there is and which scenario comes to it, derived by letting all of them run once."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .field import Field
from .points import Passed, Point, killable, read_trace
from .trial import Trial
from .witness import Logged, group_writes, unseen

ROUNDS: tuple[dict[str, str], ...] = (
    {
        "connect_1": "flow",
        "connect_2": "refused",
        "connect_3": "failed",
        "connect_4": "gated",
        "connect_5": "late",
        "connect_6": "lost",
        "compacting": "flow",
        "submit": "flow",
    },
    {
        "connect_1": "revised",
        "connect_2": "voided",
        "connect_3": "aborted",
        "connect_4": "retried",
        "connect_5": "left",
        "connect_6": "forgotten",
        "compacting": "lost",
        "submit": "refused",
    },
    {"connect_1": "halved", "connect_2": "flow", "submit": "failed"},
)
"""What each pipeline is asked to do, a round after the other: every scenario of every shape."""


def shape_of(pipeline: str) -> str:
    """`connect`, `compacting` or `submit`."""
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

    def part(self, seed: int, number: int, parts: int) -> list[Point]:
        """The points of one part, in the order in which the seed has them."""
        points = sorted(self.reached)
        random.Random(seed).shuffle(points)
        return points[number - 1 :: parts]


@dataclass(frozen=True)
class Derived:
    """What letting everything run once has shown: the catalogue, and what was written past the hook."""

    catalogue: Catalogue
    unseen: list[Logged]
    groups: Counter[str]
    """{consumer group: writes that Kafka knows of and the trace does not}."""
    faults: list[str]


def derive(field: Field, say: Callable[[str], None], rounds: tuple[dict[str, str], ...] = ROUNDS) -> Derived:
    """Let every scenario run once with nothing armed; the field is a traced one."""
    reached: dict[Point, Counter[str]] = defaultdict(Counter)
    faults: list[str] = []
    trace: list[Passed] = []
    for number, asked in enumerate(rounds, 1):
        say(f"round {number} of {len(rounds)}: {', '.join(f'{line} {what}' for line, what in asked.items())}")
        with ThreadPoolExecutor(len(asked)) as pool:
            waited = pool.map(lambda pair: _once(field, *pair), asked.items())
            faults += [fault for found in waited for fault in found]
        fresh = list(read_trace([field.armoury.trace]))[len(trace) :]
        trace += fresh
        for point, by in killable(fresh).items():
            for line, count in by.items():
                if line in asked:
                    reached[point][f"{shape_of(line)}:{asked[line]}"] += count
    sets = Counter(f"ratchet-{p.pipeline}" for p in trace if _sets_offsets(p))
    # What is traced is read before, and what is held against it after, or the present would look like an omission.
    written = unseen(field.postgres_log, read_trace([field.armoury.trace]))
    return Derived(
        Catalogue({point: dict(by) for point, by in reached.items()}),
        written,
        group_writes(field.stack.kafka) - sets,
        faults,
    )


def _sets_offsets(passed: Passed) -> bool:
    return passed.point.side == "before" and "SET the offsets of a consumer group" in passed.point.name


def _once(field: Field, line: str, scenario: str) -> list[str]:
    trial = Trial(field.victims[line], field.armoury, scenario, ())
    return [f"{line}, {scenario}: {fault}" for fault in trial.finish()]
