"""Tries and votes: who may work on a slice, and the durable word that its results are staged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from psycopg.errors import UndefinedTable
from sqlalchemy import Connection, func, select, update
from sqlalchemy.exc import ProgrammingError

from ratchet.errors import Fenced, Refused
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.fence import check_try, read_slice
from ratchet.ledger.rows import SliceRow, Transaction
from ratchet.ledger.schema import pipelines, slices
from ratchet.ledger.states import State
from ratchet.ledger.transactions import move, read_transaction
from ratchet.ledger.work import Absent, Claim, SinkVote, SliceToken, SliceWork, Vote
from ratchet.protocol.plan import read_ranges
from ratchet.sinks import stage
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline

_GONE = "its stages are gone"


class NoTry(StrEnum):
    """Why a slice needs no try."""

    VOTED = "voted"
    """It has voted, which is final in its epoch."""
    NOT_OPEN = "not_open"
    """Its transaction is no longer processed: it is prepared, or its epoch is over."""


@dataclass(frozen=True)
class NothingToDo:
    """The work on a slice is done, or not wanted any more; the message says which, and in what state it is."""

    reason: NoTry
    message: str


def take_try(ledger: Ledger, spec: Pipeline, claim: Claim, slice_number: int) -> SliceWork | NothingToDo:
    """A new try at a slice, for the run that holds the claim, where one is needed.

    Raises Fenced when another run holds the claim or it has ended, Refused when the code is not that of the epoch.
    """
    with ledger.begin() as conn:
        row = read_transaction(conn, claim.pipeline, claim.txid, claim.revision, lock=True)
        where = f"{claim}, slice {slice_number}"
        if row.epoch != claim.epoch or row.claim != claim.number:
            raise Fenced(f"{claim.pipeline}: {where}: run {row.run_id} holds the transaction now")
        if row.claim_ended and row.state == State.OPEN:
            raise Fenced(f"{claim.pipeline}: {where}: this run's claim has ended; clear the run")
        if row.state != State.OPEN:
            return NothingToDo(NoTry.NOT_OPEN, f"{where}: nothing to do, the transaction is {row.state}")
        current = read_slice(conn, claim.pipeline, claim.txid, claim.epoch, slice_number)
        if current.voted_at is not None:
            return NothingToDo(NoTry.VOTED, f"{where}: nothing to do, it has voted in try {current.try_number}")
        if spec.code_hash != row.code_hash:
            why = f"the code is {spec.code_hash}, the epoch began with {row.code_hash}"
            move(conn, row, State.ABORTED, who=row.run_id, why=why, reason=why)
        else:
            return _next_try(conn, spec, row, current)
    raise Refused(f"{claim.pipeline}: {where}: aborted, {why}; the next run begins a new epoch with today's code")


def load_work(ledger: Ledger, spec: Pipeline, token: SliceToken) -> SliceWork:
    """The work of a try that was taken elsewhere; Fenced when a newer try has it, or it has voted."""
    with ledger.begin() as conn:
        row = read_transaction(conn, token.pipeline, token.txid, token.revision)
        current = read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice)
        check_try(row, current, token)
        return _work(conn, spec, row, current)


def voted_work(conn: Connection, spec: Pipeline, row: Transaction) -> list[SliceWork]:
    """Each slice of the row's epoch as its job had it; its stages may be gone."""
    found = conn.execute(
        select(slices)
        .where(slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
        .where(slices.c.voted_at.is_not(None))
        .order_by(slices.c.slice)
    )
    return [_work(conn, spec, row, part) for part in SliceRow.all(found)]


def cast_vote(ledger: Ledger, spec: Pipeline, token: SliceToken, vote: Vote) -> str:
    """Make the slice's results final; the last vote of the epoch moves the transaction to PREPARED.

    The same vote of the same try repeated is success. Raises Fenced for any other late vote, and Refused,
    with the transaction aborted, when what is staged breaks a rule or the code is not that of the epoch.
    """
    with ledger.begin() as conn:
        # Step 1: what is staged is what the vote says. Other tries write other tags, so no lock is needed.
        try:
            with conn.begin_nested():
                fault = _staged_fault(conn, spec, token, vote)
        except ProgrammingError as error:
            if not isinstance(error.orig, UndefinedTable):
                raise
            # They were discarded in the midst of this, so the epoch is over: which the lock shows.
            fault = _GONE
        # Step 2: the transaction's lock, before counting, so that two last voters see each other.
        row = read_transaction(conn, token.pipeline, token.txid, token.revision, lock=True)
        current = read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice)
        if current.voted_at is not None and _is_same(current, token, vote):
            return f"{token}: this vote was cast already"
        check_try(row, current, token)
        if vote.code_hash != row.code_hash:
            fault = f"the job's code is {vote.code_hash}, the epoch began with {row.code_hash}"
        if fault:
            move(conn, row, State.ABORTED, who=row.run_id, why=fault, reason=fault)
        else:
            # Step 3: the vote, only for the try that is still the highest.
            _write_vote(conn, row, token, vote)
            # Step 4: the last one prepares the transaction.
            return promote_if_complete(conn, row) or f"{token}: voted"
    raise Refused(f"{token.pipeline}: {token}: aborted, {fault}")


