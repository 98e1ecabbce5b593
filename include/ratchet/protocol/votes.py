"""Tries and votes: who may work on a slice, and the durable word that its results are staged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from secrets import randbits
from typing import Any

from psycopg.errors import UndefinedTable
from sqlalchemy import Connection, func, select, update
from sqlalchemy.exc import ProgrammingError

from ratchet.errors import Fenced, NotRevisable, OtherCode, Refused
from ratchet.ledger import history, letters, topic_rows, writers
from ratchet.ledger.connection import Ledger
from ratchet.ledger.fence import check_try, read_slice
from ratchet.ledger.rows import SliceRow, Transaction, WriterRow
from ratchet.ledger.schema import slices
from ratchet.ledger.states import State
from ratchet.ledger.transactions import move, read_transaction
from ratchet.ledger.work import Claim, Relation, SinkVote, SliceToken, SliceWork, Vote, counted
from ratchet.protocol import tombstones
from ratchet.protocol.failures import other_code
from ratchet.protocol.plan import read_ranges
from ratchet.protocol.prepare import Prepared, prepare_if_complete
from ratchet.protocol.sources import lineages, source_of
from ratchet.sinks import delta, stage
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Rows, Sink
from ratchet.sinks.spans import are_apart
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline

_GONE = "its rows are gone"


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

    Raises Fenced when another run holds the claim or it has ended, OtherCode when the code is not that of the epoch,
    TombstonesLost when a compacted topic is read too late.
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
        late = tombstones.overdue(conn, spec, row)
        if late:
            raise late
        if spec.code_hash == row.code_hash:
            return _next_try(conn, spec, row, current)
        other = other_code(conn, row, spec.code_hash, slice_number, current.try_number, took=False)
    raise OtherCode(f"{claim.pipeline}: {where}: {other}")


def load_work(ledger: Ledger, spec: Pipeline, token: SliceToken) -> SliceWork:
    """The work of a try that was taken elsewhere; Fenced when a newer try has it, or it has voted."""
    with ledger.begin() as conn:
        row = read_transaction(conn, token.pipeline, token.txid, token.revision)
        current = read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice)
        check_try(row, current, token)
        return _work(conn, spec, row, current)


def work_of(conn: Connection, spec: Pipeline, row: Transaction) -> list[SliceWork]:
    """Each slice of the row's epoch as its job has it, or had it; its stages may be gone."""
    found = conn.execute(
        select(slices)
        .where(slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
        .order_by(slices.c.slice)
    )
    return [_work(conn, spec, row, part) for part in SliceRow.all(found)]


@dataclass(frozen=True)
class Cast:
    """What became of a vote; `prepared` is what it has completed, if it was the last one of its epoch."""

    token: SliceToken
    is_repeated: bool = False
    """It was there already, by the same try."""
    prepared: Prepared | None = None

    def __str__(self) -> str:
        if self.is_repeated:
            return f"{self.token}: this vote was cast already"
        return str(self.prepared) if self.prepared else f"{self.token}: voted"


def cast_vote(ledger: Ledger, spec: Pipeline, token: SliceToken, vote: Vote) -> Cast:
    """Make the slice's results final; the last vote of the epoch moves the transaction to PREPARED.

    The same vote of the same try repeated is success. Raises Fenced for any other late vote, OtherCode when the code is
    not that of the epoch, TombstonesLost when a compacted topic was read too late, and Refused, with the transaction
    aborted, when what is written breaks a rule. A revision of a compacted topic that lacks records is given up by the
    last vote: NotRevisable.
    """
    with ledger.begin() as conn:
        # Step 1: what is written is what the vote says. Other tries are other writers, so no lock is needed.
        try:
            with conn.begin_nested():
                fault = _fault(conn, spec, token, vote)
        except ProgrammingError as error:
            if not isinstance(error.orig, UndefinedTable):
                raise
            # They were discarded in the midst of this, so the epoch is over: which the lock shows.
            fault = _GONE
        # Step 2: the transaction's lock, before counting, so that two last voters see each other.
        row = read_transaction(conn, token.pipeline, token.txid, token.revision, lock=True)
        current = read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice)
        if current.voted_at is not None and _is_same(current, token, vote):
            return Cast(token, is_repeated=True)
        check_try(row, current, token)
        _check_ranges(current, token, vote)
        other = given_up = late = None
        if vote.code_hash != row.code_hash:
            other = other_code(conn, row, vote.code_hash, token.slice, token.try_number, took=True)
        elif fault:
            move(conn, row, State.ABORTED, who=row.run_id, why=fault, reason=fault)
        elif not (late := tombstones.overdue(conn, spec, row, vote.kept_tombstones)):
            # Step 3: the vote, only for the try that is still the highest.
            _write_vote(conn, row, token, vote)
            # Step 4: the last one prepares the transaction.
            prepared = prepare_if_complete(conn, spec, row)
            if prepared is None or prepared.row.state == State.PREPARED:
                return Cast(token, prepared=prepared)
            given_up = prepared.row.reason
    if late:
        raise late
    if given_up:
        raise NotRevisable(f"{token.pipeline}: {token}: {given_up}; it is given up, the old result stays")
    if other:
        raise OtherCode(f"{token.pipeline}: {token}: {other}")
    raise Refused(f"{token.pipeline}: {token}: aborted, {fault}")


