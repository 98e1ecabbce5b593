"""A trial: points are armed, a scenario is set going, and the pipeline has to finish by itself."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import psycopg

from .points import Armoury, Kill, Point
from .scenarios import scenarios_of
from .victim import Victim

SECONDS = 600
"""Within which a pipeline must have finished after the last kill."""
QUIET = 4
"""So long nothing is left to do when a point that nobody has come to is given up,"""
MINUTE = 80
"""and so long where maintenance would come to it, which does so every minute."""


@dataclass(frozen=True)
class Outcome:
    """What became of one armed point: `seconds` from the kill until nothing was left to do; `faults` are the line's."""

    point: Point
    scenario: str
    line: str
    kill: Kill | None
    seconds: float | None
    faults: tuple[str, ...]

    @property
    def state(self) -> str:
        """In one word or line."""
        if self.faults:
            return "; ".join(self.faults)
        return "whole" if self.kill else "not reached"


@dataclass
class _Armed:
    point: Point
    kill: Kill | None = None
    recovered: float | None = None


@dataclass
class Trial:
    """One run of a scenario by one pipeline; it is over when nothing has been left to do for `quiet` seconds."""

    line: Victim
    armoury: Armoury
    scenario: str
    points: Iterable[Point]
    quiet: float = QUIET
    _armed: dict[str, _Armed] = field(default_factory=dict)

    def run(self) -> list[Outcome]:
        """What became of each armed point."""
        faults = self.finish()
        return [
            Outcome(a.point, self.scenario, self.line.name, a.kill, a.recovered, tuple(faults))
            for a in self._armed.values()
        ]

    def finish(self) -> list[str]:
        """Arm, set going, wait until nothing is left to do, and say what is not as it should be then."""
        for point in self.points:
            self._armed[self.armoury.arm(self.line.name, point)] = _Armed(point)
        try:
            scenarios_of(self.line.name)[self.scenario](self.line)
            unrest = self._wait()
        finally:
            for ticket in self._armed:
                self.armoury.disarm(self.line.name, ticket)
            self.line.forget()
        return [f"not finished within {SECONDS} s: {unrest}"] if unrest else self.line.faults()

    def _wait(self) -> str | None:
        """What is left to do at the end, in a line; None if nothing is."""
        last_kill = quiet_since = time.time()
        unrest: str | None = "it has not been looked at"
        while time.time() < last_kill + SECONDS:
            began = time.time()
            unrest = self._unrest()
            last_kill = max(last_kill, self._look(began if unrest is None else None))
            if unrest is not None:
                quiet_since = time.time()
            elif time.time() - quiet_since > self._patience():
                return None
            time.sleep(2)
        return unrest

    def _look(self, whole_at: float | None) -> float:
        """Note who was killed, and who has recovered if all was whole at this time; when the last one was killed."""
        for ticket, armed in self._armed.items():
            armed.kill = armed.kill or self.armoury.kill(ticket)
            if armed.kill and armed.recovered is None and whole_at is not None and whole_at > armed.kill.at:
                armed.recovered = round(whole_at - armed.kill.at, 1)
        return max((a.kill.at for a in self._armed.values() if a.kill), default=0.0)

    def _patience(self) -> float:
        """How long nothing must have been left to do."""
        waits = [a.point for a in self._armed.values() if a.kill is None]
        return MINUTE if any(point.role == "maintenance" for point in waits) else self.quiet

    def _unrest(self) -> str | None:
        with suppress(psycopg.Error, httpx.HTTPError, AssertionError):
            self.line.tend()
            return self.line.unrest()
        return "it does not answer"
