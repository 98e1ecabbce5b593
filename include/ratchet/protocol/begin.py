"""begin: which transaction a DAG run works on. Resume or revise its own, adopt, allocate, replay, or skip."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection, func

from ratchet.errors import (
    Fenced,
    Halted,
    NotRevisable,
    RatchetError,
    RecordsLost,
    SpecError,
    TombstonesLost,
    TopicChanged,
    UnknownTopic,
)
from ratchet.ledger import migrations
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Binding, Line, Transaction
from ratchet.ledger.states import State
from ratchet.ledger.transactions import lock_pipeline, move, newest_revision, read_transaction
from ratchet.ledger.work import Run, utc
from ratchet.protocol import beginning, claims, due, halts, replays, sources, tombstones
from ratchet.protocol.allocate import AskKafka, KafkaSaid, Wants, ask, lengthen
from ratchet.protocol.begun import Begun, How, Skip, Skipped, given
from ratchet.protocol.claims import IsActive
from ratchet.protocol.deadlines import abort_overdue
from ratchet.protocol.plan import end_of_interval, voted_and_gone
from ratchet.protocol.revise import check, check_cut, check_sent, revise
from ratchet.sinks import layout
from ratchet.source.interval import IntervalEnd
from ratchet.source.offsets import KnownLogs, TopicOffsets
from ratchet.spec.pipeline import Pipeline


class KafkaOffsets(Protocol):
    """Asks Kafka for the offsets of a line's topics, which keep the numbers that are known; given an interval, also for
    those `wanted` at which it ends, given what was known of their logs, whether they are the same, and given a time,
    for those `since` which records are as late.
    """

    def __call__(
        self, before: IntervalEnd | None, known: KnownLogs | None, since: datetime | None = None, /
    ) -> TopicOffsets: ...


def begin(
    ledger: Ledger,
    spec: Pipeline,
    run: Run,
    kafka_offsets: KafkaOffsets,
    is_active: IsActive,
    max_records: int | None = None,
    interval_end: datetime | None = None,
    *,
    drains: bool = False,
    dry_run: bool = False,
) -> Begun | Skipped:
    """Find this run's transaction, in this order: resume or revise, adopt, allocate, replay, skip.

    `max_records` lowers the spec's cap for this run. `interval_end` is the end of the run's data interval, to which
    a pipeline with plan="interval" plans; without one such a run plans nothing. A run that `drains` was started by
    another one, or by the maintenance: it takes what is due, and any other makes all due that there is.

    The first begin that hears Kafka decides where the line begins, and keeps that before it looks for work.

    No work is begun when it raises: SpecError where the line cannot begin as the spec says, Halted at a transaction
    that failed too often, NotRevisable, NotMigrated, RecordsLost, TopicChanged, UnknownTopic, Fenced when its work went
    elsewhere. What was prepared with other code is begun anew with today's, if Kafka still has it all.

    A `dry_run` returns and raises what such a begin would, with the claim that it would take, and changes nothing.
    """
    cap = spec.max_records if max_records is None else max_records
    if not 1 <= cap <= spec.max_records:
        raise SpecError(f"{spec.name}: max_records is {cap}; this pipeline takes 1 to {spec.max_records:,}")
    wants = Wants(cap, interval_end if spec.plan == "interval" else None, due.is_asked_for(spec) and not drains)
    kafka: KafkaSaid | None = None
    while True:
        # Step 1: ask Airflow, and in the second round Kafka, without a lock: never while holding one.
        with ledger.begin() as conn:
            layout.probe(conn, spec)
            migrations.check(conn)
            candidates = claims.unclaimed(conn, spec)
        asked = {(c.dag_id, c.run_id): is_active(c.dag_id, c.run_id) for c in candidates if not c.claim_ended}
        # Step 2: decide, under the pipeline's lock.
        try:
            with ledger.begin(dry_run=dry_run) as conn:
                if dry_run and kafka:
                    sources.register(conn, spec, kafka.offsets)
                found = _decide(conn, spec, run, asked, kafka, wants)
                if dry_run and kafka and isinstance(found, AskKafka) and found.known.source != kafka.known.source:
                    # It has begun the source that waited, which is undone with the rest; its logs are the same.
                    found = _decide(conn, spec, run, asked, replace(kafka, known=found.known), wants)
        except (RecordsLost, TopicChanged) as error:
            # Nothing can be planned until a person has decided; what is committed can be replayed meanwhile.
            with ledger.begin(dry_run=dry_run) as conn:
                found = _replay(conn, spec, run, wants, error)
        if isinstance(found, AskKafka):
            # Step 3: only who allocates needs Kafka; what is prepared is finished without it.
            try:
                kafka = _heard(ledger, spec, kafka_offsets, wants, found, dry_run=dry_run)
                continue
            except (TopicChanged, UnknownTopic) as error:
                if not found.is_for_plan:
                    raise
                # Kafka has none of the line's records any more, but the ledger has those of a release.
                with ledger.begin(dry_run=dry_run) as conn:
                    found = _replay(conn, spec, run, wants, error, only_releases=True)
        has_other_work = isinstance(found, Begun) and found.how in ("adopted", "resumed", "replayed")
        is_busy = not dry_run and (isinstance(found, Halted) or has_other_work)
        unheard = due.ask_besides(ledger, spec, kafka_offsets) if wants.asks and is_busy else None
        if isinstance(found, RatchetError):
            raise found
        if isinstance(found, Begun) and unheard:
            return replace(found, message=f"{found.message}; {unheard}")
        return found


def _heard(
    ledger: Ledger, spec: Pipeline, kafka_offsets: KafkaOffsets, wants: Wants, asked: AskKafka, *, dry_run: bool
) -> KafkaSaid:
    """What Kafka says when so much is known; TopicChanged where its topic is not the line's."""
    known = asked.known
    before = end_of_interval(ledger, spec, wants.interval_end, wants.max_records)
    since = beginning.times(spec) if known == sources.NOTHING_KNOWN else ()
    asked_at = tombstones.now(ledger, spec)
    offsets = kafka_offsets(before, known.logs, *since)
    with ledger.begin(dry_run=dry_run) as conn:
        begins = sources.register(conn, spec, offsets)
        # The line may have been dropped meanwhile, which has to stay so.
        layout.probe(conn, spec)
    of_all = None
    if not asked.is_for_plan:
        # The spec does not name a topic that is left, and Kafka may have what was planned of it.
        is_left = any(each.left for each in known.topics)
        of_all = kafka_offsets(None, replace(known.logs, may_lack=True)) if is_left else offsets
    return KafkaSaid(offsets, sources.just_begun(offsets) if begins else known, asked_at, of_all)