def vote_no(ledger: Ledger, token: SliceToken, reason: str) -> None:
    """A slice's word that its results cannot be: the transaction is ABORTED with the reason.

    Raises Fenced, as for any other vote, when the try is not the current one or has voted.
    """
    with ledger.begin() as conn:
        row = read_transaction(conn, token.pipeline, token.txid, token.revision, lock=True)
        current = read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice)
        check_try(row, current, token)
        said = {"slice": token.slice, "try": token.try_number}
        move(conn, row, State.ABORTED, who=row.run_id, why=reason, detail=said, reason=reason)


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
    return [
        (row.slice, row.try_number, {name: vote_from_json(said) for name, said in row.sinks.items()}) for row in rows
    ]


def vote_to_json(vote: SinkVote) -> dict[str, Any]:
    """The stored form of a sink's part of a vote; the checksum as text, since JSON numbers are not 64 bits wide."""
    return {"writers": list(vote.writers), "rows": vote.rows, "checksum": str(vote.checksum)}


def vote_from_json(said: Mapping[str, Any]) -> SinkVote:
    """The sink's part of a vote from its stored form."""
    return SinkVote(tuple(said["writers"]), said["rows"], int(said["checksum"]))


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
        .values(try_number=slices.c.try_number + 1, nonce=randbits(63), tried_at=func.clock_timestamp())
        .returning(slices)
    )
    taken = SliceRow.one(found)
    stage.create(conn, sinks_of(spec), row)
    said = {"slice": taken.slice, "try": taken.try_number}
    history.record(conn, row, who=row.run_id, move="try", detail=said)
    return _work(conn, spec, row, taken)


def _work(conn: Connection, spec: Pipeline, row: Transaction, current: SliceRow) -> SliceWork:
    source = source_of(conn, row.pipeline, row.txid)
    topics = topic_rows.of_source(conn, row.pipeline, source)
    return SliceWork(
        token=SliceToken(
            row.pipeline, row.txid, row.epoch, current.slice, current.try_number, row.revision, current.nonce
        ),
        ranges=read_ranges(topics, current.ranges),
        relations=stage.relations(conn, sinks_of(spec), row),
        txn_time=row.txn_time,
        topics=topics,
        source=source,
        lineages=lineages(conn, row.pipeline, source),
        releases=row.releases,
    )


def rows_of(votes: Sequence[Voted], sink: str, relation: Relation, txid: int) -> Rows:
    """What the votes of a transaction name of one sink, and where it stands."""
    mine = [sinks[sink] for _, _, sinks in votes]
    named = tuple(writer for said in mine for writer in said.writers)
    return Rows(relation, txid, named, sum(said.rows for said in mine))


def _check_ranges(current: SliceRow, token: SliceToken, vote: Vote) -> None:
    """Fenced where the job has worked on other ranges than the slice has; its results are those of other records."""
    given = sorted([r.partition, r.from_offset, r.until_offset] for r in vote.ranges)
    if given != sorted(map(list, current.ranges)):
        raise Fenced(
            f"{token.pipeline}: {token}, try {token.try_number}: the job has read {', '.join(map(str, vote.ranges))}, "
            f"and the slice is {current.ranges}"
        )


