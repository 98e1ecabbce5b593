"""What a commit folds: each sink's delta by the votes, and the decision that follows; a revision's as well."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, func
from sqlalchemy.exc import DBAPIError, OperationalError

from ratchet.errors import Refused, StageMismatch
from ratchet.ledger import steps, writers
from ratchet.ledger.rows import Line, Transaction
from ratchet.ledger.states import State
from ratchet.ledger.transactions import move
from ratchet.protocol.applied import voted_of
from ratchet.protocol.failures import first_line, refers_to_nothing, sqlstate_of
from ratchet.protocol.sources import window
from ratchet.protocol.votes import read_votes, rows_of
from ratchet.sinks import exchanged, meaning, renames, stage
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Applied, Delta, Release, Sink
from ratchet.spec.pipeline import Pipeline

_PROGRAM_LIMIT = "54"
"""The class of SQLSTATEs for a key too long for its index and the like, which psycopg counts among what passes."""


class Failed(Exception):
    """A transaction that cannot be applied; `__cause__` says why."""


def deltas(conn: Connection, spec: Pipeline, line: Line, row: Transaction) -> Iterator[tuple[Sink, Delta]]:
    """What a transaction contributes to each sink; Failed where that is not what the spec's sinks can fold."""
    votes = read_votes(conn, spec.name, row.txid, row.epoch)
    sinks = sinks_of(spec)
    relations = stage.relations(conn, sinks, row)
    names = {sink.name for sink in sinks}
    since, until = window(conn, spec.name, row.txid)
    own, awaited = meaning.of_pipeline(conn, spec), exchanged.are_awaited(conn, spec.name)
    if any(set(voted) != names for _, _, voted in votes):
        raise Failed from StageMismatch(
            f"{spec.name}: transaction {row.txid} was prepared for other sinks than today's"
        )
    if gone := sorted(names - relations.keys()):
        raise Failed from StageMismatch(
            f"{spec.name}: transaction {row.txid}, epoch {row.epoch}: what was staged for {', '.join(gone)} is gone"
        )
    for sink in sinks:
        rows = rows_of(votes, sink.name, relations[sink.name], row.txid)
        release = None
        if row.releases is not None:
            release = Release(row.releases, row.records or 0, voted_of(conn, spec.name, sink, row.txid))
        replaces, private = row.revision > 0, spec.private
        renamed = len(renames.among(own.get(sink.table)))
        awaited_as = row.revision if sink.name in awaited else None
        told = private, renamed, release, awaited_as
        yield sink, Delta(spec.name, line.topics, row.txid, rows, replaces, since, until, *told)


@contextmanager
def failing(spec: Pipeline, where: str) -> Generator[None]:
    """Failed where the data does not fit a sink, and will not at a second try; `where` names it."""
    try:
        yield
    except (Refused, StageMismatch) as error:
        raise Failed from error
    except DBAPIError as error:
        sqlstate = sqlstate_of(error)
        if isinstance(error, OperationalError) and not sqlstate.startswith(_PROGRAM_LIMIT):
            raise
        said = f"{where}: {first_line(error, spec)}"
        if refers_to_nothing(error, spec):
            if spec.foreign_keys_within is not None:
                raise
            said += "; if another pipeline brings that row, state in the spec for how long to wait: foreign_keys_within"
        # A constraint of the target, a sum out of range.
        raise Failed from StageMismatch(said)


def check_constraints(conn: Connection, spec: Pipeline) -> None:
    """Failed where a deferred constraint of a table refuses what was folded: at the COMMIT it would undo what others in
    the group have folded, and nobody would know whose rows it refuses.
    """
    with failing(spec, "a deferred constraint"):
        conn.exec_driver_sql("set constraints all immediate; set constraints all deferred")


def decide(conn: Connection, row: Transaction, applied: dict[str, Applied], started: float, why: str) -> None:
    """Move the row to COMMITTED, a step for destinations; its writers, whose rows count now, need not be known more."""
    writers.forget_all(conn, row)
    steps.record(conn, row)
    said = {"applied": applied, "seconds": round(time.monotonic() - started, 4)}
    now = func.clock_timestamp()
    move(conn, row, State.COMMITTED, who=row.run_id, why=why, detail=said, committed_at=now, applied=applied)