def _decide(
    conn: Connection,
    spec: Pipeline,
    run: Run,
    asked: dict[tuple[str, str], bool],
    kafka: KafkaSaid | None,
    wants: Wants,
) -> Begun | Skipped | RatchetError | AskKafka:
    """Resume, adopt, stop at a halt, skip, or allocate, for which Kafka must have been asked before.

    Where there is nothing else to do, the revision that is asked for and due is begun: live transactions go first.
    `asked` is what Airflow said of runs; one that was not asked about counts as active.
    """
    line = lock_pipeline(conn, spec.name)
    if line is None:
        return AskKafka(sources.NOTHING_KNOWN)
    abort_overdue(conn, spec.name)
    found = _resume(conn, spec, line, run, kafka)
    found = found or _adopt(conn, spec, line, run, lambda dag, run: asked.get((dag, run), True), kafka)
    if found:
        return found
    found = lengthen(conn, spec, line, run, kafka, wants)
    return found if isinstance(found, Begun | AskKafka) else _replay(conn, spec, run, wants, found)


def _replay(
    conn: Connection,
    spec: Pipeline,
    run: Run,
    wants: Wants,
    nothing: Skipped | RatchetError,
    *,
    only_releases: bool = False,
) -> Begun | Skipped | RatchetError:
    """The revision that is asked for and due, else `nothing`; a run with a data interval is kept for that."""
    line = lock_pipeline(conn, spec.name)
    if line is None or wants.interval_end is not None:
        return nothing
    begun, lost = replays.begin_next(conn, spec, line, run, only_releases=only_releases)
    if begun is None and isinstance(nothing, Skipped):
        return replace(nothing, message="; ".join((nothing.message, *lost)))
    if begun is None:
        return nothing
    claim, wanted = begun
    what = "it" if wanted.releases is None else "a release of dead letters"
    why = f"{wanted.who} has asked for {what}: {wanted.reason}"
    if wanted.code_hash != spec.code_hash:
        why += f"; it was asked for with code {wanted.code_hash} and is done with {spec.code_hash}"
    return given(conn, spec, claim, "replayed", "; ".join((why, *lost)))


