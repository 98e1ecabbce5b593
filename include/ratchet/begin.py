"""begin: which transaction a DAG run works on. Resume its own, adopt an abandoned one, allocate, or skip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Literal

from sqlalchemy import Connection, Row, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet import claims, history
from ratchet.claims import IsActive
from ratchet.errors import AlreadyCommitted, Fenced, SpecError, TopicChanged
from ratchet.kafka import TopicOffsets
from ratchet.ledger import Ledger, lock_pipeline, read_transaction
from ratchet.pipeline import Pipeline
from ratchet.plan import (
    Slice,
    anchor,
    backlog,
    check_readable,
    cut,
    plan,
    previous_until,
    read_ranges,
    store,
    write_ranges,
)
from ratchet.schema import pipelines, slices, transactions
from ratchet.transaction import Claim, Run, State

KafkaOffsets = Callable[[], TopicOffsets]


@dataclass(frozen=True)
class Begun:
    """A transaction for this run: its claim, all its slices in order, and the line for the task's log."""

    claim: Claim
    slices: tuple[Slice, ...]
    how: Literal["resumed", "adopted", "allocated"]
    message: str


@dataclass(frozen=True)
class Skipped:
    """There is nothing for this run to do; the message says why."""

    message: str


def begin(
    ledger: Ledger,
    spec: Pipeline,
    run: Run,
    kafka_offsets: KafkaOffsets,
    is_active: IsActive,
    max_records: int | None = None,
) -> Begun | Skipped:
    """Find this run's transaction, in this order: resume, adopt, allocate, skip.

    `max_records` lowers the spec's cap for this run. Nothing changes when it raises: AlreadyCommitted for a
    cleared run whose transaction is done, RecordsLost, TopicChanged, Fenced when its work went elsewhere.
    """
    cap = spec.max_records if max_records is None else max_records
    if not 1 <= cap <= spec.max_records:
        raise SpecError(f"{spec.name}: max_records is {cap}; this pipeline takes 1 to {spec.max_records:,}")
    # Step 1: look, without a lock, whether Kafka and Airflow must be asked: never while holding one.
    with ledger.begin() as conn:
        candidates = claims.unclaimed(conn, spec.name)
        own = claims.bound(conn, run) or claims.bound_before(conn, run)
    alive = {(c.dag_id, c.run_id): is_active(c.dag_id, c.run_id) for c in candidates if not c.claim_ended}
    offsets = None if own else kafka_offsets()
    if offsets:
        with ledger.begin() as conn:
            _register(conn, spec, offsets)
    # Step 2: decide, under the pipeline's lock.
    with ledger.begin() as conn:
        line = lock_pipeline(conn, spec.name)
        if line is None:
            return Skipped(f"{spec.name}: the ledger has nothing of this pipeline yet")
        resumed = _resume(conn, spec, run)
        if resumed:
            return resumed
        # A run that was not asked about above counts as active: never adopt on doubt.
        lost = claims.abandoned(claims.unclaimed(conn, spec.name), lambda *who: alive.get(who, True))
        if lost:
            claim = claims.take(conn, spec, lost[0], run)
            return _begun(conn, spec, claim, "adopted", f"adopted from run {lost[0].run_id}")
        if line.last_txid - line.head >= spec.max_in_flight:
            return Skipped(
                f"{spec.name}: {line.last_txid - line.head} transactions are unfinished, {line.head + 1} to "
                f"{line.last_txid}; max_in_flight is {spec.max_in_flight}; their runs will take the rest"
            )
        return _allocate(conn, spec, run, line, offsets, cap)


def wants_another_run(ledger: Ledger, spec: Pipeline, kafka_offsets: KafkaOffsets, is_active: IsActive) -> str | None:
    """Why one more run should be started now, in a line; None if it should not."""
    with ledger.begin() as conn:
        line = conn.execute(select(pipelines).where(pipelines.c.pipeline == spec.name)).one_or_none()
        candidates = claims.unclaimed(conn, spec.name)
        previous = previous_until(conn, spec.name, line.topic_id) if line else {}
    lost = claims.abandoned(candidates, is_active)
    if lost:
        return f"transaction {lost[0].txid} is {lost[0].state} and abandoned"
    if line is None or line.last_txid - line.head >= spec.max_in_flight:
        return None
    waiting = backlog(previous, kafka_offsets())
    return f"{waiting:,} records wait" if waiting else None


def _register(conn: Connection, spec: Pipeline, offsets: TopicOffsets) -> None:
    """The pipeline's row, made by its first run, and the check that its topic is still the same one."""
    conn.execute(
        upsert(pipelines)
        .values(pipeline=spec.name, topic=offsets.topic, topic_id=offsets.topic_id)
        .on_conflict_do_nothing()
    )
    topic, topic_id = conn.execute(
        select(pipelines.c.topic, pipelines.c.topic_id).where(pipelines.c.pipeline == spec.name)
    ).one()
    if (topic, topic_id) != (offsets.topic, offsets.topic_id):
        raise TopicChanged(
            f"{spec.name}: the ledger's ranges are of topic {topic} with id {topic_id}; Kafka's {offsets.topic} has "
            f"id {offsets.topic_id}: it is another topic, perhaps deleted and made again; nothing was planned; "
            "give the pipeline a new name to begin anew with this topic"
        )


