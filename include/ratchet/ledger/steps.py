"""Steps: commits in the order in which destinations get them, and how far each destination has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from secrets import randbits

from sqlalchemy import ColumnElement, Connection, and_, exists, func, insert, select, update

from ratchet.ledger.rows import DestinationRow, Line, StepRow, Transaction
from ratchet.ledger.schema import destinations, pipelines, steps, transactions


def record(conn: Connection, row: Transaction) -> None:
    """Number the commit of a transaction or revision, where its pipeline has destinations; the caller has the lock.

    It is part of the decision: of a commit that has no number no destination would ever hear. Whether there are any the
    ledger says, as the process that commits may have another spec.
    """
    # Also where all are detached: the one that is attached again has to know what it has missed.
    mine = exists().where(destinations.c.pipeline == row.pipeline)
    numbered = update(pipelines).where(pipelines.c.pipeline == row.pipeline, mine).values(step=pipelines.c.step + 1)
    step = conn.execute(numbered.returning(pipelines.c.step)).scalar_one_or_none()
    if step is not None:
        conn.execute(
            insert(steps).values(
                pipeline=row.pipeline, step=step, token=new_token(), txid=row.txid, revision=row.revision
            )
        )


def new_token() -> int:
    """A random number that no other step or start has; above 0, as PostgreSQL's bigint."""
    return randbits(62) + 1


def behind(conn: Connection, line: Line) -> DestinationRow | None:
    """An attached destination that lacks a step, so that nothing more may be decided; the caller has the lock."""
    found = conn.execute(
        select(destinations)
        .where(*_attached(line.pipeline), destinations.c.step < line.step)
        .order_by(destinations.c.destination)
        .limit(1)
    )
    return DestinationRow.one_or_none(found)


def is_behind(conn: Connection, pipeline: str) -> bool:
    """Whether an attached destination lacks a step, as it is at this moment."""
    lacks = and_(*_attached(pipeline), pipelines.c.pipeline == pipeline, destinations.c.step < pipelines.c.step)
    return conn.execute(select(exists().where(lacks))).scalar_one()


def destinations_of(conn: Connection, pipeline: str) -> list[DestinationRow]:
    """All that the ledger knows of a pipeline, in the order of their addresses."""
    return destinations_of_all(conn, [pipeline]).get(pipeline, [])


def destinations_of_all(conn: Connection, pipelines: Sequence[str]) -> dict[str, list[DestinationRow]]:
    """{pipeline: all that the ledger knows of it}, of those that have any."""
    found = select(destinations).where(destinations.c.pipeline.in_(pipelines))
    rows = DestinationRow.all(conn.execute(found.order_by(destinations.c.pipeline, destinations.c.destination)))
    return {pipeline: [*of] for pipeline, of in groupby(rows, key=lambda row: row.pipeline)}


def lacking(conn: Connection, pipelines: Sequence[str]) -> dict[tuple[str, str], datetime]:
    """{(pipeline, destination): when the first step was decided that it lacks}, of those that lack any."""
    of = destinations.c
    next_one = and_(steps.c.pipeline == of.pipeline, steps.c.step == of.step + 1)
    query = select(of.pipeline, of.destination, steps.c.at).join(steps, next_one).where(of.pipeline.in_(pipelines))
    return {(pipeline, destination): at for pipeline, destination, at in conn.execute(query)}


def destination(conn: Connection, pipeline: str, address: str, *, lock: bool = False) -> DestinationRow | None:
    """One of them; None if there is none."""
    query = select(destinations).where(destinations.c.pipeline == pipeline, destinations.c.destination == address)
    return DestinationRow.one_or_none(conn.execute(query.with_for_update() if lock else query))


def step_of(conn: Connection, pipeline: str, number: int) -> StepRow | None:
    """A step by its number; None where there is none, or it is pruned."""
    return StepRow.one_or_none(conn.execute(select(steps).where(steps.c.pipeline == pipeline, steps.c.step == number)))


def has_earlier(conn: Connection, of: StepRow) -> bool:
    """Whether another step of the same transaction was decided before."""
    same = (steps.c.pipeline == of.pipeline, steps.c.txid == of.txid, steps.c.step < of.step)
    return conn.execute(select(exists().where(*same))).scalar_one()


def register(conn: Connection, line: Line | None, named: Mapping[str, object]) -> None:
    """Have a destination get what is decided from now on; the caller has the lock. `named` is what the spec says of it:
    pipeline, destination, sink, can_revise.
    """
    after = {"step": line.step if line else 0, "since": line.head if line else 0}
    conn.execute(insert(destinations).values(**named, **after, token=new_token()))


def declare(conn: Connection, pipeline: str, address: str, *, can_revise: bool) -> None:
    """Note whether rows that a destination has can give way, by the spec that is deployed now."""
    c = destinations.c
    other = (c.pipeline == pipeline, c.destination == address, c.can_revise != can_revise)
    conn.execute(update(destinations).where(*other).values(can_revise=can_revise))


def started(conn: Connection, of: DestinationRow) -> None:
    """Note that a destination has its first mark."""
    conn.execute(update(destinations).where(*_is(of)).values(started=True))


def reached(conn: Connection, of: DestinationRow, step: int, token: int) -> None:
    """Note that a destination has a step of this ledger: never one before what is known of it.

    A late follower may know a step that a restored ledger has lost; and where it is detached nobody asks.
    """
    known = exists().where(steps.c.pipeline == of.pipeline, steps.c.step == step, steps.c.token == token)
    forward = (*_is(of), destinations.c.detached_at.is_(None), destinations.c.step < step, known)
    values = {"step": step, "token": token, "reached_at": func.clock_timestamp()}
    conn.execute(update(destinations).where(*forward).values(values))


def are_there(conn: Connection, pipeline: str, after: int, last: int) -> bool:
    """Whether the ledger has every step behind `after` up to the last."""
    mine = (steps.c.pipeline == pipeline, steps.c.step > after, steps.c.step <= last)
    return conn.execute(select(func.count()).select_from(steps).where(*mine)).scalar_one() == last - after


def unnumbered(conn: Connection, pipeline: str) -> tuple[int, list[tuple[int, int]]]:
    """(how many steps there are, (txid, revision) of commits behind the first step's that are none)."""
    mine = steps.c.pipeline == pipeline
    count, since = conn.execute(select(func.count(), func.min(steps.c.at)).where(mine)).one()
    t = transactions.c
    numbered = exists().where(mine, steps.c.txid == t.txid, steps.c.revision == t.revision)
    lost = select(t.txid, t.revision).where(
        t.pipeline == pipeline, t.applied.is_not(None), t.committed_at > since, ~numbered
    )
    return count, [tuple(row) for row in conn.execute(lost.order_by(t.txid, t.revision))]


def _attached(pipeline: str) -> tuple[ColumnElement[bool], ...]:
    return destinations.c.pipeline == pipeline, destinations.c.detached_at.is_(None)


def _is(of: DestinationRow) -> tuple[ColumnElement[bool], ...]:
    return destinations.c.pipeline == of.pipeline, destinations.c.destination == of.destination
