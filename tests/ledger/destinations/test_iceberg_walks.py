"""Whatever a line does, and whatever is lost on the way, two Iceberg tables have what readers see in the ledger."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from ratchet import Iceberg
from ratchet.destinations.port import Destination, Owner

from .icebergs import IcebergOf, on_postgresql
from .test_walks import COLUMNS, Walk
from .walking import walked


class IcebergWalk(Walk):
    """The same moves, with Iceberg tables whose catalog fails as `odds` says."""

    def declared(self) -> list[Destination]:
        self.properties = on_postgresql(self.elsewhere.url, self.path / "warehouse")
        self.monkeypatch.setattr(SqlCatalog, "commit_table", self.at_times(SqlCatalog.commit_table))
        names = [("sales.one", "bucket(2, a)"), ("sales.two", ())]
        self.tables = [Iceberg(name, catalog="lakehouse", partition_by=by) for name, by in names]
        return list(self.tables)

    def opens(self, destination: Destination, owner: Owner):
        if isinstance(destination, Iceberg):
            return destination.open(owner, json.dumps(self.properties))
        return super().opens(destination, owner)

    def tidy(self) -> None:
        for each in self.tables:
            with self.of(each).catalog() as catalog:
                if not catalog.table_exists(each.name):
                    continue
                table = catalog.load_table(each.name)
                if table.current_snapshot() is None:
                    continue
                self.odds = 0
                table.overwrite(table.scan().to_arrow())
                kept = table.refresh().current_snapshot().snapshot_id
                gone = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != kept]
                table.maintenance.expire_snapshots().by_ids(gone).commit()

    def of(self, to: Iceberg) -> IcebergOf:
        return IcebergOf(self.ledger, self.properties, self.log, name=to.name)

    def there(self, to: Destination) -> list[tuple]:
        if not isinstance(to, Iceberg):
            return super().there(to)
        names = [{"_partition": "_source_partition"}.get(name, name) for name in COLUMNS]
        found: pa.Table = self.of(to).table().select(names)
        return [tuple(row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.all) for n in range(20)])
@pytest.mark.invariant("I1", "I2", "I3")
def test_iceberg_tables_have_what_readers_see_after_whatever_a_line_does(
    bare, elsewhere, log, tmp_path, monkeypatch, seed
):
    walked(IcebergWalk(seed, bare, elsewhere, log, [], tmp_path, monkeypatch))