def _resume(conn: Connection, spec: Pipeline, run: Run) -> Begun | Skipped | None:
    mine = claims.bound(conn, run)
    if mine is not None:
        return _repeated(conn, spec, run, mine)
    before = claims.bound_before(conn, run)
    if before is None:
        return None
    row = read_transaction(conn, spec.name, before.txid)
    if row.state == State.COMMITTED:
        at = f"{row.committed_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        raise AlreadyCommitted(
            f"{spec.name}: transaction {row.txid} was committed at {at}; clearing its run changes nothing"
        )
    if row.state == State.VOIDED:
        return Skipped(f"{spec.name}: transaction {row.txid} is voided: {row.reason}")
    if (row.dag_id, row.run_id) != (run.dag_id, run.run_id) and not row.claim_ended:
        return Skipped(f"{spec.name}: transaction {row.txid} was adopted by run {row.run_id}, which works on it")
    claim = claims.take(conn, spec, row, run)
    return _begun(conn, spec, claim, "resumed", "resumed after a clear")


def _repeated(conn: Connection, spec: Pipeline, run: Run, mine: Row) -> Begun | Skipped:
    """A begin that Airflow repeats makes nothing new, whatever has become of its transaction."""
    row = read_transaction(conn, mine.pipeline, mine.txid)
    if row.claim != mine.claim and row.state in claims.UNFINISHED:
        raise Fenced(f"{spec.name}: transaction {row.txid} was adopted by run {row.run_id} meanwhile")
    claim = Claim(mine.pipeline, mine.txid, mine.epoch, mine.claim, mine.revision)
    if row.claim_ended and row.state in claims.UNFINISHED:
        raise Fenced(f"{spec.name}: this run's claim of transaction {row.txid} has ended; clear the run")
    return _begun(conn, spec, claim, "resumed", "begun before by this run")


def _allocate(
    conn: Connection, spec: Pipeline, run: Run, line: Row, offsets: TopicOffsets | None, cap: int
) -> Begun | Skipped:
    """The next txid and its plan, in this one database transaction; the caller holds the pipeline's lock."""
    if offsets is None:
        raise Fenced(f"{spec.name}: run {run} was bound to a transaction a moment ago and is not now")
    anchor(conn, spec.name, offsets)
    previous = previous_until(conn, spec.name, offsets.topic_id)
    check_readable(spec.name, previous, offsets)
    planned = plan(previous, offsets, cap)
    if not planned:
        return Skipped(f"{spec.name}: no records wait in topic {offsets.topic} below its last stable offset")
    txid = conn.execute(
        update(pipelines)
        .where(pipelines.c.pipeline == spec.name, pipelines.c.last_txid == line.last_txid)
        .values(last_txid=line.last_txid + 1)
        .returning(pipelines.c.last_txid)
    ).scalar_one()
    claim = Claim(spec.name, txid, epoch=1, number=1)
    conn.execute(
        insert(transactions).values(
            pipeline=spec.name,
            txid=txid,
            revision=0,
            epoch=1,
            state=State.OPEN,
            claim=1,
            dag_id=run.dag_id,
            run_id=run.run_id,
            clear_number=run.clear_number,
            lease_until=func.clock_timestamp() + timedelta(seconds=spec.lease_seconds),
            code_hash=spec.code_hash,
            txn_time=func.date_trunc("milliseconds", func.clock_timestamp()),
        )
    )
    claims.bind(conn, run, claim)
    store(conn, spec.name, txid, offsets.topic_id, planned)
    conn.execute(
        insert(slices),
        [
            {"pipeline": spec.name, "txid": txid, "epoch": 1, "slice": s.number, "ranges": write_ranges(s.ranges)}
            for s in cut(planned, spec.slice_records)
        ],
    )
    said = {"from": None, "ranges": [str(r) for r in planned], "why": "allocated"}
    history.record(conn, spec.name, txid, epoch=1, who=str(run), move=str(State.OPEN), detail=said)
    return _begun(conn, spec, claim, "allocated", "allocated")


def _begun(
    conn: Connection, spec: Pipeline, claim: Claim, how: Literal["resumed", "adopted", "allocated"], why: str
) -> Begun:
    rows = conn.execute(
        select(slices.c.slice, slices.c.ranges)
        .where(slices.c.pipeline == spec.name, slices.c.txid == claim.txid, slices.c.epoch == claim.epoch)
        .order_by(slices.c.slice)
    ).all()
    cut_ = tuple(Slice(row.slice, read_ranges(spec.source.name, row.ranges)) for row in rows)
    line = conn.execute(select(pipelines.c.head).where(pipelines.c.pipeline == spec.name)).scalar_one()
    message = (
        f"transaction {claim.txid}: {why}; {len(cut_)} slices, {sum(map(len, cut_)):,} offsets; epoch {claim.epoch}, "
        f"claim {claim.number}; {waits_for(conn, spec.name, line, claim.txid) or 'it is next in line'}"
    )
    return Begun(claim, cut_, how, message)


def waits_for(conn: Connection, pipeline: str, head: int, txid: int) -> str | None:
    """What stands before a transaction: "waits for 11, which run X is processing"; None when it is its turn."""
    if txid <= head + 1:
        return None
    first = read_transaction(conn, pipeline, head + 1)
    doing = {
        State.OPEN: f"which run {first.run_id} is processing",
        State.PREPARED: f"which run {first.run_id} is about to commit",
        State.ABORTED: f"which was aborted ({first.reason}) and will be tried again",
    }
    gone = "; its run has ended, the next one adopts it" if first.claim_ended else ""
    return f"waits for {head + 1}, {doing.get(State(first.state), f'which is {first.state}')}{gone}"
