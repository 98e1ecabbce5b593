"""A second database, and a pipeline whose rows go there too."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from ratchet import Append, Table
from ratchet.destinations.port import Destination, Outside, Owner
from ratchet.ledger.connection import Ledger
from ratchet.protocol.commit import Committed, commit

from .staging import SPEC, Log, prepare, start

TO = Table("copied", database="warehouse")
SENT = SPEC.model_copy(update={"sinks": [Append("rows", columns="a bigint", to=TO), *SPEC.sinks[1:]]})


@dataclass
class Elsewhere:
    """The database that the connection `warehouse` names."""

    url: str
    opened: list[str] = field(default_factory=list)

    def opens(self, destination: Destination, owner: Owner) -> AbstractContextManager[Outside]:
        self.opened.append(destination.address)
        return destination.open(owner, self.url)

    def rows(self, table: str = "copied") -> list[tuple]:
        """(partition, offset, n, txid) of every row, sorted."""
        query = sql.SQL("select _partition, _offset, _n, _txid from {}")
        return sorted(self.ask(query.format(sql.Identifier(*table.split(".")))))

    def ask(self, query: str | sql.Composed, *given: object) -> list[tuple]:
        with psycopg.connect(self.url, autocommit=True) as conn:
            found = conn.execute(query, given)  # pyright: ignore[reportArgumentType]
            return found.fetchall() if found.description else []

    @property
    def step(self) -> int:
        return self.ask("select step from ratchet_marks.marks")[0][0]


def sent(ledger: Ledger, there: Elsewhere, log: Log, run: str, spec=SENT):
    """A transaction that its run has committed, and sent."""
    begun = start(ledger, spec, log, run)
    prepare(ledger, spec, begun)
    outcome = commit(ledger, spec, begun.claim, there.opens)
    assert isinstance(outcome, Committed), outcome
    return begun
