"""A line whose sinks have keys, and go to destinations of each kind that takes keys."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from ratchet import Accumulate, Pipeline, Upsert
from ratchet.destinations.port import Destination
from ratchet.ledger.connection import Ledger
from ratchet.protocol.follow import follow
from ratchet.spec.parts import DeclaredSink
from tests.proof.reference import LATEST, NEWEST, RICH, TOTALS, Made, shown

from .. import releasing
from ..staging import Log
from .counting import counts_agree
from .walking import LineWalk

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


class KeyedWalk(LineWalk):
    """One whose sinks have keys."""

    often = (0, 0.1, 0.2)

    def __init__(self, seed: int, ledger: Ledger, log: Log, monkeypatch: Any):
        super().__init__(seed, ledger, log)
        spec = self.declared()
        self.to = {to: sink for sink in spec.sinks for to in sink.destinations}
        self.begin(spec, self.to, monkeypatch)
        self.fail(monkeypatch)

    def first(self, partition: int, offset: int) -> Made:
        return with_keys(releasing.first(partition, offset))

    def second(self, partition: int, offset: int) -> Made:
        return with_keys(releasing.second(partition, offset))

    @abstractmethod
    def declared(self) -> Pipeline:
        """The pipeline."""

    @abstractmethod
    def fail(self, monkeypatch: Any) -> None:
        """Have changes of destinations fail at times from now on."""

    @abstractmethod
    def there(self, to: Destination, names: list[str]) -> list[tuple]:
        """These columns of all rows of a destination."""

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
