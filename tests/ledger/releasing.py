"""A line whose transactions have dead letters, what runs do with it, and what its sinks must show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from ratchet import Append, Arrivals, Pipeline
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate import release
from ratchet.operate.migrate import migrate
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.databases import Databases
from tests.proof.reference import RICH, Fold, Made, transform

from .staging import Log, always_active, contents, do, positions_of, start

SPEC = RICH.model_copy(
    update={
        "sinks": [*RICH.sinks, Append("own", columns="a bigint", existing=True)],
        "runs": Arrivals(),
        "keep_deltas": timedelta(days=1),
        "max_in_flight": 4,
    }
)
"""A sink of each kind."""
OTHER = SPEC.model_copy(update={"transform": "tests.ledger.staging:records_of"})
"""The same line with other code."""
OWN = (
    "create table own (a bigint, _topic text not null, _partition int not null, _offset bigint not null, "
    "_n int not null, _txid bigint not null)"
)


def good(version: str, partition: int, offset: int) -> Made:
    """What a version makes of a record that it can read."""
    tries = (transform(f"{version}{n}", partition, offset) for n in range(100))
    made = next(made for made in tries if DEAD_LETTERS not in made)
    return {**made, "own": [{"a": offset}]}


def bad(error: str, partition: int, offset: int) -> Made:
    said = {"key": b"k%d" % partition, "value": b"v%d" % offset, "headers": None, "error": error}
    return {DEAD_LETTERS: [said]}


def first(partition: int, offset: int) -> Made:
    """Of every third record it gives up, for one of two reasons."""
    if (partition + offset) % 3 == 0:
        return bad("no number" if offset % 2 else "no date", partition, offset)
    return good("first", partition, offset)


def second(partition: int, offset: int) -> Made:
    """Of those it gives up one in three."""
    return bad("still no date", partition, offset) if offset % 9 == 0 else good("second", partition, offset)


def released(partition: int, offset: int) -> Made:
    """What must be there after a release by `second` of what `first` has given up."""
    found = first(partition, offset)
    return second(partition, offset) if DEAD_LETTERS in found else found


class Line:
    """A line, and what its sinks must show."""

    def __init__(self, ledger: Ledger, log: Log, spec: Pipeline = SPEC):
        log.stable = {0: 18, 1: 18}
        self.ledger, self.log, self.spec, self.fold = ledger, log, spec, Fold()
        self.places: dict[int, list[tuple[int, int]]] = {}
        self._runs = 0

    def begin(self, **how) -> Begun | Skipped:
        self._runs += 1
        self.run = Run("dag", f"run_{self._runs}")
        return begin(self.ledger, self.spec, self.run, self.log.offsets, always_active, **how)

    def finish(self, begun: Begun, make, run: Run | None = None) -> None:
        do(self.ledger, self.spec, begun, make)
        commit(self.ledger, self.spec, begun.claim)
        settle(self.ledger, self.spec, run or self.run, succeeded=True)

    def one(self, make) -> Begun:
        """A run that has work, from begin to settle."""
        begun = self.begin()
        assert isinstance(begun, Begun), begun
        self.finish(begun, make)
        return begun

    def commit(self, make) -> None:
        """Commit all that waits."""
        while isinstance(begun := self.begin(), Begun):
            assert begun.how == "allocated"
            self.finish(begun, make)
            self.places[begun.claim.txid] = positions_of(begun)
            self.shows(begun.claim.txid, make)

    def shows(self, txid: int, make) -> None:
        self.fold.put(self.spec, txid, self.places[txid], make)

    def ask(self, first: int | None = None, last: int | None = None, errors: str = "", **how) -> release.Released:
        return release.ask(self.ledger, self.spec, first, last, errors, "the code was corrected", "amy", **how)

    def release(self, make, first: int | None = None, last: int | None = None, errors: str = "") -> list[Begun]:
        """Ask, and let runs do it."""
        asked = self.ask(first, last, errors)
        done = [self.one(make) for _ in asked.letters]
        assert [b.claim.txid for b in done] == list(asked.letters) and {b.how for b in done} == {"replayed"}
        return done

    def clear(self, run: str, make) -> Begun:
        """A revision by the run that has committed a transaction."""
        again = start(self.ledger, self.spec, self.log, run, 1)
        self.finish(again, make, Run("dag", run, 1))
        return again

    def faults(self) -> list[str]:
        return [fault for check in verify(self.ledger, self.spec) for fault in check.faults]

    def is_whole(self) -> None:
        """The sinks show what they must, and the ledger agrees."""
        assert contents(self.ledger, self.spec) == self.fold.contents(self.spec.sinks)
        assert self.faults() == []


def letters(line: Line, txid: int) -> list[tuple[int, int]]:
    return sorted((p, o) for p, o in line.places[txid] if DEAD_LETTERS in first(p, o))


def three(ledger: Ledger, log: Log) -> Line:
    """Three committed transactions, which have dead letters."""
    made = Line(ledger, log)
    made.commit(first)
    assert list(made.places) == [1, 2, 3]
    made.is_whole()
    return made


@contextmanager
def copy_of_three(databases: Databases, log: Log) -> Iterator[Line]:
    """The same line in a database of a test's own: it takes a second to make, and a tenth to copy."""
    with databases.copied(f"{__name__}.three", _three) as (url, given), Ledger(url) as ledger:
        line = Line(ledger, log)
        vars(line).update(given)
        yield line


def _three(url: str) -> dict[str, Any]:
    """All of that line but its ledger, its log and its spec."""
    with Ledger(url) as ledger:
        with ledger.begin() as conn:
            conn.execute(text(OWN))
        migrate(url, [SPEC])
        line = three(ledger, Log())
    return {name: value for name, value in vars(line).items() if name not in ("ledger", "log", "spec")}
