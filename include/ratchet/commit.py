"""commit: prepared transactions take effect in txid order, each once, in all sinks together."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC

from sqlalchemy import Connection, Row, func, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError

from ratchet.begin import waits_for
from ratchet.errors import Fenced, IllegalMove, Refused, StageMismatch
from ratchet.ledger import Ledger, lock_pipeline, move, read_transaction
from ratchet.pipeline import DEAD_LETTERS, Pipeline
from ratchet.schema import pipelines, stages, transactions
from ratchet.sinks import fold, stage
from ratchet.transaction import Claim, State
from ratchet.votes import read_votes


@dataclass(frozen=True)
class Committed:
    """The transaction is committed; `txids` are those that this very call committed, in order."""

    txids: tuple[int, ...]
    message: str


@dataclass(frozen=True)
class Waits:
    """It is not the transaction's turn; the message says what stands before it."""

    message: str


class _Failed(Exception):
    """A member of the group that cannot be applied; `__cause__` says why."""


def commit(ledger: Ledger, spec: Pipeline, claim: Claim) -> Committed | Waits:
    """Commit the claim's transaction if it is its turn, and the prepared ones right behind it.

    1. Take the pipeline's lock: the commit lock.
    2. Look at the state: what is committed already is success, whoever did it.
    3. See whether it has its turn: txid = head + 1.
    4. For it and each prepared successor: in a savepoint, fold what the votes name into every sink, move it to
       COMMITTED, move the head. The first that fails is undone and ends the group.
    5. Commit all that as one database transaction. Before this instant nobody sees anything of it, after it
       everybody sees all of it.
    6. Where the first of the group was the one that failed, abort it with its reason.
    7. Discard the stages of what is finished.

    Raises Refused when the transaction is or becomes ABORTED, with the reason; LedgerUnreachable when the outcome
    is unknown: call again, step 2 resolves it.
    """
    txid, done, failed = claim.txid, [], None
    with ledger.begin() as conn:
        # Step 1
        line = lock_pipeline(conn, spec.name)
        # Step 2
        row = read_transaction(conn, spec.name, txid)
        ended = _ended(conn, row, claim)
        if ended:
            return ended
        # Step 3
        waiting = waits_for(conn, spec.name, line.head, txid)
        if waiting:
            return Waits(f"transaction {txid}: prepared; {waiting}")
        # Step 4
        for member in _group(conn, spec.name, line.head):
            try:
                with conn.begin_nested():
                    _commit_one(conn, spec, line.topic_id, member, by=txid)
            except _Failed as failure:
                failed = (member, str(failure.__cause__))
                break
            done.append(member.txid)
    # Step 5 was the end of the block.
    if not done:
        # Step 6
        _abort(ledger, *failed)
    # Step 7
    discard_finished(ledger, spec.name)
    after = f"; {failed[0].txid} fails and is left to its own commit: {failed[1]}" if failed else ""
    with_it = f" and, waiting right behind it, {_list(done[1:])}" if done[1:] else ""
    return Committed(tuple(done), f"transaction {txid}: committed{with_it}{after}")


def _list(txids: list[int]) -> str:
    return ", ".join(map(str, txids))


def _ended(conn: Connection, row: Row, claim: Claim) -> Committed | None:
    where = f"{row.pipeline}: transaction {row.txid}"
    match State(row.state):
        case State.COMMITTED:
            at = f"{row.committed_at.astimezone(UTC):%H:%M:%S} UTC"
            return Committed((), f"transaction {row.txid}: was committed at {at}")
        case State.VOIDED:
            return Committed((), f"transaction {row.txid}: is voided, nothing to commit: {row.reason}")
        case State.ABORTED:
            raise Refused(f"{where} is aborted: {row.reason}; the next run tries it again in a new epoch")
        case State.OPEN if row.epoch != claim.epoch or row.claim != claim.number:
            raise Fenced(f"{where}: run {row.run_id} works on it now, in epoch {row.epoch}")
        case State.OPEN:
            raise IllegalMove(f"{where} is OPEN: a slice has not voted; clear the whole run")
    return None


