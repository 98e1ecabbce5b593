"""A second database, and a pipeline whose rows go there too."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from ratchet import Append, Table
from ratchet.destinations.port import Destination, Outside, Owner
from ratchet.errors import SettingsError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.work import Run
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote

from ..staging import SPEC, Log, a_try, prepare, start, state, vote_of, write_all

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


def without(ledger: Ledger, log: Log, run: str) -> None:
    """A transaction that its run commits while nothing is sent."""
    begun = start(ledger, SENT, log, run)
    prepare(ledger, SENT, begun)
    # Where the destination is attached, the commit says that it is behind.
    with suppress(SettingsError):
        assert isinstance(commit(ledger, SENT, begun.claim), Committed)
    assert state(ledger, begun.claim.txid) == State.COMMITTED
    settle(ledger, SENT, Run("dag", run), succeeded=True)


def lasted(ledger: Ledger, minutes: int) -> None:
    """Let what the ledger knows of destinations be older by so much."""
    with ledger.begin() as conn:
        for each in ("steps set at = at", "destinations set reached_at = reached_at"):
            conn.exec_driver_sql(f"update ratchet.{each} - interval '{minutes} minutes'")


def revise(ledger: Ledger, there: Elsewhere, log: Log, run: str, clear_number: int, drop: int = 0) -> None:
    """A run is cleared and works anew; of each slice the first rows are missing."""
    begun = start(ledger, SENT, log, run, clear_number)
    for part in begun.slices:
        work = a_try(ledger, begun, part.number, SENT)
        made = [{"a": -at["_offset"], **at} for at in places(work)][drop:]
        votes = write_all(ledger, SENT, work, {"rows": made, "totals": [], "latest": []})
        cast_vote(ledger, SENT, work.token, vote_of(SENT, work, votes))
    assert isinstance(commit(ledger, SENT, begun.claim, there.opens), Committed)
    settle(ledger, SENT, Run("dag", run, clear_number), succeeded=True)


def places(work) -> list[dict[str, int]]:
    """The position of each record of a slice."""
    offsets = [(r.partition, offset) for r in work.ranges for offset in range(r.from_offset, r.until_offset)]
    return [{"_partition": partition, "_offset": offset, "_n": 0} for partition, offset in offsets]
