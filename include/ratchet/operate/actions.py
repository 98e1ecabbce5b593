"""The moves that a person makes, each guarded, recorded with a reason, and answered in lines that say what it did."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import Connection, insert, select, update

from ratchet.errors import IllegalMove, LedgerUnreachable, TopicChanged
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, SliceRow, Transaction
from ratchet.ledger.schema import losses, pipelines, slices, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import (
    is_row,
    lock_pipeline,
    move,
    newest_revision,
    next_txid,
    notify,
    read_transaction,
)
from ratchet.ledger.work import OffsetRange, Run
from ratchet.protocol import claims, halts, plan
from ratchet.protocol.commit import Advanced, advance, discard_finished
from ratchet.source.kafka import TopicOffsets
from ratchet.spec.pipeline import Pipeline


class _DryRun(Exception):
    """Carries what would have been said out of a database transaction that is rolled back."""


def retry(ledger: Ledger, spec: Pipeline, txid: int | None, who: str) -> list[str]:
    """Lift the halt at a transaction, or take up a revision that was given up; the next run of any kind goes on.

    Without `txid` the one at which the line is halted. Raises IllegalMove when there is nothing to try again.
    """
    with ledger.begin() as conn:
        _lock(conn, spec)
        row = _unfinished(conn, spec, _halted_at(conn, spec) if txid is None else txid)
        if not row.claim_ended:
            raise IllegalMove(f"{_named(row)} is {row.state}, and run {row.run_id} works on it")
        row = Transaction.one(
            conn.execute(update(transactions).where(is_row(row)).values(**halts.LIFTED).returning(transactions))
        )
        history.record(conn, row, who=who, move="retry", detail={"why": row.reason})
        notify(conn, spec.name)
    return [f"{_named(row)} is {row.state} and may be tried again; the next run of any kind goes on with it"]


def abort(ledger: Ledger, spec: Pipeline, txid: int, reason: str, who: str) -> list[str]:
    """Let what an epoch has staged and voted count for nothing; the next run begins a new one."""
    with ledger.begin() as conn:
        _lock(conn, spec)
        row = move(conn, _unfinished(conn, spec, txid), State.ABORTED, who=who, why=reason, reason=reason)
    _discard(ledger, spec)
    again = "the old result stays" if row.revision else "the next run of any kind tries it again in a new epoch"
    return [f"{_named(row)} is ABORTED; {again}"]


def void(ledger: Ledger, spec: Pipeline, txid: int, reason: str, who: str, *, dry_run: bool = False) -> list[str]:
    """Decide that a transaction commits nothing, which also lifts a halt at it; its ranges stay recorded.

    In its turn the head moves over it at once, and what is prepared behind it is committed.
    """

    def decide(conn: Connection) -> list[str]:
        line = _lock(conn, spec)
        row = read_transaction(conn, spec.name, txid, lock=True)
        if row.state == State.VOIDED:
            return [f"transaction {txid} is VOIDED already: {row.reason}"]
        row = move(conn, row, State.VOIDED, who=who, why=reason, reason=reason, halted_at=None, claim_ended=True)
        ranges = ", ".join(map(str, plan.ranges_of(conn, spec.name, txid)))
        advanced = advance(conn, spec, line, by=None)
        return [f"transaction {txid} is VOIDED and commits nothing of {ranges}", *_say(conn, spec, advanced)]

    return _finish(ledger, spec, decide, dry_run)


def accept_loss(
    ledger: Ledger, spec: Pipeline, offsets: TopicOffsets, reason: str, who: str, *, dry_run: bool = False
) -> list[str]:
    """Accept that Kafka no longer has some offsets, so that the line goes on without them.

    What no plan has taken becomes a transaction that is voided; what an unfinished plan still has to read is taken
    out of its slices. Votes that stand keep their records. Raises IllegalMove when nothing is lost.
    """

    def decide(conn: Connection) -> list[str]:
        line = _lock(conn, spec)
        if line.topic_id != offsets.topic_id:
            raise TopicChanged(
                f"{spec.name}: topic {offsets.topic} has id {offsets.topic_id}, the ledger's ranges are of "
                f"{line.topic_id}: it is another topic, whose offsets say nothing of what is lost; void what is "
                "unfinished, and give the pipeline a new name, and its sinks new tables, to begin anew with this topic"
            )
        said = _lose_planned(conn, spec, offsets, reason, who) + _lose_unplanned(conn, spec, line, offsets, reason, who)
        if not said:
            raise IllegalMove(f"{spec.name}: Kafka has every offset that is needed; there is no loss to accept")
        line = _lock(conn, spec)
        return said + _say(conn, spec, advance(conn, spec, line, by=None))

    return _finish(ledger, spec, decide, dry_run)


def _finish(ledger: Ledger, spec: Pipeline, decide: Callable[[Connection], list[str]], dry_run: bool) -> list[str]:
    said: list[str] = []
    try:
        with ledger.begin() as conn:
            said = decide(conn)
            if dry_run:
                raise _DryRun
    except _DryRun:
        return [*said, "this was a dry run: nothing was changed"]
    _discard(ledger, spec)
    return said


def _discard(ledger: Ledger, spec: Pipeline) -> None:
    """The move is made by now: an error would say otherwise, and whoever comes next discards."""
    with suppress(LedgerUnreachable):
        discard_finished(ledger, spec.name)


def _lock(conn: Connection, spec: Pipeline) -> Line:
    line = lock_pipeline(conn, spec.name)
    if line is None:
        raise IllegalMove(f"the ledger has nothing of pipeline {spec.name} yet")
    return line


def _halted_at(conn: Connection, spec: Pipeline) -> int:
    halt = halts.halt(conn, spec.name)
    if halt is None:
        raise IllegalMove(f"{spec.name} is not halted; name a transaction to try again")
    return halt.txid


def _named(row: Transaction) -> str:
    return f"{row.pipeline}: {row}"


def _unfinished(conn: Connection, spec: Pipeline, txid: int) -> Transaction:
    """The unfinished row of a transaction, locked: itself, or its newest revision."""
    newest = newest_revision(conn, spec.name, txid)
    row = read_transaction(conn, spec.name, txid, newest.revision, lock=True)
    if not row.is_unfinished:
        raise IllegalMove(f"{_named(row)} is {row.state}, which is final; there is nothing to try again or to abort")
    return row


def _say(conn: Connection, spec: Pipeline, advanced: Advanced) -> list[str]:
    head = conn.execute(select(pipelines.c.head).where(pipelines.c.pipeline == spec.name)).scalar_one()
    done = f"; committed on the way: {', '.join(map(str, advanced.committed))}" if advanced.committed else ""
    after = f"; {advanced.failed} fails and is left to its own commit: {advanced.why}" if advanced.failed else ""
    return [f"the head is {head}{done}{after}"]


def _lose_unplanned(
    conn: Connection, spec: Pipeline, line: Line, offsets: TopicOffsets, reason: str, who: str
) -> list[str]:
    """A voided transaction over what retention has deleted before any plan took it."""
    previous = plan.previous_until(conn, spec.name, offsets.topic_id)
    missing = [
        OffsetRange(offsets.topic, partition, until, offsets.beginning[partition])
        for partition, until in sorted(previous.items())
        if offsets.beginning.get(partition, 0) > until
    ]
    if not missing:
        return []
    txid = next_txid(conn, line)
    row = claims.open_transaction(conn, spec, Run(spec.name, f"accept-loss {txid}"), txid)
    plan.store(conn, spec.name, txid, offsets.topic_id, missing)
    said = {"from": None, "ranges": [str(r) for r in missing], "why": "records are lost"}
    history.record(conn, row, who=who, move=str(State.OPEN), detail=said)
    move(conn, row, State.VOIDED, who=who, why=reason, reason=reason, claim_ended=True)
    _record_losses(conn, row, offsets.topic_id, missing, who, reason)
    return [f"transaction {txid} is VOIDED: {r}, {len(r):,} offsets, are accepted as lost" for r in missing]


def _lose_planned(conn: Connection, spec: Pipeline, offsets: TopicOffsets, reason: str, who: str) -> list[str]:
    """Take what is gone out of the slices that still have to be read."""
    found = conn.execute(
        select(transactions)
        .where(
            transactions.c.pipeline == spec.name,
            transactions.c.revision == 0,
            transactions.c.state.in_([State.OPEN, State.ABORTED]),
        )
        .order_by(transactions.c.txid)
        .with_for_update()
    )
    rows = Transaction.all(found)
    return [line for row in rows for line in _lose_of(conn, spec, row, offsets, reason, who)]


def _lose_of(
    conn: Connection, spec: Pipeline, row: Transaction, offsets: TopicOffsets, reason: str, who: str
) -> list[str]:
    mine = (slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
    # Of an epoch that is over nothing stands; of an open one, what has voted needs Kafka no more.
    to_read = slices.c.voted_at.is_(None) if row.state == State.OPEN else slices.c.slice >= 0
    parts = SliceRow.all(conn.execute(select(slices).where(*mine, to_read).order_by(slices.c.slice)))
    said: list[str] = []
    for part in parts:
        gone = [
            OffsetRange(offsets.topic, partition, start, min(until, offsets.beginning[partition]))
            for partition, start, until in part.ranges
            if offsets.beginning.get(partition, 0) > start
        ]
        if not gone:
            continue
        _record_losses(conn, row, offsets.topic_id, gone, who, reason)
        left = plan.without(part.ranges, [(r.partition, r.from_offset, r.until_offset) for r in gone])
        # A try that reads the old ranges at this moment is fenced.
        conn.execute(
            update(slices)
            .where(*mine, slices.c.slice == part.slice)
            .values(ranges=left, try_number=slices.c.try_number + 1)
        )
        said += [f"{_named(row)}, slice {part.slice}: {r}, {len(r):,} offsets, are accepted as lost" for r in gone]
    if said:
        conn.execute(update(transactions).where(is_row(row)).values(**halts.LIFTED))
        history.record(conn, row, who=who, move="accept-loss", detail={"why": reason, "lost": said})
        notify(conn, spec.name)
    return said


def _record_losses(
    conn: Connection, row: Transaction, topic_id: str, gone: list[OffsetRange], who: str, reason: str
) -> None:
    said = {"pipeline": row.pipeline, "txid": row.txid, "topic_id": topic_id, "who": who, "reason": reason}
    conn.execute(
        insert(losses),
        [
            {**said, "partition": r.partition, "from_offset": r.from_offset, "until_offset": r.until_offset}
            for r in gone
        ],
    )
