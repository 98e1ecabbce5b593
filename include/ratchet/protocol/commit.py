"""commit: prepared transactions take effect in txid order, each once, in all sinks together."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC

from sqlalchemy import Connection, func
from sqlalchemy.exc import DBAPIError

from ratchet.errors import (
    Fenced,
    IllegalMove,
    LedgerUnreachable,
    NotRevisable,
    OtherCode,
    RatchetError,
    Refused,
)
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import DestinationRow, Line, Transaction
from ratchet.ledger.states import State
from ratchet.ledger.transactions import lock_pipeline, lock_rows, move, move_head, read_line, read_transaction
from ratchet.ledger.work import Claim, turn_of
from ratchet.protocol import leftovers, revise
from ratchet.protocol.applied import newest_applied, newest_whole
from ratchet.protocol.failures import commit_failed, first_line
from ratchet.protocol.fold import Failed, check_constraints, decide, deltas, failing
from ratchet.protocol.follow import Open, follow, nowhere
from ratchet.protocol.gates import is_passed, judge
from ratchet.protocol.halts import why_stopped
from ratchet.protocol.turns import waits_for
from ratchet.sinks import exchanged, meaning, stage
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Applied, Delta, Sink, Taken, Touched
from ratchet.spec.pipeline import Pipeline


@dataclass(frozen=True)
class Committed:
    """The transaction is committed; `txids` are those that this very call committed, in order."""

    txids: tuple[int, ...]
    message: str


@dataclass(frozen=True)
class Waits:
    """It is not the transaction's turn; the message says what stands before it."""

    message: str


@dataclass(frozen=True)
class Advanced:
    """How far the head went: the txids committed, in order, and the member at which the group ended.

    That one `failed`, has `leftovers` to be removed before the head may pass it, or has to wait for a destination that
    is `behind`; none of these where there is nothing more to be committed now.
    """

    committed: tuple[int, ...]
    failed: int | None = None
    why: str | None = None
    leftovers: Transaction | None = None
    behind: DestinationRow | None = None


def commit(ledger: Ledger, spec: Pipeline, claim: Claim, opens: Open = nowhere) -> Committed | Waits:
    """Commit the claim's transaction if it is its turn, and the prepared ones right behind it; or its revision.

    1. Look at the state: what is committed already is success, whoever did it. What was prepared with other code than
       this process has is left alone.
    2. Ask the gates, once an epoch; a no aborts the transaction.
    3. Take the pipeline's lock: the commit lock. Look at the state again. A revision, which waits for no turn, has put
       its rows in place of the older ones before, under a lock of their own.
    4. Else see whether the transaction has its turn: txid = head + 1, and the line is not paused before it.
    5. For it and each prepared successor that has passed its gates: in a savepoint, fold its rows into the state of
       every sink that has one, move it to COMMITTED, move the head. Voided ones are passed over. The first that fails
       is undone and ends the group. So does one under whose txid rows stand that no vote names: then the lock is
       released, they are removed, and this begins once more. A pause ends it too.
    6. Where the transaction itself failed, abort it with its reason.
    7. Commit all that as one database transaction. Before this instant nobody sees anything of it, after it
       everybody sees all of it.
    8. Have the destinations of the sinks, which `opens` opens, take what is committed.
    9. Discard what is left of finished epochs, where this one has had others or stages; the maintenance finds the rest.

    Nothing is committed while a destination lacks what was committed before: it is brought there first.

    Raises Refused when the transaction is or becomes ABORTED, NotRevisable when a revision cannot be applied, both
    with the reason; OtherCode; CommitFailed when PostgreSQL refuses, and the history has it; LedgerUnreachable when the
    outcome is unknown: call again, step 1 resolves it. Where a destination cannot take it, what is committed stays so,
    and DestinationUnreachable, DestinationRefused or MarkMoved is raised.
    """
    try:
        outcome, has_left = _commit(ledger, spec, claim, opens)
    except DBAPIError as error:
        raise commit_failed(ledger, spec, claim, error) from error
    try:
        # Step 8
        sent = follow(ledger, spec, opens) if isinstance(outcome, Committed) else []
    finally:
        # Step 9
        if has_left:
            with suppress(LedgerUnreachable, DBAPIError):
                # What is committed is committed; whoever comes next discards.
                leftovers.discard_finished(ledger, spec.name)
    return replace(outcome, message="; ".join((outcome.message, *sent)))


