"""Replays: revisions that are asked for and wait, so that one at a time is worked on beside the live transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import ColumnElement, Connection, delete, exists, func, or_, select, true, update
from sqlalchemy.dialects.postgresql import insert

from ratchet.errors import NotRevisable
from ratchet.ledger import history
from ratchet.ledger.rows import Line, Replay, Transaction
from ratchet.ledger.schema import replays, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_newest, is_unfinished, newest_revision, read_transaction
from ratchet.ledger.work import Claim, Run
from ratchet.protocol.revise import release, revise
from ratchet.spec.pipeline import Pipeline

ASKED = "replay"
"""The name in the history of what asks for a revision."""
RELEASE = "release"
"""The name in the history of what asks for a release."""


def ask(
    conn: Connection, spec: Pipeline, txids: Iterable[int], who: str, why: str, releases: str | None = None
) -> list[int]:
    """Ask for a revision of each transaction; those that did not wait already, in order.

    With `releases` a release of its dead letters whose errors contain that text. Of one transaction one of both waits:
    a revision takes the place of a release, whose records it processes as well, and one of all dead letters that of
    some; else what waits stays.

    The code with which it is asked for is kept: which of two versions is the newer one no process knows, so whatever
    code a run has does what it begins, and where that is another one people are told. The caller holds the pipeline's
    lock, and has checked that they can be revised.
    """
    asked: list[int] = []
    code = spec.code_hash
    asks_all = {None: true(), "": replays.c.releases.is_not(None)}.get(releases, replays.c.releases == releases)
    is_other = or_(replays.c.code_hash != code, replays.c.releases.is_distinct_from(releases))
    for txid in sorted(txids):
        said = {"who": who, "reason": why, "code_hash": code, "releases": releases, "given_up": None}
        adding = insert(replays).values(pipeline=spec.name, txid=txid, **said)
        anew = adding.on_conflict_do_update(
            index_elements=["pipeline", "txid"],
            set_={**said, "at": func.clock_timestamp()},
            where=or_(replays.c.given_up.is_not(None), asks_all & is_other),
        )
        if conn.execute(anew.returning(replays.c.txid)).scalar_one_or_none() is None:
            continue
        asked.append(txid)
        _record(conn, spec.name, txid, who, why, ASKED if releases is None else RELEASE, code=code)
    return asked


def forget(conn: Connection, pipeline: str, first: int, last: int, who: str, why: str) -> list[int]:
    """Take back what is asked for of transactions `first` to `last` and not begun; their txids, in order."""
    mine = (replays.c.pipeline == pipeline, replays.c.txid.between(first, last))
    gone = sorted(conn.execute(delete(replays).where(*mine).returning(replays.c.txid)).scalars())
    for txid in gone:
        _record(conn, pipeline, txid, who, f"not any more: {why}")
    return gone


def first(conn: Connection, pipeline: str, *, only_releases: bool = False) -> Replay | None:
    """The one that has waited longest."""
    mine = (*_waits(pipeline), *([replays.c.releases.is_not(None)] if only_releases else []))
    return Replay.one_or_none(conn.execute(select(replays).where(*mine).order_by(replays.c.id).limit(1)))


def is_asked(conn: Connection, pipeline: str, txid: int) -> bool:
    """Whether a revision of this transaction waits that is no release."""
    one = select(replays.c.txid).where(*_waits(pipeline), replays.c.txid == txid, replays.c.releases.is_(None))
    return conn.execute(select(exists(one))).scalar_one()


def waiting(conn: Connection, pipeline: str) -> int:
    """How many wait."""
    return sum(waiting_of(conn, [pipeline]).get(pipeline, (0, 0)))


def waiting_of(conn: Connection, names: Collection[str]) -> dict[str, tuple[int, int]]:
    """{pipeline: (how many replays wait, how many releases)}, of those in which any does."""
    c = replays.c
    query = select(c.pipeline, func.count(), func.count(c.releases)).where(c.pipeline.in_(names), c.given_up.is_(None))
    return {name: (count - releases, releases) for name, count, releases in conn.execute(query.group_by(c.pipeline))}


def given_up(conn: Connection, names: Collection[str]) -> list[Replay]:
    """Those that cannot be begun any more, and of which nobody has asked for another one since."""
    query = select(replays).where(replays.c.pipeline.in_(names), replays.c.given_up.is_not(None))
    return Replay.all(conn.execute(query.order_by(replays.c.pipeline, replays.c.txid)))


def done_otherwise(conn: Connection, names: Collection[str]) -> list[Transaction]:
    """The committed revisions that none of the whole has replaced, and that were asked for with other code."""
    c, newer = transactions.c, transactions.alias("newer")
    same = (newer.c.pipeline == c.pipeline, newer.c.txid == c.txid, newer.c.revision > c.revision)
    replaced = select(newer.c.txid).where(*same, newer.c.state == State.COMMITTED, newer.c.releases.is_(None))
    # PostgreSQL expects almost every row to differ, but knows how few were asked for.
    mine = (c.pipeline.in_(names), c.asked_code.is_not(None), c.asked_code != c.code_hash, c.state == State.COMMITTED)
    return Transaction.all(
        conn.execute(select(transactions).where(*mine, ~exists(replaced)).order_by(c.pipeline, c.txid))
    )


def is_going_on(conn: Connection, pipeline: str, *, besides: int | None = None) -> bool:
    """Whether a revision is worked on or lies abandoned; one of transaction `besides` does not count."""
    one = select(transactions.c.txid).where(
        transactions.c.pipeline == pipeline,
        is_unfinished(),
        transactions.c.revision > 0,
        transactions.c.halted_at.is_(None),
        transactions.c.txid != (besides or 0),
        is_newest(),
    )
    return conn.execute(select(exists(one))).scalar_one()


def is_due(conn: Connection, pipeline: str, *, only_releases: bool = False) -> Replay | None:
    """The one that a run could begin now; None where none waits, or a revision is going on."""
    return None if is_going_on(conn, pipeline) else first(conn, pipeline, only_releases=only_releases)


def begin_next(
    conn: Connection, spec: Pipeline, line: Line, run: Run, *, only_releases: bool = False
) -> tuple[tuple[Claim, Replay] | None, list[str]]:
    """Begin the revision that is due, for `run`; None where none is. The caller holds the pipeline's lock.

    Where Kafka does not have the line's topic any more, `only_releases` are begun, which read nothing of it.
    What cannot be revised any more is given up: it waits no more, its history and the status of the line say why, and
    so does the second that is returned, a line for each.
    """
    lost: list[str] = []
    while (wanted := is_due(conn, spec.name, only_releases=only_releases)) is not None:
        try:
            claim = _begin(conn, spec, line, wanted, run)
        except NotRevisable as error:
            mine = (replays.c.pipeline == spec.name, replays.c.txid == wanted.txid)
            conn.execute(update(replays).where(*mine).values(given_up=str(error)))
            _record(conn, spec.name, wanted.txid, str(run), f"given up: {error}")
            lost.append(
                f"the revision of transaction {wanted.txid} that {wanted.who} has asked for is given up: {error}"
            )
            continue
        taken(conn, spec.name, wanted.txid)
        return (claim, wanted), lost
    return None, lost


def _begin(conn: Connection, spec: Pipeline, line: Line, wanted: Replay, run: Run) -> Claim:
    code = wanted.code_hash
    if wanted.releases is None:
        return revise(conn, spec, line, wanted.txid, run, asked_code=code)
    return release(conn, spec, line, wanted.txid, run, wanted.releases, asked_code=code)


def taken(conn: Connection, pipeline: str, txid: int) -> str | None:
    """A revision of this transaction is begun: what was asked for is not to be done once more.

    The code with which it was asked for, if it was. What was asked for may be a release, and is done with the rest.
    """
    mine = (replays.c.pipeline == pipeline, replays.c.txid == txid)
    asked = conn.execute(delete(replays).where(*mine).returning(replays.c.code_hash, replays.c.releases)).one_or_none()
    return None if asked is None or asked.releases is not None else asked.code_hash


def _waits(pipeline: str) -> tuple[ColumnElement[bool], ...]:
    return replays.c.pipeline == pipeline, replays.c.given_up.is_(None)


def _record(conn: Connection, pipeline: str, txid: int, who: str, why: str, move: str = ASKED, **said: str) -> None:
    newest = newest_revision(conn, pipeline, txid)
    row = read_transaction(conn, pipeline, txid, newest.revision, lock=True)
    history.record(conn, row, who=who, move=move, detail={"why": why, **said})
