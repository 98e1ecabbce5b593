"""A pipeline whose rows go to an Iceberg table, in a catalog on PostgreSQL or a REST catalog."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from ratchet import Append, Iceberg
from ratchet.destinations.port import Destination, Mark, Owner
from ratchet.errors import SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote
from ratchet.spec.pipeline import Pipeline

from ..staging import SPEC, Log, a_try, start, vote_of, write_all
from .elsewhere import places

NAME = "sales.orders"


def on_postgresql(url: str, warehouse: Path) -> dict[str, str]:
    """The properties of a catalog in this database, whose files are in this directory."""
    return {
        "type": "sql",
        "uri": url.replace("postgresql:", "postgresql+psycopg:", 1),
        "warehouse": f"file://{warehouse}",
    }


def sent_to(to: Iceberg, columns: str = "a bigint") -> Pipeline:
    """A pipeline with these columns, which go there."""
    return SPEC.model_copy(update={"sinks": [Append("rows", columns=columns, to=to), *SPEC.sinks[1:]]})


SENT = sent_to(Iceberg(NAME, catalog="lakehouse"))


@dataclass
class IcebergOf:
    """A pipeline whose rows go to a table in a catalog."""

    ledger: Ledger
    properties: dict[str, str]
    log: Log
    columns: str = "a bigint"
    more: dict[str, Any] = field(default_factory=dict)
    name: str = NAME

    @property
    def to(self) -> Iceberg:
        return Iceberg(self.name, catalog="lakehouse", **self.more)

    @property
    def spec(self) -> Pipeline:
        return sent_to(self.to, self.columns)

    @property
    def address(self) -> str:
        return self.to.address

    def opens(self, destination: Destination, owner: Owner):
        return destination.open(owner, json.dumps(self.properties))

    def run(self, run: str, clear_number: int = 0, drop: int = 0, of=lambda at: {"a": -at["_offset"]}) -> int:
        """A run that commits; its transaction."""
        spec, begun = self.spec, self.prepared(run, clear_number, drop, of)
        assert isinstance(commit(self.ledger, spec, begun.claim, self.opens), Committed)
        settle(self.ledger, spec, Run("dag", run, clear_number), succeeded=True)
        return begun.claim.txid

    def decided(self, run: str, clear_number: int = 0, drop: int = 0) -> None:
        """A run whose commit is decided, and whose step is not sent."""
        begun = self.prepared(run, clear_number, drop)
        with suppress(SettingsError):
            commit(self.ledger, self.spec, begun.claim)
        settle(self.ledger, self.spec, Run("dag", run, clear_number), succeeded=True)

    def prepared(self, run: str, clear_number: int = 0, drop: int = 0, of=lambda at: {"a": -at["_offset"]}) -> Begun:
        """A run whose slices have all voted."""
        spec = self.spec
        begun = start(self.ledger, spec, self.log, run, clear_number)
        for part in begun.slices:
            work = a_try(self.ledger, begun, part.number, spec)
            made = [{**of(at), **at} for at in places(work)][drop:]
            votes = write_all(self.ledger, spec, work, {"rows": made, "totals": [], "latest": []})
            cast_vote(self.ledger, spec, work.token, vote_of(spec, work, votes))
        return begun

    def catalog(self) -> closing[Catalog]:
        return closing(load_catalog("lakehouse", **self.properties))

    def loaded(self) -> Table:
        """The table as the library has it, for others' changes."""
        return load_catalog("lakehouse", **self.properties).load_table(self.name)

    def made(self, schema: pa.Schema, **more: Any) -> Table:
        """The table, made by a person."""
        catalog = load_catalog("lakehouse", **self.properties)
        catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        return catalog.create_table(self.name, schema, **more)

    def table(self) -> pa.Table:
        """What the library reads."""
        return self.loaded().scan().to_arrow()

    def files(self) -> list[str]:
        """The paths of the files with rows."""
        return [
            task.file.file_path.removeprefix("file://").removeprefix("file:")
            for task in self.loaded().scan().plan_files()
        ]

    def read(self, name: str) -> list[dict[str, Any]]:
        """What is in the files themselves: the row's offset and this column, in the order of offsets."""
        found = pa.concat_tables(pq.ParquetFile(path).read(["_offset", name]) for path in self.files())
        return found.sort_by("_offset").to_pylist()

    def rows(self) -> list[tuple]:
        """(partition, offset, n, txid) of every row that has a transaction, sorted."""
        found = self.table().select(["_source_partition", "_offset", "_n", "_txid"])
        return sorted(tuple(row.values()) for row in found.to_pylist() if row["_txid"] is not None)

    def mark(self) -> Mark | None:
        with self.open() as outside:
            return outside.mark()

    def open(self, pipeline: str = "line"):
        return self.to.open(Owner(pipeline, "rows", self.spec.sinks[0].fields), json.dumps(self.properties))

    def steps(self) -> list[tuple[int, bool]]:
        with self.ledger.begin() as conn:
            return [(of.step, of.is_attached) for of in steps.destinations_of(conn, "line")]
