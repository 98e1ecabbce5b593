"""Failed tries and commits: why each came to nothing, kept in the transaction's history."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from ratchet.errors import CommitFailed, Fenced, OtherCode, RatchetError, Refused, is_outage
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.fence import check_try, read_slice
from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import events
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Claim, SliceToken, utc
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.pipeline import Pipeline
from ratchet.values.withheld import postgres_said

DEADLINE = "deadline"
"""Who aborts an epoch that was not prepared in time, as the history has it."""
_TRY_FAILED, _COMMIT_FAILED = "error", "commit failed"
FOREIGN_KEY = "23503"
"""A row that is referred to is not there, or one that goes is still referred to."""
_OF_THE_SERVER = ("53100", "53200", "53300", "58")
"""SQLSTATEs, or their beginnings, by which the server lacks disk, memory or connections, or cannot read its files."""


@contextmanager
def errors_recorded(ledger: Ledger, token: SliceToken) -> Generator[None]:
    """Write into the history why a try came to nothing: its task's log may be gone when a person asks for it.

    What the ledger says itself, by a vote of no or a fence, is there already.
    """
    try:
        yield
    except (Refused, Fenced):
        raise
    except RatchetError as error:
        with suppress(RatchetError), ledger.begin() as conn:
            row = read_transaction(conn, token.pipeline, token.txid, token.revision, lock=True)
            check_try(row, read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice), token)
            said = {"slice": token.slice, "try": token.try_number, "why": str(error), "code": error.code}
            said["outage"] = is_outage(error) or isinstance(error, OtherCode)
            history.record(conn, row, who=row.run_id, move=_TRY_FAILED, detail=said)
        raise


def other_code(conn: Connection, row: Transaction, code: str, slice_number: int, try_number: int, *, took: bool) -> str:
    """Note that a process with other code has come upon an epoch, and say so in a line; it changes nothing else.

    In the midst of a deploy two workers have two versions: neither is to blame. `try_number` is the slice's latest try,
    which ends by it where this process `took` it. The caller holds the row's lock.
    """
    why = f"the code is {code}, the epoch began with {row.code_hash}; nothing was changed"
    said = {"slice": slice_number, "try": try_number, "why": why, "outage": True, "took": took}
    history.record(conn, row, who=row.run_id, move=_TRY_FAILED, detail=said)
    return f"{why}; the next run begins a new epoch with its own code"


def sqlstate_of(error: DBAPIError) -> str:
    """PostgreSQL's code of an error; "" where it has none."""
    return getattr(error.orig, "sqlstate", None) or ""


def first_line(error: DBAPIError, spec: Pipeline) -> str:
    """What PostgreSQL said, in a line; without values of records where the spec keeps them out."""
    assert error.orig is not None, "of a statement that PostgreSQL has refused"
    return postgres_said(error.orig, private=spec.private).splitlines()[0]


def commit_failed(ledger: Ledger, spec: Pipeline, claim: Claim, error: DBAPIError) -> CommitFailed:
    """Write into the history what PostgreSQL said to a commit whose connection is fine, and say it.

    A limit that this role or server has, such as `temp_file_limit`, is met by each commit of the same rows, so it
    counts as a failure of the claim; what the server lacks does not.
    """
    why, then = first_line(error, spec), "correct the cause, the next run tries it again"
    waits = spec.foreign_keys_within is not None and refers_to_nothing(error, spec)
    outage = sqlstate_of(error).startswith(_OF_THE_SERVER)
    with suppress(RatchetError), ledger.begin() as conn:
        row = read_transaction(conn, claim.pipeline, claim.txid, claim.revision, lock=True)
        until = _waits_until(conn, spec, row) if waits else None
        if until:
            outage = True
            then = f"what it refers to may come yet: it is tried again, and not counted, until {utc(until)}"
        if row.state == State.PREPARED and (row.epoch, row.claim) == (claim.epoch, claim.number):
            said = {"why": why, "code": CommitFailed.code, "outage": outage, "waits": waits}
            history.record(conn, row, who=row.run_id, move=_COMMIT_FAILED, detail=said)
    return CommitFailed(f"{claim.pipeline}: {claim}: PostgreSQL cannot commit it: {why}; nothing was changed; {then}")


def refers_to_nothing(error: DBAPIError, spec: Pipeline) -> bool:
    """Whether rows of the spec's refer by a foreign key to a row that is not there; not where others refer to theirs.

    PostgreSQL names the table that refers, whichever of the two was changed.
    """
    diag = getattr(error.orig, "diag", None)
    if sqlstate_of(error) != FOREIGN_KEY or diag is None:
        return False
    mine = {(table.schema, table.name) for sink in sinks_of(spec) for table in sink.tables}
    return (diag.schema_name, diag.table_name) in mine


