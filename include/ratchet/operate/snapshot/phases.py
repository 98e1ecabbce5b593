"""Of a transaction, from when to when it was in which phase; what was halted, or had no run, is no work on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, literal, select, true, tuple_

from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import events, transactions
from ratchet.ledger.states import State

NEWEST = 500
"""So many events of a transaction are looked at, the newest ones: an outage of days has a claim every minute."""
LONG = timedelta(minutes=1)
"""A commit takes less, unless it waits."""
_LIFTS = ("retry", "accept-loss", "repartitioned")
_TOLD = ("halt", "end", "claim", *_LIFTS, State.ABORTED, State.VOIDED)


@dataclass(frozen=True)
class Phase:
    """A phase, since when and until when; None where it goes on.

    `start` is until the first try, `process` until every slice has voted, `commit` until the commit. `wait` is before
    another transaction, behind a pause, or without a run, `halted` until a person has decided. `aborted` and `voided`
    are since that was decided.
    """

    name: str
    since: datetime
    until: datetime | None


@dataclass(frozen=True)
class Told:
    """What the history tells of when work on a transaction stood still."""

    at: datetime
    move: str
    lifts: bool
    """Whether a halt ends by it, at the latest."""


def told(conn: Connection, pipeline: str, rows: Iterable[Transaction]) -> dict[tuple[int, int], list[Told]]:
    """{(txid, revision): what its history tells}, of those that have stood still or may have.

    The others have had one claim and were committed soon after they were prepared, so that nobody's history is read for
    nothing.
    """
    wanted = [(row.txid, row.revision) for row in rows if row.claim > 1 or row.applied is None or _waited(row)]
    if not wanted:
        return {}
    c, e = transactions.c, events.c
    mine = (e.pipeline == c.pipeline, e.txid == c.txid, e.revision == c.revision, e.move.in_(map(literal, _TOLD)))
    newest = select(e.seq, e.at, e.move, e.detail.has_key("source").label("begins")).where(*mine)
    newest = newest.order_by(e.seq.desc()).limit(NEWEST).lateral("newest")
    query = (
        select(c.txid, c.revision, newest.c.at, newest.c.move, newest.c.begins)
        .join(newest, true())
        .where(c.pipeline == pipeline, tuple_(c.txid, c.revision).in_(wanted))
        .order_by(c.txid, c.revision, newest.c.seq)
    )
    found: dict[tuple[int, int], list[Told]] = {}
    for txid, revision, at, move, begins in conn.execute(query):
        # The begin of a source is told to the newest transaction, whatever becomes of that.
        found.setdefault((txid, revision), []).append(Told(at, move, move in _LIFTS and not begins))
    return found


def _waited(row: Transaction) -> bool:
    """Whether it stood prepared for long: its run may have ended meanwhile, and another have taken it along."""
    return bool(row.prepared_at and row.committed_at and row.committed_at - row.prepared_at > LONG)


def phases_of(
    row: Transaction, tried_at: datetime | None, said: Sequence[Told], *, waits: bool, ends: bool, now: datetime
) -> tuple[Phase, ...]:
    """The phases of a transaction or revision in their order.

    `waits` where another one, or a person, has to let its commit go on; `ends` where nobody will go on with it.
    """
    is_voided = row.state == State.VOIDED or (row.state == State.COMMITTED and row.applied is None)
    decided = State.VOIDED if is_voided else row.state
    over = next((one.at for one in reversed(said) if one.move == decided), None)
    until = over or row.committed_at
    begun = (("start", row.opened_at), ("process", tried_at), ("wait" if waits else "commit", row.prepared_at))
    known = [(name, at) for name, at in begun if at]
    # A later epoch may be prepared before the first try of another claim is over; none took less than nothing.
    known = [(name, max(at, row.opened_at)) for name, at in known]
    # Where a clock was set back, it was begun all the same.
    known = known[:1] + [(name, at) for name, at in known[1:] if until is None or at <= until]
    parts = [
        Phase(name, at, max(at, after) if after else None)
        for (name, at), after in zip(known, [*(at for _, at in known[1:]), until], strict=True)
    ]
    stops = list(_stops(said))
    found = [piece for part in parts for piece in _without(part, stops)]
    if over and row.state == State.ABORTED:
        found += [Phase("aborted", over, over)] if ends else _without(Phase("aborted", over, None), stops)
    elif over:
        found.append(Phase("voided", over, over))
    last = None if not ends and row.is_unfinished else until or now
    found += [stop for one in stops if (stop := _before(one, last))]
    return tuple(sorted(found, key=lambda phase: phase.since))


def seconds_of(phases: Iterable[Phase], *names: str) -> float:
    """How long it was in phases that are over."""
    return sum((of.until - of.since).total_seconds() for of in phases if of.until and of.name in names)


def _stops(said: Iterable[Told]) -> Iterator[Phase]:
    """When it was halted, and when no run had it."""
    name, since = "", None
    for one in said:
        if since and (one.move in ("claim", "halt", State.VOIDED) or (name == "halted" and one.lifts)):
            yield Phase(name, since, max(since, one.at))
            since = None
            if one.lifts:
                name, since = "wait", one.at
        if one.move == "halt" or (one.move == "end" and since is None):
            name, since = "halted" if one.move == "halt" else "wait", one.at
    if since:
        yield Phase(name, since, None)


def _without(phase: Phase, stops: Iterable[Phase]) -> list[Phase]:
    """What of a phase is left between the times at which it stood still."""
    found: list[Phase] = []
    since: datetime | None = phase.since
    for stop in stops:
        if since is None or (phase.until and stop.since >= phase.until):
            break
        if stop.until is None or stop.until > since:
            if stop.since > since:
                found.append(Phase(phase.name, since, stop.since))
            since = stop.until
    if since and (since == phase.since or phase.until is None or since < phase.until):
        found.append(Phase(phase.name, since, phase.until))
    return found


def _before(phase: Phase, end: datetime | None) -> Phase | None:
    """What of a phase is before this moment."""
    if end is None:
        return phase
    return Phase(phase.name, phase.since, min(phase.until or end, end)) if phase.since < end else None