def _commit(ledger: Ledger, spec: Pipeline, claim: Claim, opens: Open) -> tuple[Committed | Waits, bool]:
    """(what has come of it, whether there may be something left of its epochs)."""
    # Step 1
    with ledger.begin() as conn:
        row = read_transaction(conn, spec.name, claim.txid, claim.revision)
    if row.state == State.OPEN and row.revision:
        with ledger.begin() as conn:
            row = read_transaction(conn, spec.name, claim.txid, claim.revision, lock=True)
            halved = give_up_half(conn, row, claim) if row.state == State.OPEN else None
        if halved:
            raise halved
    ended = _ended(row, claim)
    if ended:
        return ended, False
    _check_code(spec, row)
    # Step 2
    judge(ledger, spec, row)
    if row.revision:
        outcome = _commit_revision(ledger, spec, claim, row.epoch, opens)
    else:
        outcome = _commit_in_turn(ledger, spec, claim, opens)
    if isinstance(outcome, RatchetError):
        raise outcome
    return outcome, row.epoch > 1 or any(stage.is_staged(sink, row) for sink in sinks_of(spec))


def _commit_in_turn(ledger: Ledger, spec: Pipeline, claim: Claim, opens: Open) -> Committed | Waits | Refused:
    done: tuple[int, ...] = ()
    while True:
        with ledger.begin() as conn:
            # Step 3
            line = lock_pipeline(conn, spec.name)
            assert line is not None, "a foreign key holds each transaction to its pipeline"
            row = read_transaction(conn, spec.name, claim.txid, lock=True)
            ended = _ended(row, claim)
            if ended and not done:
                return ended
            if not ended:
                _check_ready(spec, row, claim)
                # Step 4
                waiting = waits_for(conn, line, row.txid)
                if waiting:
                    return Waits(f"{claim}: prepared; {waiting}")
            # Step 5
            advanced = advance(conn, spec, line, by=row)
        # Step 7 was the end of the block.
        done += advanced.committed
        if advanced.behind is not None:
            follow(ledger, spec, opens)
        elif advanced.leftovers is not None:
            leftovers.clear(ledger, advanced.leftovers)
        else:
            return _say(replace(advanced, committed=done), row)


def _check_code(spec: Pipeline, row: Transaction) -> None:
    """OtherCode where a transaction was prepared with another spec, or other code, than this process has."""
    if row.code_hash != spec.code_hash:
        raise OtherCode(
            f"{row.pipeline}: {row} was prepared with code {row.code_hash}, this process has {spec.code_hash}; nothing "
            "was changed; the next run begins a new epoch with its own code"
        )


def _check_meaning(row: Transaction, other: str | None) -> None:
    """OtherCode where a table folds otherwise, since a migration, than the spec with which the row was prepared."""
    if other:
        raise OtherCode(f"{row.pipeline}: {row}: {other}, since a migration; nothing was changed")


def _check_ready(spec: Pipeline, row: Transaction, claim: Claim) -> None:
    """Raise unless a PREPARED transaction is still what step 1 and the gates have seen."""
    _check_code(spec, row)
    if not is_passed(spec, row):
        raise Fenced(f"{spec.name}: {claim}: run {row.run_id} has it now, in epoch {row.epoch}, which no gate has seen")
    if row.halted_at is not None:
        # Its claim ended, and with it the tries, before its last slice voted; or its commits failed too often.
        raise Refused(why_stopped(row))


