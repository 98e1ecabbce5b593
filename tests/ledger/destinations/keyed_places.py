"""Where the rows of a sink with keys go, by kind, and a line that sends them there."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from sqlalchemy import text

from ratchet import Append, DeltaLake, Iceberg, Pipeline, Table, Upsert
from ratchet.destinations.port import Destination, Mark, Owner, Reach
from ratchet.errors import SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.follow import opened

from ..staging import SPEC, Log, do, start
from .elsewhere import Elsewhere
from .icebergs import IcebergOf, on_postgresql

KEY = "k string not null"
KINDS = ["table", "delta", pytest.param("iceberg", marks=pytest.mark.all)]


@dataclass(frozen=True)
class Place:
    """A destination, and what it is opened by."""

    to: Destination
    by: str
    elsewhere: Elsewhere

    @classmethod
    def of(cls, kind: str, elsewhere: Elsewhere, path: Path, **more: Any) -> Place:
        match kind:
            case "table":
                return cls(Table("latest_there", database="warehouse"), elsewhere.url, elsewhere)
            case "delta":
                return cls(DeltaLake(str(path / "latest"), **more), "", elsewhere)
            case _:
                properties = on_postgresql(elsewhere.url, path / "warehouse")
                return cls(Iceberg("sales.latest", catalog="lakehouse", **more), json.dumps(properties), elsewhere)

    def rows(self, names: list[str]) -> list[tuple]:
        """These columns of each row there, sorted."""
        match self.to:
            case Table():
                found = self.elsewhere.ask(f"select {', '.join(names)} from {self.to.name}")  # noqa: S608
            case Iceberg():
                table = IcebergOf(None, json.loads(self.by), Log(), name=self.to.name).table()
                found = [tuple(row.values()) for row in table.select(names).to_pylist()]
            case _:
                table = DeltaTable(self.to.name).to_pyarrow_table()
                found = [tuple(row.values()) for row in table.select(names).to_pylist()]
        return sorted(found, key=repr)


def spec_of(to: Destination, columns: str = "a bigint", key: str = KEY) -> Pipeline:
    """A line of one sink, whose keys go there."""
    sinks = [Append("rows", columns="a bigint"), Upsert("latest", key=key, columns=columns, order="a", to=to)]
    return SPEC.model_copy(update={"sinks": sinks})


def row(k: str, a: int | None = 1, *, gone: bool = False, **more: Any) -> dict[str, Any]:
    return {"k": k, "a": a, "_deleted": gone, **more}


Makes = dict[int, dict[str, Any]]
"""{offset in partition 0: the row of the record}."""


@dataclass
class Keyed:
    """A line whose keys go to a place."""

    ledger: Ledger
    place: Place
    log: Log
    spec: Pipeline
    names: tuple[str, ...] = ("k", "a", "_txid")

    @classmethod
    def made(cls, ledger: Ledger, place: Place, log: Log, **more: Any) -> Keyed:
        spec = spec_of(place.to, **more)
        migrate(ledger.url, [spec])
        return cls(ledger, place, log, spec)

    def with_spec(self, **more: Any) -> Keyed:
        return replace(self, spec=spec_of(self.place.to, **more))

    @property
    def address(self) -> str:
        return self.place.to.address

    def opens(self, destination: Destination, owner: Owner) -> Reach:
        return destination.open(owner, self.place.by)

    def prepared(self, run: str, makes: Makes, clear_number: int = 0) -> Begun:
        begun = start(self.ledger, self.spec, self.log, run, clear_number)
        first = min(r.from_offset for part in begun.slices for r in part.ranges if r.partition == 0)
        of: Callable[[int, int], dict[str, list[dict]]] = lambda partition, offset: (  # noqa: E731
            {"latest": [makes[offset - first]]} if partition == 0 and offset - first in makes else {}
        )
        do(self.ledger, self.spec, begun, of)
        return begun

    def run(self, run: str, makes: Makes, clear_number: int = 0) -> int:
        """A run that commits, and sends; its transaction."""
        begun = self.prepared(run, makes, clear_number)
        assert isinstance(commit(self.ledger, self.spec, begun.claim, self.opens), Committed)
        settle(self.ledger, self.spec, Run("dag", run, clear_number), succeeded=True)
        return begun.claim.txid

    def decided(self, run: str, makes: Makes, clear_number: int = 0) -> int:
        """A run whose commit is decided, and that no destination has heard of."""
        begun = self.prepared(run, makes, clear_number)
        with suppress(SettingsError):
            commit(self.ledger, self.spec, begun.claim)
        settle(self.ledger, self.spec, Run("dag", run, clear_number), succeeded=True)
        return begun.claim.txid

    def state(self) -> list[tuple]:
        with self.ledger.begin() as conn:
            found = conn.execute(text(f"select {', '.join(self.names)} from latest")).all()  # noqa: S608
        return sorted(map(tuple, found), key=repr)

    def there(self) -> list[tuple]:
        return self.place.rows(list(self.names))

    def is_whole(self) -> None:
        assert self.there() == self.state()

    def mark(self) -> Mark | None:
        with self.ledger.begin() as conn:
            (of,) = steps.destinations_of(conn, "line")
        with opened(self.spec, self.opens, of) as (_, _, outside):
            return outside.mark()
