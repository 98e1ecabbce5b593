"""A pipeline whose rows go to a Delta Lake table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from ratchet import Append, DeltaLake
from ratchet.destinations.port import Destination, Mark, Owner
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote
from ratchet.spec.pipeline import Pipeline

from ..staging import SPEC, Log, a_try, start, vote_of, write_all
from .elsewhere import places


@dataclass
class LakeOf:
    """A pipeline whose rows go to a table in a directory."""

    ledger: Ledger
    path: Path
    log: Log
    columns: str = "a bigint"
    more: dict = field(default_factory=dict)

    @property
    def to(self) -> Destination:
        return DeltaLake(str(self.path), **self.more)

    @property
    def spec(self) -> Pipeline:
        sinks = [Append("rows", columns=self.columns, to=self.to), *SPEC.sinks[1:]]
        return SPEC.model_copy(update={"sinks": sinks})

    @property
    def address(self) -> str:
        return self.to.address

    def opens(self, destination: Destination, owner: Owner):
        return destination.open(owner, "")

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

    def table(self) -> pa.Table:
        return DeltaTable(str(self.path)).to_pyarrow_table()

    def rows(self) -> list[tuple]:
        """(partition, offset, n, txid) of every row, sorted."""
        found = self.table().select(["_partition", "_offset", "_n", "_txid"])
        return sorted(tuple(row.values()) for row in found.to_pylist())

    def mark(self) -> Mark | None:
        with self.open() as outside:
            return outside.mark()

    def open(self, pipeline: str = "line"):
        (destination,) = self.spec.sinks[0].destinations
        return destination.open(Owner(pipeline, "rows", self.spec.sinks[0].fields), "")

    def steps(self) -> list[tuple[int, bool]]:
        with self.ledger.begin() as conn:
            return [(of.step, of.is_attached) for of in steps.destinations_of(conn, "line")]
