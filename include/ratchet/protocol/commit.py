"""commit: prepared transactions take effect in txid order, each once, in all sinks together."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC

from sqlalchemy import Connection, exists, func, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from ratchet.errors import Fenced, IllegalMove, LedgerUnreachable, NotRevisable, RatchetError, Refused, StageMismatch
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, Transaction
from ratchet.ledger.schema import pipelines, stages, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import lock_pipeline, move, read_transaction
from ratchet.ledger.work import Claim, turn_of
from ratchet.protocol import revise
from ratchet.protocol.gates import is_passed, judge
from ratchet.protocol.halts import why_stopped
from ratchet.protocol.turns import waits_for
from ratchet.protocol.votes import read_votes
from ratchet.sinks import stage
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Applied, Delta
from ratchet.spec.pipeline import Pipeline

_PROGRAM_LIMIT = "54"
"""The class of SQLSTATEs for a key too long for its index and the like, which psycopg counts among what passes."""


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
    """A transaction that cannot be applied; `__cause__` says why."""


@dataclass(frozen=True)
class Advanced:
    """How far the head went: the txids committed, in order, and the member at which the group ended, if one failed."""

    committed: tuple[int, ...]
    failed: int | None = None
    why: str | None = None


def commit(ledger: Ledger, spec: Pipeline, claim: Claim) -> Committed | Waits:
    """Commit the claim's transaction if it is its turn, and the prepared ones right behind it; or its revision.

    1. Look at the state: what is committed already is success, whoever did it.
    2. Ask the gates, once an epoch; a no aborts the transaction.
    3. Take the pipeline's lock: the commit lock. Look at the state again.
    4. A revision waits for no turn: in a savepoint, put its deltas in place of the older ones.
       Else see whether the transaction has its turn: txid = head + 1.
    5. For it and each prepared successor that has passed its gates: in a savepoint, fold what the votes name into
       every sink, move it to COMMITTED, move the head. Voided ones are passed over. The first that fails is undone
       and ends the group.
    6. Where the transaction itself failed, abort it with its reason.
    7. Commit all that as one database transaction. Before this instant nobody sees anything of it, after it
       everybody sees all of it.
    8. Discard the stages of what is finished.

    Raises Refused when the transaction is or becomes ABORTED, NotRevisable when a revision cannot be applied, both
    with the reason; LedgerUnreachable when the outcome is unknown: call again, step 1 resolves it.
    """
    # Step 1
    with ledger.begin() as conn:
        row = read_transaction(conn, spec.name, claim.txid, claim.revision, lock=True)
        halved = give_up_half(conn, row, claim) if row.state == State.OPEN else None
        ended = None if halved else _ended(row, claim)
    if halved:
        raise halved
    if ended:
        return ended
    # Step 2
    judge(ledger, spec, row)
    with ledger.begin() as conn:
        # Step 3
        line = lock_pipeline(conn, spec.name)
        assert line is not None, "a foreign key holds each transaction to its pipeline"
        row = read_transaction(conn, spec.name, claim.txid, claim.revision, lock=True)
        ended = _ended(row, claim)
        if ended:
            return ended
        if not is_passed(spec, row):
            raise Fenced(
                f"{spec.name}: {claim}: run {row.run_id} has it now, in epoch {row.epoch}, which no gate has seen"
            )
        if row.halted_at is not None:
            # Its claim ended, and with it the tries, before its last slice voted.
            raise Refused(why_stopped(row))
        # Step 4
        if row.revision:
            outcome = _commit_revision(conn, spec, line, row)
        else:
            waiting = waits_for(conn, line, row.txid)
            if waiting:
                return Waits(f"{claim}: prepared; {waiting}")
            # Step 5
            advanced = advance(conn, spec, line, by=row)
            outcome = _say(advanced, row)
    # Step 7 was the end of the block.
    if isinstance(outcome, RatchetError):
        raise outcome
    # Step 8
    with suppress(LedgerUnreachable):
        # What is committed is committed; whoever comes next discards.
        discard_finished(ledger, spec.name)
    return outcome


def advance(conn: Connection, spec: Pipeline, line: Line, by: Transaction | None) -> Advanced:
    """Move the head over voided transactions and over those that can be committed now; the caller holds the lock.

    `by` is the transaction whose commit this is: if it fails it is aborted. Another that fails is left to its own
    commit, and what came before it stays.
    """
    head = line.head
    done: list[int] = []
    while head < line.last_txid:
        row = read_transaction(conn, spec.name, turn_of(head), lock=True)
        if row.state == State.PREPARED and row.halted_at is None and is_passed(spec, row):
            try:
                with conn.begin_nested():
                    _commit_one(conn, spec, line.topic_id, row, by)
            except _Failed as failure:
                why = str(failure.__cause__)
                if by is not None and row.txid == by.txid:
                    # Step 6
                    move(conn, row, State.ABORTED, who=row.run_id, why=why, reason=why)
                return Advanced(tuple(done), row.txid, why)
            except OperationalError as error:
                # What the server cannot do now for another's commit must not undo this one.
                if error.connection_invalidated or (by is not None and row.txid == by.txid):
                    raise
                return Advanced(tuple(done), row.txid, str(error.orig).splitlines()[0])
            done.append(row.txid)
        elif row.state != State.VOIDED:
            break
        _move_head(conn, spec.name, head)
        head += 1
    return Advanced(tuple(done))


def _say(advanced: Advanced, row: Transaction) -> Committed | Refused:
    if advanced.failed == row.txid:
        return Refused(
            f"{row.pipeline}: transaction {row.txid} is aborted: {advanced.why}; correct the cause, the next run tries "
            "it again"
        )
    others = advanced.committed[1:]
    with_it = f" and, waiting right behind it, {', '.join(map(str, others))}" if others else ""
    after = f"; {advanced.failed} fails and is left to its own commit: {advanced.why}" if advanced.failed else ""
    return Committed(advanced.committed, f"transaction {row.txid}: committed{with_it}{after}")


def _ended(row: Transaction, claim: Claim) -> Committed | None:
    """What there is to say of a transaction that is not PREPARED; None if it is."""
    where = f"{row.pipeline}: {claim}"
    match row.state:
        case State.COMMITTED:
            assert row.committed_at is not None, "the move to COMMITTED has set it"
            return Committed((), f"{claim}: was committed at {row.committed_at.astimezone(UTC):%H:%M:%S} UTC")
        case State.VOIDED:
            return Committed((), f"{claim}: is voided, nothing to commit: {row.reason}")
        case State.ABORTED:
            again = "the old result stays" if row.revision else "the next run tries it again in a new epoch"
            raise Refused(f"{where} is aborted: {row.reason}; {again}")
        case State.OPEN if row.epoch != claim.epoch or row.claim != claim.number:
            raise Fenced(f"{where}: run {row.run_id} works on it now, in epoch {row.epoch}")
        case State.OPEN:
            raise IllegalMove(f"{where} is OPEN: a slice has not voted; clear the whole run")
        case State.PREPARED:
            return None


def give_up_half(conn: Connection, row: Transaction, claim: Claim) -> NotRevisable | None:
    """A revision of which only some tasks were cleared is given up: nobody asked for the whole of it.

    None if the row is no unfinished revision of this claim; the caller holds its lock.
    """
    unfinished = row.state in (State.OPEN, State.PREPARED)
    if not row.revision or not unfinished or (row.epoch, row.claim) != (claim.epoch, claim.number):
        return None
    why = "only some tasks of a committed run were cleared"
    move(conn, row, State.ABORTED, who=row.run_id, why=why, reason=why, halted_at=func.clock_timestamp())
    return NotRevisable(f"{row.pipeline}: {claim}: {why}; clear the whole run to revise it; the old result stays")


def _commit_one(conn: Connection, spec: Pipeline, topic_id: str, row: Transaction, by: Transaction | None) -> None:
    """Apply and decide one transaction; _Failed when its data cannot be applied."""
    together = "together with the void before it" if by is None else f"together with {by.txid}"
    _apply(conn, spec, topic_id, row, why="its turn" if by is not None and row.txid == by.txid else together)


def _move_head(conn: Connection, pipeline: str, head: int) -> None:
    moved = conn.execute(
        update(pipelines).where(pipelines.c.pipeline == pipeline, pipelines.c.head == head).values(head=head + 1)
    )
    if moved.rowcount != 1:
        raise Fenced(f"{pipeline}: the head is not {head}; nothing was committed")


def _commit_revision(conn: Connection, spec: Pipeline, line: Line, row: Transaction) -> Committed | RatchetError:
    """Put the revision's deltas in place of the older ones, whose rows stay COMMITTED; a voided original becomes so."""
    where = f"{row.pipeline}: {row}"
    try:
        revise.check(line, row.txid)
        newer = revise.newest_applied(conn, spec.name, row.txid)
        if newer is not None and newer > row.revision:
            raise NotRevisable(f"{where}: revision {newer} is applied already; the newer result stays")
    except NotRevisable as error:
        # Nothing that is tried again can mend this.
        why, now = str(error), func.clock_timestamp()
        move(conn, row, State.ABORTED, who=row.run_id, why=why, reason=why, halted_at=now)
        return error
    try:
        with conn.begin_nested():
            _apply(conn, spec, line.topic_id, row, why="a revision waits for no turn")
            original = read_transaction(conn, spec.name, row.txid, lock=True)
            if original.state == State.VOIDED:
                why = f"revision {row.revision} is committed"
                move(conn, original, State.COMMITTED, who=row.run_id, why=why, committed_at=func.clock_timestamp())
    except _Failed as failure:
        why = str(failure.__cause__)
        move(conn, row, State.ABORTED, who=row.run_id, why=why, reason=why)
        return Refused(f"{where} is aborted: {why}; the old result stays")
    return Committed((row.txid,), f"{row}: committed, in place of the older result")


