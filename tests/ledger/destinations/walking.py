"""Moves of a line with destinations by chance, some of which are detached at times, and fail."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ratchet.destinations.port import Destination, Owner, Reach
from ratchet.errors import DestinationUnreachable
from ratchet.ledger.connection import Ledger
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import Pipeline
from tests.proof.reference import Made

from .. import releasing
from ..releasing import Line
from ..staging import Log

STEPS = 12


class LineWalk(ABC):
    """A line whose destinations fail as `odds` says; `lost` counts how often somebody did it again for that."""

    often: ClassVar[tuple[float, ...]]
    """One of these is `odds` at each step."""
    anew = How.ANEW
    """How a destination comes back that is not to be sent what it lacks."""

    def __init__(self, seed: int, ledger: Ledger, log: Log):
        self.dice, self.ledger, self.log = random.Random(seed), ledger, log
        self.odds, self.lost = 0.0, 0
        self.runs: dict[int, str] = {}
        """{txid: the run that made it}, of those that were not cleared yet."""
        self.away: set[str] = set()

    def begin(self, spec: Pipeline, to: Iterable[Destination], monkeypatch: Any) -> None:
        """Have the line there, whose commits send."""
        self.spec, self.all = spec, list(to)
        migrate(self.ledger.url, [spec])
        self.line = Line(self.ledger, self.log, spec)
        self.log.stable = {0: 0, 1: 0}
        monkeypatch.setattr(releasing, "commit", lambda of, spec, claim: self.until(commit, of, spec, claim))

    @abstractmethod
    def first(self, partition: int, offset: int) -> Made:
        """What the transform makes of a record."""

    @abstractmethod
    def second(self, partition: int, offset: int) -> Made:
        """What another version of it makes of the same."""

    @abstractmethod
    def opens(self, destination: Destination, owner: Owner) -> Reach: ...

    @abstractmethod
    def check(self) -> None:
        """See that each destination that is not away has what readers see."""

    @property
    def moves(self) -> list[Callable[[], None]]:
        return [self.run, self.run, self.clear, self.clear, self.release, self.leave, self.come_back]

    def until(self, does: Callable[..., Any], *given: Any) -> Any:
        """Do it until nothing fails: whoever does it again finds what was done."""
        while True:
            try:
                return does(*given, self.opens)
            except DestinationUnreachable:
                self.lost += 1

    def at_times(self, does: Callable[..., Any], error: type[Exception] = OSError) -> Callable[..., Any]:
        def fails(*given: Any, **named: Any) -> Any:
            where = self.dice.random()
            if where < self.odds:
                raise error("it was lost before")
            done = does(*given, **named)
            if where > 1 - self.odds:
                raise error("its answer was lost")
            return done

        return fails

    def run(self) -> None:
        self.log.stable = {p: end + self.dice.randrange(1, 9) for p, end in self.log.stable.items()}
        begun = self.line.begin()
        assert isinstance(begun, Begun)
        self.line.finish(begun, self.first)
        self.runs[begun.claim.txid] = self.line.run.run_id

    def clear(self) -> None:
        if self.runs:
            txid = self.dice.choice(sorted(self.runs))
            self.line.clear(self.runs.pop(txid), self.dice.choice([self.first, self.second]))

    def release(self) -> None:
        if self.runs:
            for _ in self.line.ask().letters:
                self.line.one(self.second)

    def leave(self) -> None:
        to = self.dice.choice(self.all).address
        if to not in self.away:
            detach(self.ledger, self.spec.name, to, "for the test", "me")
            self.away.add(to)

    def come_back(self) -> None:
        if self.away:
            to, how = self.dice.choice(sorted(self.away)), self.dice.choice([How.ON, self.anew])
            self.until(attach, self.ledger, self.spec, to, how, "for the test", "me")
            self.away.remove(to)


def walked(walk: LineWalk) -> None:
    """Moves of a line by chance, until some have failed; then all that was left comes back."""
    walk.run()
    steps = 0
    while steps < STEPS or not walk.lost:
        walk.odds = walk.dice.choice(walk.often)
        walk.dice.choice(walk.moves)()
        walk.check()
        steps += 1
    walk.odds = 0
    while walk.away:
        walk.come_back()
    walk.check()
