"""A pipeline whose rows go to a Delta Lake table, in a directory or an object store."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from ratchet import Append, DeltaLake
from ratchet.destinations.port import Destination, Mark, Owner
from ratchet.errors import SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote
from ratchet.spec.pipeline import Pipeline
from tests.s3proxy import Bucket

from ..staging import SPEC, Log, a_try, prepare, start, vote_of, write_all
from .elsewhere import places


@dataclass(frozen=True)
class Where:
    """A directory, or a place in an object store with the options that lead there."""

    name: str
    options: dict[str, str] | None = None
    bucket: Bucket | None = None

    @classmethod
    def within(cls, bucket: Bucket, endpoint: str | None = None) -> Where:
        """A place in a bucket, perhaps by way of a proxy."""
        return cls(f"s3://{bucket.name}/lake/rows", bucket.options(endpoint), bucket)

    def beside(self, name: str) -> Where:
        """Another one in the same directory or bucket."""
        return replace(self, name=f"{self.name.rpartition('/')[0]}/{name}")

    def copy_to(self, other: Where) -> None:
        """Have another place have the same files."""
        if self.bucket is None:
            shutil.copytree(self.name, other.name)
        else:
            self.bucket.copy(self.key, other.key)

    def move_to(self, other: Where) -> None:
        """Have another place have the files, and this one none."""
        self.copy_to(other)
        if self.bucket is None:
            shutil.rmtree(self.name)
        else:
            self.bucket.empty(self.key)

    @property
    def key(self) -> str:
        """The place within the bucket."""
        return self.name.split("/", 3)[3]

    @property
    def by(self) -> str:
        """What a destination is opened by."""
        return json.dumps(self.options) if self.options else ""

    def declared(self, **more: Any) -> DeltaLake:
        return DeltaLake(self.name, store="lakes" if self.options else None, **more)

    def delta(self) -> DeltaTable:
        """The table there as others open it."""
        return DeltaTable(self.name, storage_options=self.options)

    def create(self, *kinds: tuple[str, pa.DataType], **more: Any) -> DeltaTable:
        """An empty table that somebody makes there."""
        return DeltaTable.create(self.name, pa.schema(kinds), storage_options=self.options, **more)  # pyright: ignore[reportArgumentType]

    def write(self, table: pa.Table) -> None:
        """Rows that somebody writes there."""
        write_deltalake(self.name, table, storage_options=self.options)


@dataclass
class LakeOf:
    """A pipeline whose rows go to a table somewhere."""

    ledger: Ledger
    where: Where
    log: Log
    columns: str = "a bigint"
    more: dict = field(default_factory=dict)

    @property
    def to(self) -> Destination:
        return self.where.declared(**self.more)

    @property
    def spec(self) -> Pipeline:
        sinks = [Append("rows", columns=self.columns, to=self.to), *SPEC.sinks[1:]]
        return SPEC.model_copy(update={"sinks": sinks})

    @property
    def address(self) -> str:
        return self.to.address

    def opens(self, destination: Destination, owner: Owner):
        return destination.open(owner, self.where.by)

    def run(self, run: str, clear_number: int = 0, drop: int = 0, of=lambda at: {"a": -at["_offset"]}) -> int:
        """A run that commits; its transaction."""
        spec = self.spec
        begun = start(self.ledger, spec, self.log, run, clear_number)
        for part in begun.slices:
            work = a_try(self.ledger, begun, part.number, spec)
            made = [{**of(at), **at} for at in places(work)][drop:]
            votes = write_all(self.ledger, spec, work, {"rows": made, "totals": [], "latest": []})
            cast_vote(self.ledger, spec, work.token, vote_of(spec, work, votes))
        assert isinstance(commit(self.ledger, spec, begun.claim, self.opens), Committed)
        settle(self.ledger, spec, Run("dag", run, clear_number), succeeded=True)
        return begun.claim.txid

    def decide(self, run: str) -> int:
        """A run that commits while nothing is sent; its transaction."""
        begun = start(self.ledger, self.spec, self.log, run)
        prepare(self.ledger, self.spec, begun)
        with suppress(SettingsError):
            commit(self.ledger, self.spec, begun.claim)
        return begun.claim.txid

    def table(self) -> pa.Table:
        return self.delta().to_pyarrow_table()

    def delta(self) -> DeltaTable:
        return self.where.delta()

    def rows(self) -> list[tuple]:
        """(partition, offset, n, txid) of every row, sorted."""
        found = self.table().select(["_partition", "_offset", "_n", "_txid"])
        return sorted(tuple(row.values()) for row in found.to_pylist())

    def mark(self) -> Mark | None:
        with self.open() as outside:
            return outside.mark()

    def open(self, pipeline: str = "line"):
        (destination,) = self.spec.sinks[0].destinations
        return destination.open(Owner(pipeline, "rows", self.spec.sinks[0].fields), self.where.by)

    def steps(self) -> list[tuple[int, bool]]:
        with self.ledger.begin() as conn:
            return [(of.step, of.is_attached) for of in steps.destinations_of(conn, "line")]
