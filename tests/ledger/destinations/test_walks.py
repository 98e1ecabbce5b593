"""Whatever a line does, and whatever is lost on the way, each destination has what readers see in the ledger."""

from __future__ import annotations

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
from ratchet.protocol.follow import follow
from tests.proof.reference import RICH, ROWS, Made

from .. import releasing
from .counting import counts_agree
from .lakes import Where
from .walking import LineWalk, walked

COLUMNS = ["a", "_partition", "_offset", "_n", "_txid"]


class Walk(LineWalk):
    """One to lakes, files and a table."""

    often = (0, 0.2, 0.4)

    def __init__(self, seed: int, ledger, elsewhere, log, places, path, monkeypatch):
        super().__init__(seed, ledger, log)
        self.elsewhere, self.places, self.path, self.monkeypatch = elsewhere, places, path, monkeypatch
        self.to = [*self.declared(), Table("copied", database="warehouse")]
        sinks = [Append(ROWS, columns="a bigint, b string", to=self.to), *RICH.sinks[1:]]
        self.begin(RICH.model_copy(update={"sinks": sinks, "max_in_flight": 4}), self.to, monkeypatch)

    def first(self, partition: int, offset: int) -> Made:
        return without_own(releasing.first(partition, offset))

    def second(self, partition: int, offset: int) -> Made:
        return without_own(releasing.second(partition, offset))

    @property
    def moves(self) -> list[Callable[[], None]]:
        return [*super().moves, self.tidy]

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


def without_own(made: Made) -> Made:
    return {name: rows for name, rows in made.items() if name != "own"}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.all) for n in range(2, 20))])
@pytest.mark.invariant("I1", "I2", "I3")
def test_all_destinations_have_what_readers_see_after_whatever_a_line_does(
    bare, elsewhere, log, where, tmp_path, monkeypatch, seed
):
    walked(Walk(seed, bare, elsewhere, log, [Where(str(tmp_path / "one")), where], tmp_path, monkeypatch))