def vote_no(ledger: Ledger, token: SliceToken, reason: str) -> str:
    """A slice's word that its results cannot be: the transaction is ABORTED with the reason.

    Raises Fenced, as for any other vote, when the try is not the current one or has voted.
    """
    with ledger.begin() as conn:
        row = read_transaction(conn, token.pipeline, token.txid, token.revision, lock=True)
        current = read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice)
        check_try(row, current, token)
        said = {"slice": token.slice, "try": token.try_number}
        move(conn, row, State.ABORTED, who=row.run_id, why=reason, detail=said, reason=reason)
    return f"{token}: voted no: {reason}"


def promote_if_complete(conn: Connection, row: Transaction) -> str | None:
    """OPEN → PREPARED if every slice of the epoch has voted; the line that says so, or None.

    The caller holds the transaction's lock.
    """
    mine = (slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
    missing, records = conn.execute(
        select(func.count().filter(slices.c.voted_at.is_(None)), func.sum(slices.c.records)).where(*mine)
    ).one()
    if missing:
        return None
    move(
        conn,
        row,
        State.PREPARED,
        who=row.run_id,
        why="every slice has voted",
        detail={"records": int(records)},
        prepared_at=func.clock_timestamp(),
        records=int(records),
    )
    said = f"{row}: every slice has voted, {int(records):,} records are prepared"
    return "; ".join([said, *map(str, absent_of(conn, row.pipeline, row.txid, row.epoch))])


def absent_of(conn: Connection, pipeline: str, txid: int, epoch: int) -> list[Absent]:
    """The declared fields that no message of an epoch has, of those slices that had a good one."""
    told = conn.execute(
        select(slices.c.absent)
        .where(slices.c.pipeline == pipeline, slices.c.txid == txid, slices.c.epoch == epoch)
        .where(slices.c.voted_at.is_not(None), slices.c.absent.is_not(None))
        .order_by(slices.c.slice)
    ).scalars()
    lists = [
        [Absent(column, field, tuple(names)) for column, field, names in absent]
        for absent in told
        if absent is not None
    ]
    if not lists:
        return []
    everywhere = set[str].intersection(*({a.column for a in absent} for absent in lists))
    return [a for a in lists[0] if a.column in everywhere]


Voted = tuple[int, int, dict[str, SinkVote]]
"""(slice, try, {sink: its part of the vote})."""


def read_votes(conn: Connection, pipeline: str, txid: int, epoch: int) -> list[Voted]:
    """Every vote of an epoch, in slice order."""
    rows = conn.execute(
        select(slices.c.slice, slices.c.try_number, slices.c.sinks)
        .where(slices.c.pipeline == pipeline, slices.c.txid == txid, slices.c.epoch == epoch)
        .where(slices.c.voted_at.is_not(None))
        .order_by(slices.c.slice)
    )
    return [(row.slice, row.try_number, _sinks(row.sinks)) for row in rows]


def _sinks(stored: dict[str, dict[str, Any]]) -> dict[str, SinkVote]:
    """{sink: what a slice voted for it}, from the stored form."""
    return {
        name: stage.vote_from_json(said)  # pyright: ignore[reportUnknownMemberType]: sinks are not strict yet
        for name, said in stored.items()
    }


def _next_try(conn: Connection, spec: Pipeline, row: Transaction, current: SliceRow) -> SliceWork:
    """Fence the tries before, and make the epoch's stages, once; the caller holds the transaction's lock."""
    found = conn.execute(
        update(slices)
        .where(
            slices.c.pipeline == row.pipeline,
            slices.c.txid == row.txid,
            slices.c.epoch == row.epoch,
            slices.c.slice == current.slice,
            slices.c.voted_at.is_(None),
        )
        .values(try_number=slices.c.try_number + 1, tried_at=func.clock_timestamp())
        .returning(slices)
    )
    taken = SliceRow.one(found)
    stage.create(conn, spec.name, sinks_of(spec), row.txid, row.epoch)
    said = {"slice": taken.slice, "try": taken.try_number}
    history.record(conn, row, who=row.run_id, move="try", detail=said)
    return _work(conn, spec, row, taken)


def _work(conn: Connection, spec: Pipeline, row: Transaction, current: SliceRow) -> SliceWork:
    topic, topic_id = conn.execute(
        select(pipelines.c.topic, pipelines.c.topic_id).where(pipelines.c.pipeline == row.pipeline)
    ).one()
    return SliceWork(
        token=SliceToken(row.pipeline, row.txid, row.epoch, current.slice, current.try_number, row.revision),
        ranges=read_ranges(topic, current.ranges),
        stages=stage.relations(conn, row.pipeline, row.txid, row.epoch),
        txn_time=row.txn_time,
        topic_id=topic_id,
    )


def _staged_fault(conn: Connection, spec: Pipeline, token: SliceToken, vote: Vote) -> str | None:
    work_ranges = read_ranges(
        spec.source.name, read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice).ranges
    )
    relations = stage.relations(conn, token.pipeline, token.txid, token.epoch)
    sinks = sinks_of(spec)
    if set(vote.sinks) != {sink.name for sink in sinks}:
        return f"the vote names the sinks {', '.join(sorted(vote.sinks))}"
    if not set(vote.sinks) <= relations.keys():
        return _GONE
    for sink in sinks:
        fault = sink.fault(conn, relations[sink.name], token, vote.sinks[sink.name], work_ranges)
        if fault:
            return f"{sink.name}: {fault}"
    return _overlap(conn, sinks, relations, token, vote) if vote.dead_letters else None


