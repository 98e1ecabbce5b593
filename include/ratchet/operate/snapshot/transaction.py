"""One transaction with all that the ledger has of it: ranges, slices, tries, votes, gates, claims, history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from ratchet.ledger import topic_rows
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Binding, Event, Line, Pause, Replay, SliceRow, Transaction
from ratchet.ledger.schema import events, losses, ranges, replays, runs, slices, topics, transactions
from ratchet.ledger.states import State
from ratchet.ledger.topics import PER_TOPIC, of_kafka
from ratchet.ledger.transactions import read_line, read_transaction
from ratchet.operate.snapshot.result import Result, letters_before, result_of, rows_of
from ratchet.operate.snapshot.status import Standing, statuses

NEWEST = 500
"""So many events, and so many slices of all epochs, are read of a transaction at most: the newest ones."""


@dataclass(frozen=True)
class Range:
    """A range of the plan; `source` is the number that rows carry, `partition` is Kafka's."""

    topic: str
    source: int
    partition: int
    from_offset: int
    until_offset: int


@dataclass(frozen=True)
class Loss:
    """Offsets that a person took out of the plan."""

    topic: str
    source: int
    partition: int
    from_offset: int
    until_offset: int
    who: str
    reason: str
    at: datetime


@dataclass(frozen=True)
class SinkVote:
    """What a slice has voted of one sink."""

    sink: str
    rows: int
    checksum: str
    writers: int


@dataclass(frozen=True)
class Slice:
    """A slice of an epoch: its ranges, its latest try, and its vote, once there is one.

    `seconds` is how long each step of the job took; `cut` counts the moments that lost digits beyond microseconds.
    """

    epoch: int
    slice: int
    ranges: tuple[Range, ...]
    try_number: int
    tried_at: datetime | None
    voted_at: datetime | None
    records: int | None
    dead_letters: int | None
    sinks: tuple[SinkVote, ...]
    seconds: Mapping[str, float]
    absent: tuple[str, ...]
    cut: int
    application_id: str | None


@dataclass(frozen=True)
class Verdict:
    """What a gate said of an epoch, with its numbers."""

    epoch: int
    gate: str
    yes: bool
    why: str | None
    numbers: Mapping[str, object]


@dataclass(frozen=True)
class Claim:
    """A run's claim: since when, and until when and why it ended, if it has."""

    number: int
    revision: int
    epoch: int
    run: str
    at: datetime
    ended_at: datetime | None
    why: str | None


@dataclass(frozen=True)
class Revision:
    """A transaction as it stands, revision 0, or a revision of it.

    Of a release `releases` is the text that the errors of its dead letters contain, empty where it takes all, and
    `letters` how many dead letters the transaction had before it; its `records` are those that it takes.
    """

    revision: int
    state: State
    epoch: int
    claim: int
    claim_ended: bool
    dag_id: str
    run_id: str
    clear_number: int
    code: str
    asked_code: str | None
    records: int | None
    rows: Mapping[str, int]
    failures: int
    halted_at: datetime | None
    deadline: datetime | None
    lease_until: datetime
    txn_time: datetime
    opened_at: datetime
    prepared_at: datetime | None
    committed_at: datetime | None
    reason: str | None
    releases: str | None
    letters: int | None


@dataclass(frozen=True)
class Whole:
    """All that the ledger has of one transaction; `applied` is the revision that was committed last.

    `result` is what readers see of it, with all that releases have added; both are None where they see nothing.
    `standing` is what it, or its newest revision, waits for, None where nothing is unfinished; `pause` is the line's.
    """

    pipeline: str
    txid: int
    head: int
    last_txid: int
    pause: Pause | None
    applied: int | None
    result: Result | None
    standing: Standing | None
    revisions: tuple[Revision, ...]
    ranges: tuple[Range, ...]
    losses: tuple[Loss, ...]
    slices: tuple[Slice, ...]
    gates: tuple[Verdict, ...]
    claims: tuple[Claim, ...]
    replay: Replay | None
    history: tuple[Event, ...]


def transaction(ledger: Ledger, pipeline: str, txid: int) -> Whole:
    """One transaction; Fenced where there is none, or it is pruned."""
    with ledger.snapshot() as conn:
        return read(conn, pipeline, txid)


def of_run(ledger: Ledger, pipeline: str, dag_id: str, run_id: str) -> tuple[Binding, ...]:
    """Which transactions of a pipeline a DAG run has worked on, one for each clear, the latest first."""
    c = runs.c
    mine = (c.dag_id == dag_id, c.run_id == run_id, c.pipeline == pipeline)
    with ledger.snapshot() as conn:
        found = conn.execute(select(runs).where(*mine).order_by(c.clear_number.desc()).limit(NEWEST))
        return tuple(Binding.all(found))


