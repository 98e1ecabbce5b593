"""Notices: that those whom a spec names are told of a halt, once, and again where that did not go well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, text

from ratchet.ledger import history
from ratchet.ledger.connection import Ledger, be_patient, be_quick
from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import events
from ratchet.ledger.transactions import read_transaction
from ratchet.protocol import halts
from ratchet.protocol.halt import Halt
from ratchet.spec.pipeline import Pipeline

TOLD = "told"
MOST_TRIES = 5
"""So often somebody is told who raises each time; after that somebody has to read the log."""

Call = Callable[[str, Halt], str | None]
"""Calls what is named so with a halt; what went wrong, in a line, or None."""


@dataclass(frozen=True)
class Notice:
    """That somebody, by the name in the spec, was told of a halt; `error` is what went wrong."""

    name: str
    halt: Halt
    error: str | None

    def __str__(self) -> str:
        return f"{self.name} was told of the halt" if self.error is None else f"{self.name} was not told: {self.error}"


def tell(ledger: Ledger, spec: Pipeline, who: str, call: Call) -> list[Notice]:
    """Tell those of the spec's `on_halt` of the halt of its line who have not been; repeated, it calls nobody again.

    Whoever meets a halt calls it: settle, which may have made it, begin, and maintenance. The history says who was
    told. That is written after the call, since a halt of which nobody hears is worse than one of which somebody hears
    twice: whoever is killed between the two leaves it to the next one. Who raises is told again, MOST_TRIES at most.
    """
    made = [_tell(ledger, spec, name, who, call) for name in spec.on_halt]
    return [notice for notice in made if notice is not None]


def _tell(ledger: Ledger, spec: Pipeline, name: str, who: str, call: Call) -> Notice | None:
    """None if nobody has to be told, or another process is at it."""
    with ledger.begin() as conn:
        if halts.halt(conn, spec.name) is None or not _alone(conn, spec.name):
            return None
        # Looked at anew: another process may have told somebody, and a person may have lifted it, before the lock.
        row = halts.halt(conn, spec.name)
        if row is None or not _is_due(conn, row, name):
            return None
        halt = halts.halt_at(conn, row)
        be_patient(conn)
        error = call(name, halt)
        be_quick(conn)
        row = read_transaction(conn, row.pipeline, row.txid, lock=True)
        history.record(conn, row, who=who, move=TOLD, detail={"to": name, "error": error})
    return Notice(name, halt, error)


def _alone(conn: Connection, pipeline: str) -> bool:
    """Whether no other process tells anybody of this line until this transaction ends; no row is locked meanwhile."""
    asked = text("select pg_try_advisory_xact_lock(hashtext('ratchet halts'), hashtext(:name))")
    return conn.execute(asked, {"name": pipeline}).scalar_one()


def _is_due(conn: Connection, row: Transaction, name: str) -> bool:
    """Whether somebody has not been told of this halt, which is the transaction's latest, and may be tried again."""
    c = events.c
    mine = (c.pipeline == row.pipeline, c.txid == row.txid, c.revision == row.revision)
    began = select(func.coalesce(func.max(c.seq), 0)).where(*mine, c.move == "halt").scalar_subquery()
    since = select(c.detail["error"].astext).where(*mine, c.move == TOLD, c.detail["to"].astext == name, c.seq > began)
    errors = conn.execute(since).scalars().all()
    return None not in errors and len(errors) < MOST_TRIES