def _overlap(
    conn: Connection, sinks: tuple[Sink, ...], relations: dict[str, str], token: SliceToken, vote: Vote
) -> str | None:
    """A record that is both a row and a dead letter, in a line; None when there is none."""
    *others, dead = sinks
    letters = [(token.slice, token.try_number, vote.sinks[DEAD_LETTERS])]
    for sink in others:
        if sink.has_positions:
            mine = [(token.slice, token.try_number, vote.sinks[sink.name])]
            # A frozen model is hashable, which pyright does not see.
            staged = stage.table(relations[sink.name], sink)  # pyright: ignore[reportArgumentType]
            given_up = stage.table(relations[DEAD_LETTERS], dead)  # pyright: ignore[reportArgumentType]
            fault = stage.overlap(conn, staged, mine, given_up, letters)
            if fault:
                return f"{sink.name}: {fault}"
    return None


def _write_vote(conn: Connection, row: Transaction, token: SliceToken, vote: Vote) -> None:
    written = conn.execute(
        update(slices)
        .where(
            slices.c.pipeline == token.pipeline,
            slices.c.txid == token.txid,
            slices.c.epoch == token.epoch,
            slices.c.slice == token.slice,
            slices.c.try_number == token.try_number,
            slices.c.voted_at.is_(None),
        )
        .values(voted_at=func.clock_timestamp(), **_vote_columns(vote))
    )
    if written.rowcount != 1:
        raise Fenced(f"{token.pipeline}: {token}: a newer try has the slice")
    sinks = {name: {"rows": s.rows, "checksum": str(s.checksum)} for name, s in vote.sinks.items()}
    said = {"slice": token.slice, "try": token.try_number, "records": vote.records, "sinks": sinks}
    history.record(conn, row, who=vote.application_id, move="vote", detail=said)


def _vote_columns(vote: Vote) -> dict[str, Any]:
    return {
        "records": vote.records,
        "dead_letters": vote.dead_letters,
        "sinks": {
            name: stage.vote_to_json(said)  # pyright: ignore[reportUnknownMemberType]: sinks are not strict yet
            for name, said in vote.sinks.items()
        },
        "reached": {str(partition): position for partition, position in vote.reached.items()},
        "seconds": vote.seconds,
        "application_id": vote.application_id,
        "absent": None if vote.absent is None else [[a.column, a.field, list(a.nearest)] for a in vote.absent],
        "cut": vote.cut,
    }


def _is_same(current: SliceRow, token: SliceToken, vote: Vote) -> bool:
    said = _vote_columns(vote)
    return current.try_number == token.try_number and current.sinks == said["sinks"]
