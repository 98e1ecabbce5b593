"""A line whose sinks have keys, and go to destinations of each kind that takes keys."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from ratchet import Accumulate, Pipeline, Upsert
from ratchet.destinations.port import Destination, Owner, Reach
from ratchet.errors import DestinationUnreachable
from ratchet.ledger.connection import Ledger
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import follow
from ratchet.spec.parts import DeclaredSink
from tests.proof.reference import LATEST, NEWEST, RICH, TOTALS, Made, shown

from .. import releasing
from ..releasing import Line
from ..staging import Log
from .counting import counts_agree

STEPS = 12
KEY = "k string not null"
To = list[Destination]


def keyed(totals: To, latest: To, newest: To) -> Pipeline:
    """A pipeline with a sink of each kind that has keys, and what they go to."""
    sinks = [
        RICH.sinks[0],
        Accumulate(TOTALS, key=KEY, sum="a bigint", min="a bigint", max="a bigint", count="n", to=totals),
        Upsert(LATEST, key=KEY, columns="a bigint", to=latest),
        Upsert(NEWEST, key=KEY, columns="at bigint, a bigint", order="at", to=newest),
    ]
    return RICH.model_copy(update={"sinks": sinks, "max_in_flight": 4, "keep_deltas": timedelta(days=1)})


def with_keys(made: Made) -> Made:
    """The same rows, where the key that was null is a text."""
    return {
        name: [{**row, "k": row["k"] or "none"} if "k" in row else row for row in rows]
        for name, rows in made.items()
        if name != "own"
    }


def first(partition: int, offset: int) -> Made:
    return with_keys(releasing.first(partition, offset))


def second(partition: int, offset: int) -> Made:
    return with_keys(releasing.second(partition, offset))


class KeyedWalk(ABC):
    """A line whose destinations are detached at times, and fail as `odds` says."""

    anew = How.ANEW
    """How a destination comes back that is not to be sent what it lacks."""

    def __init__(self, seed: int, ledger: Ledger, log: Log, monkeypatch: Any):
        self.dice, self.ledger, self.log = random.Random(seed), ledger, log
        self.odds, self.lost = 0.0, 0
        self.spec = self.declared()
        self.to = {to: sink for sink in self.spec.sinks for to in sink.destinations}
        migrate(ledger.url, [self.spec])
        self.line = Line(ledger, log, self.spec)
        log.stable = {0: 0, 1: 0}
        self.runs: dict[int, str] = {}
        self.away: set[str] = set()
        self.fail(monkeypatch)
        monkeypatch.setattr(releasing, "commit", lambda of, spec, claim: self.until(commit, of, spec, claim))

    @abstractmethod
    def declared(self) -> Pipeline:
        """The pipeline."""

    @abstractmethod
    def fail(self, monkeypatch: Any) -> None:
        """Have changes of destinations fail at times from now on."""

    @abstractmethod
    def opens(self, destination: Destination, owner: Owner) -> Reach: ...

    @abstractmethod
    def there(self, to: Destination, names: list[str]) -> list[tuple]:
        """These columns of all rows of a destination."""

    def until(self, does: Callable[..., Any], *given: Any) -> Any:
        """Do it until nothing fails: whoever does it again finds what was done."""
        while True:
            try:
                return does(*given, self.opens)
            except DestinationUnreachable:
                self.lost += 1

    def at_times(self, does: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
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
        self.line.finish(begun, first)
        self.runs[begun.claim.txid] = self.line.run.run_id

    def clear(self) -> None:
        if self.runs:
            txid = self.dice.choice(sorted(self.runs))
            self.line.clear(self.runs.pop(txid), self.dice.choice([first, second]))

    def release(self) -> None:
        if self.runs:
            for _ in self.line.ask().letters:
                self.line.one(second)

    def leave(self) -> None:
        to = self.dice.choice(list(self.to)).address
        if to not in self.away:
            detach(self.ledger, self.spec.name, to, "for the test", "me")
            self.away.add(to)

    def come_back(self) -> None:
        if self.away:
            to, how = self.dice.choice(sorted(self.away)), self.dice.choice([How.ON, self.anew])
            self.until(attach, self.ledger, self.spec, to, how, "for the test", "me")
            self.away.remove(to)

    def columns(self, to: Destination, sink: DeclaredSink) -> list[str]:
        """The columns that a destination has of its sink."""
        return shown(sink)

    def check(self) -> None:
        self.until(follow, self.ledger, self.spec)
        for to, sink in self.to.items():
            names = self.columns(to, sink)
            with self.ledger.begin() as conn:
                here = conn.execute(text(f"select {', '.join(names)} from {sink.name}")).all()  # noqa: S608
            if self.runs and to.address not in self.away:
                assert sorted(self.there(to, names), key=repr) == sorted(map(tuple, here), key=repr), to.address
        counts_agree(self.ledger, self.spec, self.opens)


def walked(walk: KeyedWalk) -> None:
    """Moves of a line by chance, until some have failed; then all that was left comes back."""
    moves = [walk.run, walk.run, walk.clear, walk.clear, walk.release, walk.leave, walk.come_back]
    walk.run()
    steps = 0
    while steps < STEPS or not walk.lost:
        walk.odds = walk.dice.choice([0, 0.1, 0.2])
        walk.dice.choice(moves)()
        walk.check()
        steps += 1
    walk.odds = 0
    while walk.away:
        walk.come_back()
    walk.check()
