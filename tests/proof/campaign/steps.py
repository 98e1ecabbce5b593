"""Processes that are killed at a step of theirs, whichever comes: the points that the hook has traced in this part."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from tests.proof.faults.fault import NotNow
from tests.proof.points.points import KILLABLE, Armoury, Point, is_killable, read_trace
from tests.until import until

WITHIN = 20
"""Seconds: points that nobody has come to by then are disarmed."""
AT_ONCE = 6
"""So many points are armed together, of any pipelines: most are passed once in a transaction."""


class Steps:
    """The points that each pipeline's processes pass, known from a while of tracing."""

    def __init__(self, directory: Path):
        self.armoury = Armoury(directory)
        self.of: dict[str, list[tuple[str, Point]]] = {}
        """{role: [(pipeline, point)]}."""
        self.armoury.trace.touch()

    def learn(self) -> None:
        """Take over what was traced, and trace no more."""
        found: dict[str, set[tuple[str, Point]]] = defaultdict(set)
        for passed in read_trace(self.armoury.trace):
            if is_killable(passed.point):
                found[passed.point.role].add((passed.pipeline, passed.point))
        self.armoury.trace.unlink()
        self.of = {role: sorted(points) for role, points in found.items()}


class KilledAtAStep:
    """A process of one role is killed before or after a step of its."""

    seconds = 0.0

    def __init__(self, steps: Steps, role: str, choice: random.Random):
        self.kind, self._role = f"{role} killed at a step", role
        self._steps, self._choice = steps, choice

    def strike(self) -> None:
        points = self._steps.of.get(self._role)
        if not points:
            raise NotNow
        armoury = self._steps.armoury
        chosen = self._choice.sample(points, min(AT_ONCE, len(points)))
        armed = [(pipeline, armoury.arm(pipeline, point)) for pipeline, point in chosen]
        try:
            until("a process is killed at a step", lambda: any(armoury.kill(ticket) for _, ticket in armed), WITHIN)
        except AssertionError:
            raise NotNow from None
        finally:
            for pipeline, ticket in armed:
                armoury.disarm(pipeline, ticket)

    def heal(self) -> None:
        """Whoever was killed is started again by those whose work it is."""


def killed_at_steps(steps: Steps, choice: random.Random) -> list[KilledAtAStep]:
    """One kind for each role."""
    return [KilledAtAStep(steps, role, choice) for role in KILLABLE]