def _waits_until(conn: Connection, spec: Pipeline, row: Transaction) -> datetime | None:
    """Until when the row's commits wait for what its rows refer to; None when that is over.

    The time begins with the first commit that waits, since its turn or a person's word; a transaction may have been
    prepared long before it has its turn.
    """
    assert spec.foreign_keys_within is not None, "it waits"
    mine = (events.c.pipeline == row.pipeline, events.c.txid == row.txid, events.c.revision == row.revision)
    afresh = (events.c.move == "retry") | ((events.c.move == "claim") & events.c.detail.has_key("afresh"))
    begun = select(func.coalesce(func.max(events.c.seq), 0)).where(*mine, afresh).scalar_subquery()
    waiting = (events.c.move == _COMMIT_FAILED, events.c.epoch == row.epoch, events.c.detail["waits"].as_boolean())
    query = select(func.clock_timestamp(), func.min(events.c.at)).where(*mine, *waiting, events.c.seq > begun)
    now, first = conn.execute(query).one()
    until: datetime = (first or now) + spec.foreign_keys_within
    return until if now < until else None


def is_refused(conn: Connection, row: Transaction) -> bool:
    """Whether PostgreSQL has refused what the row's present claim would commit, which another claim will not change."""
    found = _latest(conn, row, _COMMIT_FAILED)
    return found is not None and not found["outage"]


def last_error(conn: Connection, row: Transaction) -> str | None:
    """Why the commit, or a try, of the row's present claim came to nothing, in a line.

    None if none has said so, or its slice has gone on since. Where several tries have, the latest.
    """
    found = _latest(conn, row, _COMMIT_FAILED if row.state == State.PREPARED else _TRY_FAILED)
    if found is None:
        return None
    if row.state != State.PREPARED and not _is_last_try(conn, row, found):
        return None
    return " ".join(found["why"].removeprefix(f"{row.pipeline}: ").split())


def last_code(conn: Connection, row: Transaction) -> str | None:
    """The code of the error by which the row's latest claim came to nothing; None where nobody has said one, or the
    slice of it has gone on since.

    What a gate, a sink's rule or the transform has refused is Refused; an abort by a person or a deadline is no error.
    """
    found = conn.execute(
        select(events.c.move, events.c.who, events.c.detail)
        .where(events.c.pipeline == row.pipeline, events.c.txid == row.txid, events.c.revision == row.revision)
        .where(events.c.move.in_(["claim", str(State.OPEN), _TRY_FAILED, _COMMIT_FAILED, str(State.ABORTED)]))
        .order_by(events.c.seq.desc())
        .limit(1)
    ).one()
    if found.move == State.ABORTED:
        return found.detail.get("code") or (Refused.code if found.who == row.run_id else None)
    if found.move == _COMMIT_FAILED or (found.move == _TRY_FAILED and _is_last_try(conn, row, found.detail)):
        return found.detail.get("code")
    # A claim has failed by nothing yet; what begins a revision has a code too, that of its transform.
    return None


def _is_last_try(conn: Connection, row: Transaction, failed: dict[str, Any]) -> bool:
    """Whether the slice of a try that has failed is where that has left it."""
    slice_ = read_slice(conn, row.pipeline, row.txid, row.epoch, failed["slice"])
    return slice_.voted_at is None and slice_.try_number == failed["try"]


def coded(why: str, code: str | None) -> str:
    """A reason with the code of its error, by which the command says what it means and what to do."""
    return f"{why} ({code}; ratchet explain {code})" if code and code not in why else why


def _latest(conn: Connection, row: Transaction, kind: str) -> dict[str, Any] | None:
    """What the history says of the latest failure of this kind, if it is of the row's present claim."""
    found = conn.execute(
        select(events.c.move, events.c.detail)
        .where(events.c.pipeline == row.pipeline, events.c.txid == row.txid, events.c.revision == row.revision)
        .where(events.c.move.in_(["claim", str(State.OPEN), kind]))
        .order_by(events.c.seq.desc())
        .limit(1)
    ).one()
    return found.detail if found.move == kind else None


def met_outages_alone(conn: Connection, row: Transaction) -> bool:
    """Whether the row's present claim came to nothing because servers did not answer, or because of two versions of the
    code: each of its tries that has not voted has said so.

    A try that ended without a word may have been killed by its own data, and is no outage, unless the deadline of its
    epoch has overtaken it.
    """
    mine = (events.c.pipeline == row.pipeline, events.c.txid == row.txid, events.c.revision == row.revision)
    begun = select(func.max(events.c.seq)).where(*mine, events.c.move.in_(["claim", str(State.OPEN)]))
    moves = conn.execute(
        select(events.c.move, events.c.who, events.c.detail).where(*mine, events.c.seq > begun.scalar_subquery())
    ).all()
    overdue = [move.who == DEADLINE for move in moves if move.move == State.ABORTED]
    of_tries = [(move.move, move.detail) for move in moves if move.move in ("try", "vote", _TRY_FAILED)]
    silent = {(detail["slice"], detail["try"]) for move, detail in of_tries if move == "try"}
    silent -= {(of["slice"], of["try"]) for move, of in of_tries if move != "try" and of.get("took", True)}
    outages = [detail["outage"] for move, detail in of_tries if move == _TRY_FAILED]
    return bool(outages) and all(outages) and all(overdue) and (bool(overdue) or not silent)