def advance(conn: Connection, spec: Pipeline, line: Line, by: Transaction | None) -> Advanced:
    """Move the head over voided transactions and over those that can be committed now, up to where the line is paused.

    The caller holds the lock.
    `by` is the transaction whose commit this is, read and locked by the caller: if it fails it is aborted. Another that
    fails is left to its own commit, and what came before it stays. One that was prepared with other code ends the group
    and waits for a begin. One that has leftovers ends it and is told: whoever meets it releases the lock, removes them,
    and comes again. So does a destination that lacks what was committed before: it is brought there without the lock.
    """
    head = line.head
    done: list[int] = []
    other = meaning.other(conn, spec)
    if by is not None and by.state == State.PREPARED:
        _check_meaning(by, other)
    while head < line.last_txid and not line.is_paused_before(turn_of(head)):
        is_own = by is not None and by.txid == turn_of(head)
        row = by if by is not None and is_own else read_transaction(conn, spec.name, turn_of(head), lock=True)
        is_ready = row.state == State.PREPARED and row.halted_at is None and row.code_hash == spec.code_hash
        if row.state != State.VOIDED and not (is_ready and other is None and is_passed(spec, row)):
            break
        if leftovers.under(conn, row):
            return Advanced(tuple(done), leftovers=row)
        lacking = None if done or row.state == State.VOIDED else steps.behind(conn, line)
        if lacking:
            return Advanced((), behind=lacking)
        if row.state == State.PREPARED:
            try:
                with conn.begin_nested():
                    _commit_one(conn, spec, line, row, by)
            except Failed as failure:
                why = str(failure.__cause__)
                if is_own:
                    # Step 6
                    move(conn, row, State.ABORTED, who=row.run_id, why=why, reason=why)
                return Advanced(tuple(done), row.txid, why)
            except DBAPIError as error:
                # What PostgreSQL cannot do now for another's commit must not undo this one.
                if error.connection_invalidated or is_own:
                    raise
                return Advanced(tuple(done), row.txid, first_line(error, spec))
            done.append(row.txid)
        move_head(conn, spec.name, head)
        head += 1
    return Advanced(tuple(done))


def move_on(ledger: Ledger, spec: Pipeline) -> Advanced:
    """Move the head as far as it goes without anybody's commit: over voids, and what is prepared right behind them."""
    done: tuple[int, ...] = ()
    has_begun = False
    while True:
        with ledger.begin() as conn:
            line = lock_pipeline(conn, spec.name)
            if line is None or not (has_begun or is_voided(conn, line)):
                return Advanced(done)
            has_begun = True
            advanced = advance(conn, spec, line, by=None)
        done += advanced.committed
        if advanced.leftovers is None:
            return replace(advanced, committed=done)
        leftovers.clear(ledger, advanced.leftovers)


def is_voided(conn: Connection, line: Line) -> bool:
    """Whether the transaction whose turn it is was voided, so that the head only has to be moved."""
    if not line.in_flight or line.is_paused_before(line.turn):
        return False
    return read_transaction(conn, line.pipeline, line.turn).state == State.VOIDED


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
    code = {"code": NotRevisable.code}
    move(conn, row, State.ABORTED, who=row.run_id, why=why, detail=code, reason=why, halted_at=func.clock_timestamp())
    return NotRevisable(f"{row.pipeline}: {claim}: {why}; clear the whole run to revise it; the old result stays")


def _commit_one(conn: Connection, spec: Pipeline, line: Line, row: Transaction, by: Transaction | None) -> None:
    """Fold and decide one transaction; Failed when its data cannot be applied."""
    together = "together with the void before it" if by is None else f"together with {by.txid}"
    started = time.monotonic()
    applied: dict[str, Applied] = {}
    for sink, of in deltas(conn, spec, line, row):
        with failing(spec, sink.name):
            applied[sink.name] = sink.fold(conn, of)
    check_constraints(conn, spec)
    decide(conn, row, applied, started, "its turn" if by is not None and row.txid == by.txid else together)


class _IsBehind(Exception):
    """A destination lacks what was committed before."""


class _IsAwaited(Exception):
    """A sink has been given its first destination meanwhile, which has to hear what a revision takes away."""


def _commit_revision(ledger: Ledger, spec: Pipeline, claim: Claim, epoch: int, opens: Open) -> Committed | RatchetError:
    """Put the deltas of a revision's epoch in place of the older ones, whose rows stay COMMITTED; a voided original
    becomes so.
    """
    while True:
        try:
            with ledger.begin() as conn:
                return _exchange(conn, spec, claim, epoch)
        except _IsAwaited:
            continue
        except _IsBehind:
            follow(ledger, spec, opens)
        except Failed as failure:
            cause = failure.__cause__
            break
    with ledger.begin() as conn:
        lock_pipeline(conn, spec.name)
        row = read_transaction(conn, spec.name, claim.txid, claim.revision, lock=True)
        ended = _ended(row, claim)
        if ended:
            return ended
        _check_epoch(row, claim, epoch)
        why, given_up = str(cause), isinstance(cause, NotRevisable)
        # Nothing that is tried again can mend what is not revisable.
        halted_at = func.clock_timestamp() if given_up else row.halted_at
        code = {"code": (NotRevisable if given_up else Refused).code}
        move(conn, row, State.ABORTED, who=row.run_id, why=why, detail=code, reason=why, halted_at=halted_at)
    return NotRevisable(why) if given_up else Refused(f"{spec.name}: {row} is aborted: {why}; the old result stays")