def _fault(conn: Connection, spec: Pipeline, token: SliceToken, vote: Vote) -> str | None:
    """What is wrong with what a try has written, in a line; None where it is as the vote says."""
    sinks = sinks_of(spec)
    if set(vote.sinks) != {sink.name for sink in sinks}:
        return f"the vote names the sinks {', '.join(sorted(vote.sinks))}"
    row = read_transaction(conn, token.pipeline, token.txid, token.revision)
    relations = stage.relations(conn, sinks, row)
    if not set(vote.sinks) <= relations.keys():
        return _GONE
    found = writers.registered(conn, [writer for said in vote.sinks.values() for writer in said.writers])
    rows: dict[str, Rows] = {}
    for sink in sinks:
        said = vote.sinks[sink.name]
        rows[sink.name] = Rows(relations[sink.name], token.txid, said.writers, said.rows)
        fault = _writers_fault(said, sink.name, token, found) or _rows_fault(conn, sink, rows[sink.name], vote, found)
        if fault:
            return f"{sink.name}: {fault}"
    if row.releases is not None:
        fault = _release_fault(conn, sinks, rows, vote, row, row.releases)
        if fault:
            return fault
    return _overlap(conn, sinks, rows) if vote.dead_letters else None


def _release_fault(
    conn: Connection, sinks: Sequence[Sink], rows: Mapping[str, Rows], vote: Vote, row: Transaction, errors: str
) -> str | None:
    """Whether a job has read the dead letters of its slice that a release takes, and its rows are all of these."""
    held = letters.count(conn, row.pipeline, row.txid, errors, vote.ranges)
    if vote.records != held:
        return f"{counted(vote.records, 'dead letter was', 'dead letters were')} read, and {held:,} are there"
    for sink in sinks:
        if sink.has_positions:
            fault = delta.beside_letters(conn, sink, rows[sink.name], letters.taken(row.pipeline, row.txid, errors))
            if fault:
                return f"{sink.name}: {fault}"
    return None


def _writers_fault(said: SinkVote, sink: str, token: SliceToken, found: Mapping[int, WriterRow]) -> str | None:
    """Whether each writer that the vote names is one of this try, and they have written as much as it says."""
    mine = [found[writer] for writer in said.writers if writer in found]
    if len(mine) < len(said.writers):
        return _GONE
    if len(set(said.writers)) < len(said.writers):
        return "the vote names a writer twice"
    for writer in mine:
        of = (writer.txid, writer.revision, writer.epoch, writer.slice, writer.try_number, writer.nonce)
        if of != token.numbers or writer.sink != sink:
            return f"writer {writer.writer} is not of this try"
    written = sum(writer.rows for writer in mine)
    return (
        None
        if written == said.rows
        else f"{counted(written, 'row is', 'rows are')} written, the vote says {said.rows:,}"
    )


def _rows_fault(conn: Connection, sink: Sink, rows: Rows, vote: Vote, found: Mapping[int, WriterRow]) -> str | None:
    """Whether rows are of this slice, and none is there twice: by the spans of their writers where those tell."""
    told = [found[writer].spans for writer in rows.writers]
    spans = [{int(p): (first, last) for p, (first, last) in span.items()} for span in told if span is not None]
    if len(spans) < len(told) or not are_apart(spans):
        return sink.fault(conn, rows, vote.ranges)
    faults = [
        delta.foreign_span(vote.ranges, partition, first, last)
        for span in spans
        for partition, (first, last) in span.items()
    ]
    return next((fault for fault in faults if fault), None)


def _overlap(conn: Connection, sinks: Sequence[Sink], rows: Mapping[str, Rows]) -> str | None:
    """A record that is both a row and a dead letter, in a line; None when there is none."""
    *others, dead = sinks
    for sink in others:
        if sink.has_positions:
            fault = delta.overlap(conn, sink, rows[sink.name], dead, rows[DEAD_LETTERS])
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
        "sinks": {name: vote_to_json(said) for name, said in vote.sinks.items()},
        "reached": {str(partition): position for partition, position in vote.reached.items()},
        "seconds": vote.seconds,
        "application_id": vote.application_id,
        "absent": None if vote.absent is None else [[a.column, a.field, list(a.nearest)] for a in vote.absent],
        "cut": vote.cut,
    }


def _is_same(current: SliceRow, token: SliceToken, vote: Vote) -> bool:
    said = _vote_columns(vote)
    return current.try_number == token.try_number and current.sinks == said["sinks"]
