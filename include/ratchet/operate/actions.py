"""The moves that a person makes, each guarded, recorded with a reason, and answered by what it has done."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, select, update

from ratchet.errors import IllegalMove, TopicChanged
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, SliceRow, Transaction
from ratchet.ledger.schema import slices, transactions
from ratchet.ledger.states import State
from ratchet.ledger.topics import number_of, of_kafka
from ratchet.ledger.transactions import (
    instead_of,
    is_in,
    is_row,
    move,
    newest_revision,
    next_txid,
    read_transaction,
)
from ratchet.ledger.work import OffsetRange, Run
from ratchet.operate.decisions import Decided, advanced, changed, discard, finish, lock, record_losses, take_out
from ratchet.operate.outcome import Change, Left, Move, Opened, Outcome, Start, left_lines, losses_of, opened_lines
from ratchet.protocol import beginning, claims, due, halts, membership, plan, sources, tombstones
from ratchet.protocol.begin import KafkaOffsets
from ratchet.protocol.sources import Cause
from ratchet.protocol.tombstones import Look
from ratchet.source.offsets import KnownLogs, TopicOffsets
from ratchet.spec.pipeline import Pipeline


def retry(
    ledger: Ledger, spec: Pipeline, txid: int | None, who: str, reason: str | None = None, *, dry_run: bool = False
) -> Outcome:
    """Lift the halt at a transaction, or take up a revision that was given up; the next run of any kind goes on.

    Without `txid` the one at which the line is halted. The history keeps `reason`, or why it had failed. Raises
    IllegalMove when there is nothing to try again.
    """
    with ledger.begin(dry_run=dry_run) as conn:
        line = lock(conn, spec)
        row = _unfinished(conn, spec, _halted_at(conn, spec) if txid is None else txid)
        if not row.claim_ended:
            raise IllegalMove(f"{_named(row)} is {row.state}, and run {row.run_id} works on it")
        row = Transaction.one(
            conn.execute(update(transactions).where(is_row(row)).values(**halts.LIFTED).returning(transactions))
        )
        history.record(conn, row, who=who, move=str(Move.RETRY), detail={"why": reason or row.reason})
    done = (changed(row, row.state, row.reason),)
    return Outcome(Move.RETRY, spec.name, done, line.head, pause=line.pause, dry_run=dry_run)


def abort(ledger: Ledger, spec: Pipeline, txid: int, reason: str, who: str, *, dry_run: bool = False) -> Outcome:
    """Let what an epoch has staged and voted count for nothing; the next run begins a new one."""
    with ledger.begin(dry_run=dry_run) as conn:
        line = lock(conn, spec)
        before = _unfinished(conn, spec, txid)
        row = move(conn, before, State.ABORTED, who=who, why=reason, reason=reason)
    if not dry_run:
        discard(ledger, spec)
    done = (changed(row, before.state, reason),)
    return Outcome(Move.ABORT, spec.name, done, line.head, pause=line.pause, dry_run=dry_run)


def void(ledger: Ledger, spec: Pipeline, txid: int, reason: str, who: str, *, dry_run: bool = False) -> Outcome:
    """Decide that a transaction commits nothing, which also lifts a halt at it; its ranges stay recorded.

    In its turn the head moves over it at once, and what is prepared behind it is committed.
    """

    def decide(conn: Connection) -> Decided:
        line = lock(conn, spec)
        before = read_transaction(conn, spec.name, txid, lock=True)
        if before.state == State.VOIDED:
            done = (changed(before, State.VOIDED, before.reason),)
            return Outcome(Move.VOID, spec.name, done, line.head, pause=line.pause), False
        row = move(conn, before, State.VOIDED, who=who, why=reason, reason=reason, halted_at=None, claim_ended=True)
        change = changed(row, before.state, reason, plan.ranges_of(conn, spec.name, txid))
        return advanced(conn, spec, Move.VOID, [change], line, dry_run=dry_run)

    return finish(ledger, spec, decide, dry_run)


def accept_loss(
    ledger: Ledger, spec: Pipeline, kafka_offsets: KafkaOffsets, reason: str, who: str, *, dry_run: bool = False
) -> Outcome:
    """Accept that Kafka no longer has some offsets, so that the line goes on without them.

    What no plan has taken becomes a transaction that is voided; what an unfinished plan still has to read is taken
    out of its slices. Votes that stand keep their records. Where a log was cut, or the topic made again, the next
    source begins: every record that came since is taken, and what was committed stays. A topic of several that is gone,
    or that the spec does not name any more, is left. Raises IllegalMove when nothing is lost, or leaders have changed
    meanwhile.

    Where deletions of a compacted topic may be missing, that is accepted: rows of their keys may stay, and the time in
    which the topic has to be read counts anew.
    """
    with ledger.begin() as conn:
        line = lock(conn, spec)
        known = sources.known(conn, line)
    asked_at = tombstones.now(ledger, spec)
    if not any(spec.source.wants(name) for name in line.topics.names):
        raise TopicChanged(f"{spec.name}: the ledger's ranges are of {line.topics.title}, not of {spec.source.title}")
    offsets = kafka_offsets(None, replace(known.logs, may_lack=True))
    again = membership.made_again(line.topics, offsets)
    if again:
        # Of another topic's logs nothing is known.
        lineages = {p: of for p, of in known.lineages.items() if number_of(p) not in again}
        offsets = kafka_offsets(None, KnownLogs(line.topics, lineages, may_lack=True))
    # One that would join does so with the next run.
    offsets = offsets.of(range(len(line.topics)))

    def decide(conn: Connection) -> Decided:
        line = lock(conn, spec)
        if sources.known(conn, line) != known:
            raise IllegalMove(f"{spec.name}: a run has planned meanwhile; nothing was accepted; look again")
        changes = _lose_planned(conn, spec, line, offsets, reason, who)
        left = _leave_topics(conn, spec, line, offsets, reason, who)
        stays = offsets.of(set(range(len(line.topics))) - membership.gone(spec, line.topics, offsets))
        opened = _open_source(conn, lock(conn, spec), stays, reason, who)
        changes += _lose_unplanned(conn, spec, lock(conn, spec), stays, reason, who)
        accepted = None
        if spec.source.compacted:
            new = tombstones.look(asked_at, stays)
            accepted = _lose_tombstones(conn, spec, lock(conn, spec), new, reason, who, anew=opened is not None)
        if not changes and not left and opened is None and accepted is None:
            raise IllegalMove(f"{spec.name}: Kafka has every offset that is needed; there is no loss to accept")
        # The run that met the loss could not ask; and offsets of the source before mean nothing any more.
        due.ask(conn, lock(conn, spec), stays)
        outcome, met = advanced(conn, spec, Move.ACCEPT_LOSS, changes, lock(conn, spec), dry_run=dry_run)
        return replace(outcome, opened=opened, left=left, accepted=accepted), met

    return finish(ledger, spec, decide, dry_run)


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
        nothing = "which is final; there is nothing to try again or to abort"
        raise IllegalMove(f"{_named(row)} is {row.state}, {nothing}{instead_of(row)}")
    return row


def _lose_unplanned(
    conn: Connection, spec: Pipeline, line: Line, offsets: TopicOffsets, reason: str, who: str
) -> list[Change]:
    """A voided transaction over what retention has deleted before any plan took it."""
    # A begin that found the loss has left nothing behind, not even where a new partition starts.
    plan.anchor(conn, line, offsets)
    course = plan.course_of(conn, line)
    # What lies beyond the source's end is the business of the one that waits.
    gone_until = course.limit(offsets, offsets.beginning) or offsets.beginning
    missing = [
        offsets.range(partition, until, gone_until[partition])
        for partition, until in sorted(course.left.items())
        if gone_until.get(partition, 0) > until
    ]
    if not missing:
        return []
    txid = next_txid(conn, line)
    row = claims.open_transaction(conn, spec, Run(spec.name, f"accept-loss {txid}"), txid)
    plan.store(conn, spec.name, txid, line.source, missing)
    said = {"from": None, "ranges": [str(r) for r in missing], "why": "records are lost"}
    begun = beginning.of_first(conn, line)
    if begun:
        said |= {"why": f"records are lost; {begun}", "begins": begun.stored}
    history.record(conn, row, who=who, move=str(State.OPEN), detail=said)
    row = move(conn, row, State.VOIDED, who=who, why=reason, reason=reason, claim_ended=True)
    record_losses(conn, row, line.source, missing, who, reason)
    return [changed(row, None, reason, missing)]


def _open_source(conn: Connection, line: Line, offsets: TopicOffsets, reason: str, who: str) -> Opened | None:
    """The next source, where a log of the newest was cut or a topic made again."""
    course = plan.course_of(conn, line)
    again = membership.made_again(line.topics, offsets)
    cut = sources.cut_logs({p: at for p, at in course.fixed.items() if number_of(p) not in again}, offsets)
    # Also of topics that are left: what is planned of them may have to be read yet.
    planned = plan.previous_until(conn, line.pipeline, line.source) | course.taken
    if not again and not cut:
        return None
    cause = Cause.MADE_AGAIN if again else Cause.CUT
    starts = {p: min(at, cut.get(p, at)) for p, at in planned.items() if number_of(p) not in again}
    starts |= {p: 0 for p in offsets.stable if number_of(p) in again}
    passed_over, renewed = sources.waiting(conn, line), membership.renewed(line.topics, offsets)
    number = sources.open_next(conn, line, offsets, starts, cause)
    opened = Opened(
        number,
        renewed.of,
        tuple(renewed.names[n] for n in sorted(again)),
        cause,
        tuple(
            Start(*renewed.place(p), at, planned.get(p, 0))
            for p, at in sorted(starts.items())
            if at != planned.get(p, 0)
        ),
        passed_over,
    )
    if line.last_txid:
        newest = read_transaction(conn, line.pipeline, line.last_txid, lock=True)
        said = {"why": reason, "source": number, "opened": opened_lines(line.pipeline, opened)}
        history.record(conn, newest, who=who, move=str(Move.ACCEPT_LOSS), detail=said)
    return opened


def _lose_tombstones(
    conn: Connection, spec: Pipeline, line: Line, new: Look, reason: str, who: str, *, anew: bool
) -> str | None:
    """Go on without the deletions that may be missing, in a line; None where all are there.

    Of a source that has just begun no look is known, so it begins `anew` with this one.
    """
    course = plan.course_of(conn, line)
    unfinished = conn.execute(
        select(transactions)
        .where(transactions.c.pipeline == spec.name, is_in(State.OPEN, State.ABORTED))
        .order_by(transactions.c.txid)
        .with_for_update()
    )
    late = [row for row in Transaction.all(unfinished) if tombstones.overdue(conn, spec, row, new.kept)]
    why = None if anew else tombstones.missing(conn, line, new, course)
    if not late and why is None and not anew:
        return None
    tombstones.note(conn, line, [new])
    said = why or f"{line.topics.title} was read too late, or is read by another source from here"
    said += "; that deletions from before now are missing is accepted, and the time counts anew"
    for row in late:
        term = {"tombstones_since": new.at, "tombstones_kept": new.kept}
        conn.execute(update(transactions).where(is_row(row)).values(**halts.LIFTED, **term))
        history.record(conn, row, who=who, move=str(Move.ACCEPT_LOSS), detail={"why": reason, "accepted": said})
    if line.last_txid and not late:
        newest = read_transaction(conn, line.pipeline, line.last_txid, lock=True)
        detail = {"why": reason, "accepted": said}
        history.record(conn, newest, who=who, move=str(Move.ACCEPT_LOSS), detail=detail)
    return said


def _leave_topics(
    conn: Connection, spec: Pipeline, line: Line, offsets: TopicOffsets, reason: str, who: str
) -> tuple[Left, ...]:
    """Leave those topics that are gone, or that the spec does not name any more."""
    numbers = membership.gone(spec, line.topics, offsets)
    if not numbers:
        return ()
    here = offsets.topics.ids
    # One that was left and is back goes on with the next run.
    if not any(each.name in here and spec.source.wants(each.name) for each in line.topics):
        raise TopicChanged(
            f"{spec.name}: the ledger's ranges are of {line.topics.title}, and none of them is in Kafka and the spec; "
            "nothing was accepted; give the pipeline a new name, and its sinks new tables, to begin anew"
        )
    previous = plan.previous_until(conn, line.pipeline, line.source)
    membership.leave(conn, line, numbers)
    left = tuple(
        Left(line.topics.of[number].name, {of_kafka(p): at for p, at in previous.items() if number_of(p) == number})
        for number in sorted(numbers)
    )
    if line.last_txid:
        newest = read_transaction(conn, line.pipeline, line.last_txid, lock=True)
        said = {"why": reason, "left": left_lines(line.pipeline, left)}
        history.record(conn, newest, who=who, move=str(Move.ACCEPT_LOSS), detail=said)
    return left


def _lose_planned(
    conn: Connection, spec: Pipeline, line: Line, offsets: TopicOffsets, reason: str, who: str
) -> list[Change]:
    """Take what is gone out of the slices that still have to be read."""
    found = conn.execute(
        select(transactions)
        .where(
            transactions.c.pipeline == spec.name,
            transactions.c.revision == 0,
            is_in(State.OPEN, State.ABORTED),
        )
        .order_by(transactions.c.txid)
        .with_for_update()
    )
    rows = Transaction.all(found)
    return [change for row in rows for change in _lose_of(conn, spec, line, row, offsets, reason, who)]


def _lose_of(
    conn: Connection, spec: Pipeline, line: Line, row: Transaction, offsets: TopicOffsets, reason: str, who: str
) -> list[Change]:
    again = membership.made_again(line.topics, offsets)
    source = sources.source_of(conn, row.pipeline, row.txid)
    ends = sources.ends(conn, row.pipeline, source)
    mine = (slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
    # Of an epoch that is over nothing stands; of an open one, what has voted needs Kafka no more.
    to_read = slices.c.voted_at.is_(None) if row.state == State.OPEN else slices.c.slice >= 0
    parts = SliceRow.all(conn.execute(select(slices).where(*mine, to_read).order_by(slices.c.slice)))
    changes: list[Change] = []
    for part in parts:
        gone: list[OffsetRange] = []
        for r in plan.read_ranges(line.topics, part.ranges):
            first, last = offsets.beginning.get(r.partition, 0), r.until_offset
            if number_of(r.partition) in again or r.topic not in offsets.topics.ids:
                last = r.from_offset
            else:
                last = offsets.same(r.partition, last)
            if ends is not None:
                last = min(last, ends.get(r.partition, 0))
            gone += plan.outside(r, first, last)
        if not gone:
            continue
        changes.append(take_out(conn, row, source, part, gone, who, reason))
    if changes:
        conn.execute(update(transactions).where(is_row(row)).values(**halts.LIFTED))
        lost = [line for change in changes for line in losses_of(spec.name, change)]
        history.record(conn, row, who=who, move=str(Move.ACCEPT_LOSS), detail={"why": reason, "lost": lost})
    return changes