def _resume(
    conn: Connection, spec: Pipeline, line: Line, run: Run, kafka: KafkaSaid | None
) -> Begun | Skipped | RatchetError | AskKafka | None:
    """What this run has begun before: the same again when Airflow repeats it; after a clear, the rest or a revision."""
    mine = claims.binding_of(conn, run)
    if mine is not None:
        return _repeated(conn, spec, line, run, mine)
    before = claims.earlier_binding(conn, run)
    if before is None:
        return None
    if before.txid <= line.pruned:
        # Whatever has become of it: nothing is known but that it is done with.
        check(conn, spec, line, before.txid)
    original = read_transaction(conn, spec.name, before.txid)
    newest = newest_revision(conn, spec.name, before.txid)
    where = f"{spec.name}: transaction {before.txid}"
    is_mine = (original.dag_id, original.run_id) == (run.dag_id, run.run_id)
    if newest.revision and newest.is_unfinished and (newest.dag_id, newest.run_id) == (run.dag_id, run.run_id):
        return _taken(conn, spec, line, newest, run, kafka, "resumed", "resumed after a clear", afresh=True)
    if original.state == State.VOIDED:
        return Skipped(Skip.VOIDED, f"{where} is voided: {original.reason}")
    if original.state != State.COMMITTED:
        if not is_mine and not original.claim_ended:
            return Skipped(Skip.ADOPTED, f"{where} was adopted by run {original.run_id}, which works on it")
        return _taken(conn, spec, line, original, run, kafka, "resumed", "resumed after a clear", afresh=True)
    if not is_mine:
        return _committed_by_another(where, original)
    if replays.is_going_on(conn, spec.name, besides=before.txid):
        check(conn, spec, line, before.txid)
        check_sent(conn, spec, before.txid)
        check_cut(conn, newest)
        if not replays.is_asked(conn, spec.name, before.txid):
            replays.ask(conn, spec, [before.txid], str(run), f"run {run.run_id} was cleared")
        # A begin that is repeated asks no second time.
        claims.bind(conn, run, original.token)
        return _waits(conn, line, before.txid)
    claim = revise(conn, spec, line, before.txid, run, asked_code=replays.taken(conn, spec.name, before.txid))
    why = f"the result committed at {utc(original.committed_at)} is revised with code {spec.code_hash}"
    return given(conn, spec, claim, "revised", why)


def _waits(conn: Connection, line: Line, txid: int) -> Skipped:
    """The revision of a cleared run waits for the one that is going on."""
    said = f"{replays.waiting(conn, line.pipeline)} wait, one at a time is worked on, live transactions go first"
    why = f"{line.pipeline}: a revision of transaction {txid} is asked for; {said}; a later run does it"
    return Skipped(Skip.REPLAY_WAITS, f"{why}, and until then the old result stays")


def _repeated(conn: Connection, spec: Pipeline, line: Line, run: Run, mine: Binding) -> Begun | Skipped:
    """A begin that Airflow repeats makes nothing new, whatever has become of its transaction.

    Where that is final, no task of this run has anything to do: another run has adopted it, or this run was deleted and
    made again under its id, or its begin was cleared while it ran.
    """
    if mine.txid <= line.pruned:
        was = f"{spec.name}: transaction {mine.txid} was committed or voided, and is pruned from the ledger"
        return Skipped(Skip.PRUNED, f"{was}: nothing is done again; trigger a run with another id for new records")
    row = read_transaction(conn, mine.pipeline, mine.txid, mine.revision)
    what = f"{spec.name}: {row}"
    if row.is_unfinished:
        if row.claim != mine.claim:
            raise Fenced(f"{what} was adopted by run {row.run_id} meanwhile")
        if row.claim_ended:
            raise Fenced(f"{what}: this run's claim has ended; clear the run")
        return given(conn, spec, mine.token, "resumed", "begun before by this run")
    if row.state == State.VOIDED:
        return Skipped(Skip.VOIDED, f"{what} is voided: {row.reason}")
    if (row.dag_id, row.run_id) != (run.dag_id, run.run_id):
        return _committed_by_another(what, row)
    if replays.is_asked(conn, spec.name, row.txid):
        return _waits(conn, line, row.txid)
    why = f"{what} is committed, by this run or one of its id that was deleted: nothing is done again"
    advice = f"clear run {run.run_id} to revise it, or trigger a run with another id for new records"
    return Skipped(Skip.COMMITTED_BEFORE, f"{why}; {advice}")