def _check_epoch(row: Transaction, claim: Claim, epoch: int) -> None:
    """Fenced where a transaction has begun another epoch since; what is known of the one before says nothing of it."""
    if row.epoch != epoch:
        raise Fenced(f"{row.pipeline}: {claim}: run {row.run_id} works on it now, in epoch {row.epoch}")


def _exchange(conn: Connection, spec: Pipeline, claim: Claim, epoch: int) -> Committed:
    """Exchange the rows, and fold their keys up to the head, under a lock of their own, so that commits go on beside
    it; what has to be true when it counts, and what was committed meanwhile, come under the commit lock. Failed when
    its data cannot be applied, or nothing can be replaced.
    """
    started = time.monotonic()
    lock_rows(conn, spec.name)
    row = read_transaction(conn, spec.name, claim.txid, claim.revision)
    ended = _ended(row, claim)
    if ended:
        return ended
    _check_epoch(row, claim, epoch)
    before = read_line(conn, spec.name)
    assert before is not None, "a foreign key holds each transaction to its pipeline"
    _check_replaceable(conn, spec, before, row)
    if steps.behind(conn, before):
        raise _IsBehind
    awaited = exchanged.are_awaited(conn, spec.name)
    replaced: list[tuple[Sink, Delta, Touched | Taken | None]] = []
    for sink, of in deltas(conn, spec, before, row):
        with failing(spec, sink.name):
            replaced.append((sink, of, sink.replace(conn, of, before.head)))
    line = lock_pipeline(conn, spec.name)
    now = read_transaction(conn, spec.name, claim.txid, claim.revision, lock=True)
    _check_epoch(now, claim, epoch)
    if _ended(now, claim):
        raise Fenced(f"{spec.name}: {claim}: it is {now.state} by now; nothing was changed")
    _check_ready(spec, now, claim)
    _check_meaning(now, meaning.other(conn, spec))
    _check_replaceable(conn, spec, line, now)
    assert line is not None, "a foreign key holds each transaction to its pipeline"
    if exchanged.are_awaited(conn, spec.name) != awaited:
        raise _IsAwaited
    if steps.behind(conn, line):
        raise _IsBehind
    applied: dict[str, Applied] = {}
    for sink, of, left in replaced:
        with failing(spec, sink.name):
            applied[sink.name] = sink.refold(conn, of, left, line.head)
    check_constraints(conn, spec)
    decide(conn, now, applied, started, "a revision waits for no turn")
    original = read_transaction(conn, spec.name, row.txid, lock=True)
    if original.state == State.VOIDED:
        why = f"revision {row.revision} is committed"
        move(conn, original, State.COMMITTED, who=row.run_id, why=why, committed_at=func.clock_timestamp())
    how = "in place of the older result" if row.releases is None else f"with {row.records:,} released dead letters"
    return Committed((row.txid,), f"{row}: committed, {how}")


def _check_replaceable(conn: Connection, spec: Pipeline, line: Line | None, row: Transaction) -> None:
    """Failed where the older deltas are merged into a base or have expired, or are those of a newer revision, and where
    a release, which may have been begun with another spec, cannot be added to them.
    """
    assert line is not None, "a foreign key holds each transaction to its pipeline"
    try:
        revise.check(conn, spec, line, row.txid)
        if row.releases is not None:
            whole = newest_whole(conn, spec.name, row.txid, State.COMMITTED)
            assert whole is not None, "a release adds to what is committed"
            revise.check_adding(conn, spec, whole)
        else:
            revise.check_sent(conn, spec, row.txid)
    except NotRevisable as error:
        raise Failed from error
    newer = newest_applied(conn, spec.name, row.txid)
    if newer is not None and newer > row.revision:
        raise Failed from NotRevisable(
            f"{row.pipeline}: {row}: revision {newer} is applied already; the newer result stays"
        )
