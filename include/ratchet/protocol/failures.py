"""Failed tries: why each came to nothing, kept in the transaction's history."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, func, select

from ratchet.errors import OUTAGES, Fenced, OtherCode, RatchetError, Refused
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.fence import check_try, read_slice
from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import events
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import SliceToken

DEADLINE = "deadline"
"""Who aborts an epoch that was not prepared in time, as the history has it."""


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
            said = {"slice": token.slice, "try": token.try_number, "why": str(error)}
            said["outage"] = isinstance(error, (*OUTAGES, OtherCode))
            history.record(conn, row, who=row.run_id, move="error", detail=said)
        raise


def other_code(conn: Connection, row: Transaction, code: str, slice_number: int, try_number: int, *, took: bool) -> str:
    """Note that a process with other code has come upon an epoch, and say so in a line; it changes nothing else.

    In the midst of a deploy two workers have two versions: neither is to blame. `try_number` is the slice's latest try,
    which ends by it where this process `took` it. The caller holds the row's lock.
    """
    why = f"the code is {code}, the epoch began with {row.code_hash}; nothing was changed"
    said = {"slice": slice_number, "try": try_number, "why": why, "outage": True, "took": took}
    history.record(conn, row, who=row.run_id, move="error", detail=said)
    return f"{why}; the next run begins a new epoch with its own code"


def last_error(conn: Connection, row: Transaction) -> str | None:
    """Why a try of the row's present claim came to nothing, in a line; None if none has said so, or its slice has gone
    on since. Where several have, the latest.
    """
    found = conn.execute(
        select(events.c.move, events.c.detail)
        .where(events.c.pipeline == row.pipeline, events.c.txid == row.txid, events.c.revision == row.revision)
        .where(events.c.move.in_(["claim", str(State.OPEN), "error"]))
        .order_by(events.c.seq.desc())
        .limit(1)
    ).one()
    if found.move != "error":
        return None
    slice_ = read_slice(conn, row.pipeline, row.txid, row.epoch, found.detail["slice"])
    if slice_.voted_at is not None or slice_.try_number != found.detail["try"]:
        return None
    return " ".join(found.detail["why"].removeprefix(f"{row.pipeline}: ").split())


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
    of_tries = [(move.move, move.detail) for move in moves if move.move in ("try", "vote", "error")]
    silent = {(detail["slice"], detail["try"]) for move, detail in of_tries if move == "try"}
    silent -= {(of["slice"], of["try"]) for move, of in of_tries if move != "try" and of.get("took", True)}
    outages = [detail["outage"] for move, detail in of_tries if move == "error"]
    return bool(outages) and all(outages) and all(overdue) and (bool(overdue) or not silent)