def _committed_by_another(what: str, row: Transaction) -> Skipped:
    why = f"{what} was adopted and committed by run {row.run_id}; clear that one to revise it"
    return Skipped(Skip.COMMITTED_BY_ANOTHER, why)


def _adopt(
    conn: Connection, spec: Pipeline, line: Line, run: Run, is_active: IsActive, kafka: KafkaSaid | None
) -> Begun | RatchetError | AskKafka | None:
    """The first of what is abandoned; a claim that nobody ended is ended here, and counts as a failure."""
    unclaimed, halt = claims.unclaimed(conn, spec), halts.halt(conn, spec.name)
    for row in claims.abandoned(unclaimed, is_active, line, halt):
        lost_by = row.run_id
        if not row.claim_ended:
            row = read_transaction(conn, row.pipeline, row.txid, row.revision, lock=True)
            # Its own settle may have been quicker.
            if not row.claim_ended:
                row = claims.end(conn, spec, row, who=str(run), why=f"run {lost_by} was lost")
        if row.halted_at is not None:
            if row.revision:
                continue
            return None
        found = _taken(conn, spec, line, row, run, kafka, "adopted", f"adopted from run {lost_by}")
        if not isinstance(found, NotRevisable):
            return found
    return None


def _taken(
    conn: Connection,
    spec: Pipeline,
    line: Line,
    row: Transaction,
    run: Run,
    kafka: KafkaSaid | None,
    how: How,
    why: str,
    *,
    afresh: bool = False,
) -> Begun | RatchetError | AskKafka:
    """Claim what is unfinished, unless other code has voted for records that Kafka does not have any more.

    Then the votes that stand are their last copy: whoever has that code can still commit them. A revision is given up:
    the old result stays.
    """
    # The records of a release are in the ledger.
    needs_kafka = row.releases is None and row.state in (State.OPEN, State.PREPARED)
    if needs_kafka and row.code_hash != spec.code_hash:
        if kafka is None or kafka.of_all is None or sources.known(conn, line) != kafka.known:
            return replace(ask(conn, line), is_for_plan=False)
        gone = ", ".join(map(str, voted_and_gone(conn, row, kafka.of_all)))
        said = f"{row} was begun with code {row.code_hash}, this process has {spec.code_hash}, and Kafka does not have"
        if gone and row.revision:
            why = f"{said} {gone} any more to read it again"
            now = func.clock_timestamp()
            move(conn, row, State.ABORTED, who=str(run), why=why, reason=why, halted_at=now, claim_ended=True)
            return NotRevisable(f"{spec.name}: {why}; it is given up, the old result stays")
        if not gone and row.state == State.PREPARED and tombstones.overdue(conn, spec, row):
            return TombstonesLost(
                f"{spec.name}: {row} was prepared with code {row.code_hash}, this process has {spec.code_hash}, and of "
                "its compacted topic deletions may be gone by now; nothing was changed; go back to the code of before "
                f"to commit it, or give it up with `ratchet void {spec.name} {row.txid} --reason …`"
            )
        if gone:
            return RecordsLost(
                f"{spec.name}: {said} {gone} any more, which it has voted for; nothing was changed; go back to the "
                f"code of before to commit it, or give it up with `ratchet void {spec.name} {row.txid} --reason …`"
            )
    claim = claims.take(conn, spec, row, run, afresh=afresh)
    return given(conn, spec, claim, how, why)
