"""Whatever a line does, and whatever is lost on the way, each destination has what readers see in the ledger."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from sqlalchemy import text

from ratchet import Append, Files, Table
from ratchet.destinations import lake
from ratchet.destinations.file_log import FileLog
from ratchet.destinations.file_tree import Tree
from ratchet.destinations.port import Destination, Owner
from ratchet.errors import DestinationUnreachable
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import follow
from tests.proof.reference import RICH, ROWS

from .. import releasing
from ..releasing import Line
from .counting import counts_agree
from .lakes import Where

COLUMNS = ["a", "_partition", "_offset", "_n", "_txid"]
STEPS = 12


def first(partition: int, offset: int) -> dict[str, list[dict]]:
    return {name: rows for name, rows in releasing.first(partition, offset).items() if name != "own"}


def second(partition: int, offset: int) -> dict[str, list[dict]]:
    return {name: rows for name, rows in releasing.second(partition, offset).items() if name != "own"}


class Walk:
    """A line with destinations of which some are detached at times, and whose lakes and files fail as `odds` says."""

    def __init__(self, seed: int, ledger, elsewhere, log, places, path, monkeypatch):
        self.dice, self.ledger, self.elsewhere, self.log = random.Random(seed), ledger, elsewhere, log
        self.places, self.path, self.monkeypatch = places, path, monkeypatch
        self.odds, self.lost = 0.0, 0
        self.to = [*self.declared(), Table("copied", database="warehouse")]
        columns = "a bigint, b string"
        self.spec = RICH.model_copy(
            update={"sinks": [Append(ROWS, columns=columns, to=self.to), *RICH.sinks[1:]], "max_in_flight": 4}
        )
        migrate(ledger.url, [self.spec])
        self.line = Line(ledger, log, self.spec)
        log.stable = {0: 0, 1: 0}
        self.runs: dict[int, str] = {}
        self.away: set[str] = set()
        monkeypatch.setattr(releasing, "commit", lambda of, spec, claim: self.until(commit, of, spec, claim))

    def declared(self) -> list[Destination]:
        """The destinations besides the table, which fail at times from now on."""
        for of, name in ((lake, "write_deltalake"), (FileLog, "add"), (Tree, "_write"), (Path, "rename")):
            self.monkeypatch.setattr(of, name, self.at_times(getattr(of, name)))
        lakes = [self.places[0].declared(partition_by="a"), self.places[1].declared()]
        files = [Files(str(self.path / "three"), partition_by="a"), Files(str(self.path / "four"), format="csv")]
        return [*lakes, *files]

    def opens(self, destination: Destination, owner: Owner):
        lakes = {place.name: place for place in self.places}
        return destination.open(owner, lakes[destination.name].by if destination.name in lakes else self.elsewhere.url)

    def until(self, does: Callable, *given):
        """Do it until no lake fails: whoever does it again finds what was done."""
        while True:
            try:
                return does(*given, self.opens)
            except DestinationUnreachable:
                self.lost += 1

    def at_times(self, does: Callable) -> Callable:
        def fails(*given, **named):
            where = self.dice.random()
            if where < self.odds:
                raise OSError("it was lost before")
            done = does(*given, **named)
            if where > 1 - self.odds:
                raise OSError("its answer was lost")
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
        to = self.dice.choice(self.to).address
        if to not in self.away:
            detach(self.ledger, self.spec.name, to, "for the test", "me")
            self.away.add(to)

    def come_back(self) -> None:
        if self.away:
            to, how = self.dice.choice(sorted(self.away)), self.dice.choice([How.ON, How.ANEW])
            self.until(attach, self.ledger, self.spec, to, how, "for the test", "me")
            self.away.remove(to)

    def tidy(self) -> None:
        for place in self.places:
            if DeltaTable.is_deltatable(place.name, place.options):
                table = place.delta()
                table.optimize.compact()
                table.create_checkpoint()
                table.vacuum(0, enforce_retention_duration=False, dry_run=False)
                table.cleanup_metadata()

    def check(self) -> None:
        self.until(follow, self.ledger, self.spec)
        with self.ledger.begin() as conn:
            here = conn.execute(text(f"select {', '.join(COLUMNS)} from {ROWS}")).all()  # noqa: S608
        for to in self.to:
            if here and to.address not in self.away:
                assert sorted(self.there(to), key=repr) == sorted(map(tuple, here), key=repr), to.address
        counts_agree(self.ledger, self.spec, self.opens)

    def there(self, to: Destination) -> list[tuple]:
        match to:
            case Table():
                return self.elsewhere.ask(f"select {', '.join(COLUMNS)} from copied")  # noqa: S608
            case Files():
                found = ds.dataset(f"{to.name}/data", format=to.format, partitioning="hive").to_table()
            case _:
                (place,) = (place for place in self.places if place.name == to.name)
                found = place.delta().to_pyarrow_table()
        rows = found.select(COLUMNS).to_pylist() if found.num_rows else []
        return [tuple(row.values()) for row in rows]


def walked(walk: Walk) -> None:
    """Moves of a line by chance, until some have failed; then all that was left comes back."""
    moves = [walk.run, walk.run, walk.clear, walk.clear, walk.release, walk.leave, walk.come_back, walk.tidy]
    walk.run()
    steps = 0
    while steps < STEPS or not walk.lost:
        walk.odds = walk.dice.choice([0, 0.2, 0.4])
        walk.dice.choice(moves)()
        walk.check()
        steps += 1
    walk.odds = 0
    while walk.away:
        walk.come_back()
    walk.check()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.all) for n in range(2, 20))])
@pytest.mark.invariant("I1", "I2", "I3")
def test_all_destinations_have_what_readers_see_after_whatever_a_line_does(
    bare, elsewhere, log, where, tmp_path, monkeypatch, seed
):
    walked(Walk(seed, bare, elsewhere, log, [Where(str(tmp_path / "one")), where], tmp_path, monkeypatch))