def _group(conn: Connection, pipeline: str, head: int) -> list[Row]:
    """The unbroken row of prepared transactions behind the head, locked, lowest first."""
    prepared = conn.execute(
        select(transactions)
        .where(
            transactions.c.pipeline == pipeline,
            transactions.c.revision == 0,
            transactions.c.txid > head,
            transactions.c.state == State.PREPARED,
        )
        .order_by(transactions.c.txid)
        .with_for_update()
    ).all()
    return [row for place, row in enumerate(prepared) if row.txid == head + 1 + place]


def _commit_one(conn: Connection, spec: Pipeline, topic_id: str, row: Row, by: int) -> None:
    """Fold, decide and move the head for one transaction; _Failed when its data cannot be applied."""
    started = time.monotonic()
    votes = read_votes(conn, spec.name, row.txid, row.epoch)
    relations = stage.relations(conn, spec.name, row.txid, row.epoch)
    rows: dict[str, int] = {}
    names = {DEAD_LETTERS, *(sink.name for sink in spec.sinks)}
    if any(set(sinks) != names for _, _, sinks in votes):
        raise _Failed from StageMismatch(
            f"{spec.name}: transaction {row.txid} was prepared for other sinks than today's"
        )
    try:
        for sink in [*spec.sinks, None]:
            name = sink.name if sink else DEAD_LETTERS
            of_sink = [(number, attempt, sinks[name]) for number, attempt, sinks in votes]
            rows[name] = fold.apply(conn, spec.name, spec.source, topic_id, sink, relations[name], row.txid, of_sink)
    except (Refused, StageMismatch) as error:
        raise _Failed from error
    except OperationalError:
        raise
    except DBAPIError as error:
        # A constraint of the target, a sum out of range: the data does not fit, and will not at a second try.
        raise _Failed from StageMismatch(f"{name}: {str(error.orig).splitlines()[0]}")
    move(
        conn,
        row,
        State.COMMITTED,
        who=row.run_id,
        why="its turn" if row.txid == by else f"together with {by}",
        detail={"rows": rows, "seconds": round(time.monotonic() - started, 4)},
        committed_at=func.clock_timestamp(),
    )
    moved = conn.execute(
        update(pipelines)
        .where(pipelines.c.pipeline == spec.name, pipelines.c.head == row.txid - 1)
        .values(head=row.txid)
    )
    if moved.rowcount != 1:
        raise Fenced(f"{spec.name}: the head is not {row.txid - 1}; nothing was committed")


def _abort(ledger: Ledger, row: Row, reason: str) -> None:
    with ledger.begin() as conn:
        lock_pipeline(conn, row.pipeline)
        now = read_transaction(conn, row.pipeline, row.txid, lock=True)
        if now.state == State.PREPARED and now.epoch == row.epoch:
            move(conn, now, State.ABORTED, who=row.run_id, why=reason, reason=reason)
    raise Refused(
        f"{row.pipeline}: transaction {row.txid} is aborted: {reason}; correct the cause, the next run tries it again"
    )


def discard_finished(ledger: Ledger, pipeline: str) -> int:
    """Drop the stages of committed and voided transactions and of epochs that are over; returns how many.

    Chosen by state alone. Outside the commit lock; a stage that somebody still holds is left for the next time.
    """
    over = (transactions.c.state.in_([State.COMMITTED, State.VOIDED])) | (stages.c.epoch < transactions.c.epoch)
    same = (transactions.c.pipeline == stages.c.pipeline) & (transactions.c.txid == stages.c.txid)
    with ledger.begin() as conn:
        names = conn.execute(
            select(stages.c.relation).join(transactions, same).where(stages.c.pipeline == pipeline, over)
        ).scalars()
        dropped = 0
        for relation in names.all():
            try:
                with conn.begin_nested():
                    conn.execute(text("set local lock_timeout = '200ms'"))
                    stage.drop(conn, relation)
                dropped += 1
            except OperationalError:
                continue
    return dropped