def _apply(conn: Connection, spec: Pipeline, topic_id: str, row: Transaction, why: str) -> None:
    """Fold what the votes name into every sink and move the row to COMMITTED."""
    started = time.monotonic()
    votes = read_votes(conn, spec.name, row.txid, row.epoch)
    relations = stage.relations(conn, spec.name, row.txid, row.epoch)
    sinks = sinks_of(spec)
    names = {sink.name for sink in sinks}
    if any(set(voted) != names for _, _, voted in votes):
        raise _Failed from StageMismatch(
            f"{spec.name}: transaction {row.txid} was prepared for other sinks than today's"
        )
    if gone := sorted(names - relations.keys()):
        raise _Failed from StageMismatch(
            f"{spec.name}: transaction {row.txid}, epoch {row.epoch}: what was staged for {', '.join(gone)} is gone"
        )
    of = Delta(spec.name, spec.source.name, topic_id, row.txid, replaces=row.revision > 0)
    applied: dict[str, Applied] = {}
    for sink in sinks:
        name = sink.name
        of_sink = [(number, attempt, voted[name]) for number, attempt, voted in votes]
        try:
            applied[name] = sink.fold(conn, of, relations[name], of_sink)
        except (Refused, StageMismatch) as error:
            raise _Failed from error
        except DBAPIError as error:
            sqlstate = getattr(error.orig, "sqlstate", None) or ""
            if isinstance(error, OperationalError) and not sqlstate.startswith(_PROGRAM_LIMIT):
                raise
            # A constraint of the target, a sum out of range: the data does not fit, and will not at a second try.
            raise _Failed from StageMismatch(f"{name}: {str(error.orig).splitlines()[0]}")
    said = {"applied": applied, "seconds": round(time.monotonic() - started, 4)}
    now = func.clock_timestamp()
    move(conn, row, State.COMMITTED, who=row.run_id, why=why, detail=said, committed_at=now, applied=applied)


def discard_finished(ledger: Ledger, pipeline: str) -> int:
    """Drop every stage whose epoch is over: committed, aborted, superseded, voided; returns how many.

    Chosen by state alone. Outside the commit lock; a stage that somebody still holds is left for the next time.
    """
    is_needed = exists().where(
        transactions.c.pipeline == stages.c.pipeline,
        transactions.c.txid == stages.c.txid,
        transactions.c.epoch == stages.c.epoch,
        transactions.c.state.in_([State.OPEN, State.PREPARED]),
    )
    with ledger.begin() as conn:
        names = conn.execute(select(stages.c.relation).where(stages.c.pipeline == pipeline, ~is_needed)).scalars()
        dropped = 0
        for relation in names.all():
            try:
                with conn.begin_nested():
                    conn.execute(text("set local lock_timeout = '200ms'"))
                    stage.drop(conn, relation)
                dropped += 1
            except (OperationalError, ProgrammingError):
                # Held by somebody, or another role's, which the maintenance drops.
                continue
    return dropped
