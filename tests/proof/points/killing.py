"""Killing: every point of a part is killed, many at once; each pipeline goes on with its own as soon as it can."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from .catalogue import Catalogue, shape_of
from .field import Field
from .points import Point
from .results import Result, Results
from .sidebyside import side_by_side
from .trial import Outcome, Trial

TOGETHER = 2
"""So many points of one role are armed at once for a pipeline: a task has three tries."""
ATTEMPTS = 6
"""A point that nobody has come to in so many trials is given up, and fails the run."""
ALONE_FROM = 3
"""From so many trials on, nothing else is armed beside it."""


UPSTREAM = frozenset({"begin", "process", "spark worker", "driver"})
"""Who works before a transaction can wait for its turn."""


@dataclass
class Agenda:
    """What is still to be killed; asked by one thread for each pipeline."""

    catalogue: Catalogue
    todo: list[Point]
    random: Random
    attempts: Counter[Point] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _taken: set[Point] = field(default_factory=set)
    _lines: set[str] = field(default_factory=set)
    """The pipelines that are at work."""
    _missed: Counter[tuple[Point, str]] = field(default_factory=Counter)
    """{(point, "shape:scenario"): how often nobody came to it there}."""

    def take(self, line: str) -> tuple[str, list[Point]] | None:
        """The scenario that a pipeline is to go through next, and the points that are armed there; None if none is."""
        with self._lock:
            self._lines.add(line)
            free = [p for p in self.todo if p not in self._taken]
            first = next((p for p in free if self._due(p, line)), None)
            if first is None:
                return None
            by = self._due(first, line)
            scenario = self.random.choices(list(by), weights=list(by.values()))[0]
            points = [first]
            if self.attempts[first] < ALONE_FROM:
                points += self._beside(first, free, line, scenario)
            self._taken.update(points)
            self.attempts.update(points)
            return scenario, points

    def give_back(self, outcomes: list[Outcome]) -> None:
        """Those that were not reached go to the end of the line, unless they have been tried often enough."""
        with self._lock:
            for outcome in outcomes:
                point = outcome.point
                self._taken.discard(point)
                self.todo.remove(point)
                if outcome.kill is None:
                    self._missed[point, f"{shape_of(outcome.line)}:{outcome.scenario}"] += 1
                    if self.attempts[point] < ATTEMPTS:
                        self.todo.append(point)

    def leave(self, line: str) -> None:
        """This pipeline takes nothing any more."""
        with self._lock:
            self._lines.discard(line)

    def is_done(self) -> bool:
        return not self.todo

    def can_come(self, line: str) -> bool:
        """Whether anything is left that this pipeline could be asked for, now or when others have given it back."""
        return any(self._scenarios(point, line) for point in list(self.todo))

    def _due(self, point: Point, line: str) -> dict[str, int]:
        """Of this pipeline's scenarios those in which the point was missed least often.

        What a pipeline passes only once in its life it passes nowhere else again, however often it is asked.
        """
        shapes = {shape_of(other) for other in self._lines}
        keys = [key for key in self.catalogue.reached[point] if key.partition(":")[0] in shapes]
        least = min((self._missed[point, key] for key in keys), default=0)
        return {
            scenario: count
            for scenario, count in self._scenarios(point, line).items()
            if self._missed[point, f"{shape_of(line)}:{scenario}"] == least
        }

    def _scenarios(self, point: Point, line: str) -> dict[str, int]:
        shape = shape_of(line) + ":"
        if point.role == "trigger" and any(p.role == "trigger" for p in self._taken):
            # It takes the waits of every pipeline with it, and half a minute to come back.
            return {}
        by = self.catalogue.reached[point]
        return {key.removeprefix(shape): count for key, count in by.items() if key.startswith(shape)}

    def _beside(self, first: Point, free: list[Point], line: str, scenario: str) -> list[Point]:
        """Others that are reached on the same way, each role with as many as it has tries for."""
        of_role, found = Counter([first.role]), []
        for point in free:
            room = 1 if point.role in ("trigger", "maintenance", "command") else TOGETHER
            fits = point != first and of_role[point.role] < room and self.attempts[point] < ALONE_FROM
            # Where the job that holds the line up is killed, nobody has to wait.
            if {point.role, *of_role} >= {"trigger"} and UPSTREAM & {point.role, *of_role}:
                fits = False
            if fits and scenario in self._due(point, line):
                of_role[point.role] += 1
                found.append(point)
        return found


class Killing:
    """One part, on a field of its own."""

    def __init__(self, field: Field, catalogue: Catalogue, results: Results, todo: list[Point]):
        self._field, self._results = field, results
        self.agenda = Agenda(catalogue, list(todo), Random(results.seed))
        self._deadline = float("inf")

    def run(self, tell: Callable[[list[Result]], None], deadline: float) -> None:
        """Kill what is to do, as far as it is begun before `deadline`; each pipeline tells its results as they come."""
        self._deadline = deadline
        side_by_side(lambda line: self._work(line, tell), self._field.victims)

    def _work(self, line: str, tell: Callable[[list[Result]], None]) -> None:
        try:
            self._try(line, tell)
        finally:
            self.agenda.leave(line)

    def _try(self, line: str, tell: Callable[[list[Result]], None]) -> None:
        """Trial after trial, until nothing is left for this pipeline, it is not whole, or the time is over."""
        while time.monotonic() < self._deadline and not self.agenda.is_done():
            taken = self.agenda.take(line)
            if taken is None:
                # What others have armed may come back.
                time.sleep(1)
                if not self.agenda.can_come(line):
                    return
                continue
            scenario, points = taken
            outcomes = Trial(self._field.victims[line], self._field.armoury, scenario, points).run()
            self.agenda.give_back(outcomes)
            tell(self._results.add(outcomes))
            if any(outcome.faults for outcome in outcomes):
                return
