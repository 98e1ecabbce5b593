"""Whatever a line does, and whatever is lost on the way, destinations of sinks with keys have their state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from ratchet import DeltaLake, Iceberg, Pipeline, Table
from ratchet.destinations import lake
from ratchet.destinations.elsewhere import Elsewhere as Outside
from ratchet.destinations.lake import Lake
from ratchet.destinations.port import Destination, Owner, Reach
from ratchet.ledger.connection import Ledger

from ..staging import Log
from .elsewhere import Elsewhere
from .icebergs import IcebergOf, on_postgresql
from .keyed import KeyedWalk, keyed
from .walking import walked


class Walk(KeyedWalk):
    """One to tables of PostgreSQL, Delta Lake and Iceberg."""

    def __init__(self, seed: int, ledger: Ledger, elsewhere: Elsewhere, log: Log, path: Path, monkeypatch: Any):
        self.elsewhere, self.path = elsewhere, path
        self.properties = on_postgresql(elsewhere.url, path / "warehouse")
        super().__init__(seed, ledger, log, monkeypatch)

    def declared(self) -> Pipeline:
        return keyed(
            totals=[Table("totals_there", database="warehouse"), DeltaLake(str(self.path / "totals"))],
            latest=[
                Table("latest_there", database="warehouse"),
                DeltaLake(str(self.path / "latest"), partition_by="k"),
                Iceberg("sales.latest", catalog="lakehouse"),
            ],
            newest=[Iceberg("sales.newest", catalog="lakehouse", partition_by="bucket(2, a)")],
        )

    def fail(self, monkeypatch: Any) -> None:
        for of, name in ((lake, "write_deltalake"), (Lake, "_merged"), (SqlCatalog, "commit_table")):
            monkeypatch.setattr(of, name, self.at_times(getattr(of, name), OSError))
        monkeypatch.setattr(Outside, "_put", self.at_times(Outside._put, psycopg.OperationalError))

    def opens(self, destination: Destination, owner: Owner) -> Reach:
        match destination:
            case Iceberg():
                return destination.open(owner, json.dumps(self.properties))
            case DeltaLake():
                return destination.open(owner, "")
            case _:
                return destination.open(owner, self.elsewhere.url)

    def there(self, to: Destination, names: list[str]) -> list[tuple]:
        match to:
            case Table():
                return self.elsewhere.ask(f"select {', '.join(names)} from {to.name}")  # noqa: S608
            case Iceberg():
                found = IcebergOf(self.ledger, self.properties, self.log, name=to.name).table()
                names = [{"_partition": "_source_partition"}.get(name, name) for name in names]
            case _:
                found = DeltaTable(to.name).to_pyarrow_table()
        return [tuple(row.values()) for row in found.select(names).to_pylist()]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.all) for n in range(1, 20))])
@pytest.mark.invariant("I1", "I2", "I3")
def test_destinations_of_keys_have_the_state_after_whatever_a_line_does(
    bare, elsewhere, log, tmp_path, monkeypatch, seed
):
    walked(Walk(seed, bare, elsewhere, log, tmp_path, monkeypatch))