def read(conn: Connection, pipeline: str, txid: int) -> Whole:
    """The same within a snapshot."""
    read_transaction(conn, pipeline, txid)
    status = statuses(conn, [pipeline])[pipeline]
    c = transactions.c
    found = select(transactions).where(c.pipeline == pipeline, c.txid == txid).order_by(c.revision)
    rows = Transaction.all(conn.execute(found))
    planned = _ranges(conn, pipeline, txid)
    line = read_line(conn, pipeline)
    assert line is not None, "a foreign key holds each transaction to its pipeline"
    said = _newest_events(conn, pipeline, txid)
    asked = select(replays).where(replays.c.pipeline == pipeline, replays.c.txid == txid)
    return Whole(
        pipeline,
        txid,
        status.head,
        status.last_txid,
        status.pause,
        max((row.revision for row in rows if row.state == State.COMMITTED), default=None),
        result_of(rows),
        next((t for t in status.unfinished if t.txid == txid), None),
        tuple(_revision(row, letters_before(row, rows)) for row in rows),
        planned,
        _losses(conn, pipeline, txid),
        _slices(conn, line, txid, planned),
        (*_refusals(said), *(verdict for row in rows for verdict in _verdicts(row.epoch, row.verdict))),
        tuple(_claims(said)),
        Replay.one_or_none(conn.execute(asked)),
        said,
    )


def _revision(row: Transaction, letters: int | None) -> Revision:
    return Revision(
        row.revision,
        row.state,
        row.epoch,
        row.claim,
        row.claim_ended,
        row.dag_id,
        row.run_id,
        row.clear_number,
        row.code_hash,
        row.asked_code,
        row.records,
        rows_of(row),
        row.failures,
        row.halted_at,
        row.deadline,
        row.lease_until,
        row.txn_time,
        row.opened_at,
        row.prepared_at,
        row.committed_at,
        row.reason,
        row.releases,
        letters,
    )


def _ranges(conn: Connection, pipeline: str, txid: int) -> tuple[Range, ...]:
    r, t = ranges.c, topics.c
    query = (
        select(t.topic, r.source, r.partition % PER_TOPIC, r.from_offset, r.until_offset)
        .join(topics, topic_rows.is_of(ranges))
        .where(r.pipeline == pipeline, r.txid == txid)
        .order_by(r.source, r.partition)
    )
    return tuple(Range(*row) for row in conn.execute(query))


def _losses(conn: Connection, pipeline: str, txid: int) -> tuple[Loss, ...]:
    c = losses.c
    query = select(
        topics.c.topic, c.source, c.partition % PER_TOPIC, c.from_offset, c.until_offset, c.who, c.reason, c.at
    )
    query = query.join(topics, topic_rows.is_of(losses))
    mine = query.where(c.pipeline == pipeline, c.txid == txid).order_by(c.source, c.partition, c.from_offset)
    return tuple(Loss(*row) for row in conn.execute(mine))


def _slices(conn: Connection, line: Line, txid: int, planned: tuple[Range, ...]) -> tuple[Slice, ...]:
    c = slices.c
    mine = select(slices).where(c.pipeline == line.pipeline, c.txid == txid)
    rows = SliceRow.all(conn.execute(mine.order_by(c.epoch.desc(), c.slice).limit(NEWEST)))
    # A plan is of one source.
    source = planned[0].source if planned else 0
    names = line.topics
    return tuple(
        Slice(
            row.epoch,
            row.slice,
            tuple(Range(names.name(p), source, of_kafka(p), *ends) for p, *ends in row.ranges),
            row.try_number,
            row.tried_at,
            row.voted_at,
            row.records,
            row.dead_letters,
            tuple(
                SinkVote(sink, of["rows"], str(of["checksum"]), len(of["writers"]))
                for sink, of in sorted((row.sinks or {}).items())
            ),
            row.seconds or {},
            tuple(column for column, _, _ in row.absent or ()),
            row.cut or 0,
            row.application_id,
        )
        for row in rows
    )


def _newest_events(conn: Connection, pipeline: str, txid: int) -> tuple[Event, ...]:
    c = events.c
    mine = select(events).where(c.pipeline == pipeline, c.txid == txid)
    # By its place in the transaction, which an index has, and not by its id among all events of the pipeline.
    newest = Event.all(conn.execute(mine.order_by(c.revision.desc(), c.seq.desc()).limit(NEWEST)))
    return tuple(sorted(newest, key=lambda event: event.id))


def _verdicts(epoch: int, said: Mapping[str, Mapping[str, object]] | None) -> Iterable[Verdict]:
    for gate, numbers in (said or {}).items():
        why = numbers.get("why")
        rest = {name: number for name, number in numbers.items() if name not in ("yes", "why")}
        yield Verdict(epoch, gate, bool(numbers.get("yes")), str(why) if why else None, rest)


def _refusals(said: Iterable[Event]) -> Iterable[Verdict]:
    """What gates said of epochs that were aborted for it; of the others their verdict is stored."""
    for event in said:
        if event.move == State.ABORTED and "gates" in event.detail:
            yield from _verdicts(event.epoch, event.detail["gates"])


def _claims(said: Iterable[Event]) -> Iterable[Claim]:
    """The claims that a history tells of."""
    found: list[Claim] = []
    for event in said:
        if event.move == "claim" or (event.move == State.OPEN and event.detail.get("from") is None):
            number = event.detail.get("claim", 1)
            found.append(Claim(number, event.revision, event.epoch, event.who, event.at, None, None))
        elif event.move in ("end", "halt") and found and found[-1].ended_at is None:
            last = found.pop()
            ended = (event.at, str(event.detail.get("why")))
            found.append(Claim(last.number, last.revision, last.epoch, last.run, last.at, *ended))
    return found
