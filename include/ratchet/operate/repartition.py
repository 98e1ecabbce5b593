"""The decision of a person from where on keys are in other partitions, by which their later records are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, func, or_, select, update

from ratchet.errors import IllegalMove
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, SliceRow, Transaction
from ratchet.ledger.schema import slices, sources, transactions
from ratchet.ledger.states import State
from ratchet.ledger.topics import Topics
from ratchet.ledger.transactions import is_row, move, read_transaction
from ratchet.ledger.work import OffsetRange, counted, utc
from ratchet.operate.decisions import Decided, finish, lock, take_out
from ratchet.operate.outcome import Change, Move, Opened, Outcome, Start, left_of, opened_lines
from ratchet.protocol import due, halts, membership, plan
from ratchet.protocol.begin import KafkaOffsets
from ratchet.protocol.plan import Course
from ratchet.protocol.sources import Cause, announce, ends, known, needs_partitions, newest, remember, source_of
from ratchet.source.offsets import TopicOffsets
from ratchet.spec.pipeline import Pipeline


def repartitioned(
    ledger: Ledger,
    spec: Pipeline,
    kafka_offsets: KafkaOffsets,
    reason: str,
    who: str,
    at: datetime | None = None,
    *,
    dry_run: bool = False,
) -> Outcome:
    """Decide from which offsets on keys are in other partitions: there the next source starts.

    Without `at` that is where the partitions of before end now, and where the new ones begin. With it, in each
    partition, the first record of that time or later. The next source waits until all before these offsets is planned,
    so no transaction has records of both, and every record before them is committed first. What unfinished
    transactions have planned beyond is left to the next source: they are aborted and begun anew without it.

    Raises IllegalMove where no sink needs to know, where no partition is new and no time is given, where it is not yet
    certain which records are of before, and where a run has planned meanwhile; RecordsLost and TopicChanged where a
    loss has to be accepted first.
    """
    if not needs_partitions(spec):
        raise IllegalMove(f"{spec.name}: no sink needs to know: none is an Upsert without an order column")
    if spec.source.compacted:
        raise IllegalMove(
            f"{spec.name}: topic {spec.source.title} is compacted, and compaction in one partition knows nothing of a "
            "key's records in another one: nothing would tell lost deletions; write the keys to a new topic, and read "
            "that by a new pipeline"
        )
    with ledger.begin() as conn:
        line = lock(conn, spec)
        seen = known(conn, line)
        since = plan.since(conn, spec, at) if at else None
        if since is not None and since.at > since.latest - spec.max_future:
            raise IllegalMove(f"{spec.name}: {utc(at)} has not come yet; say since when keys are in other partitions")
        if since is not None:
            # What is committed stays where it is, so it need not be looked at.
            since = replace(since, starts=_taken(conn, line, _chain(conn, line)))
    offsets = kafka_offsets(since, seen.logs)

    def decide(conn: Connection) -> Decided:
        line = lock(conn, spec)
        membership.check(spec, line.topics, offsets.topics)
        if known(conn, line) != seen:
            raise IllegalMove(f"{spec.name}: a run has planned meanwhile; nothing was decided; look again")
        course = plan.course_of(conn, line)
        plan.check_readable(spec.name, course, offsets)
        # Where the next source begins is an offset of the logs as they are now.
        remember(conn, line, seen, offsets.lineages)
        first = _chain(conn, line)
        taken = _taken(conn, line, first)
        starts = {p: max(start, taken.get(p, 0)) for p, start in _starts(conn, line, course, offsets, at).items()}
        number = announce(conn, line, offsets, starts, Cause.REPARTITIONED)
        changes = _leave(conn, spec, line, first, starts, reason, who)
        # The run that met the new partitions could not ask.
        due.ask(conn, line, offsets)
        at_ = [(offsets.topics.place(p), start, course.previous.get(p, 0)) for p, start in sorted(starts.items())]
        places = tuple(Start(*place, start, planned) for place, start, planned in at_)
        opened = Opened(number, offsets.topics.of, (), Cause.REPARTITIONED, places)
        if line.last_txid:
            newest_ = read_transaction(conn, line.pipeline, line.last_txid, lock=True)
            said = {"why": reason, "source": number, "opened": opened_lines(line.pipeline, opened)}
            history.record(conn, newest_, who=who, move=str(Move.REPARTITIONED), detail=said)
        return Outcome(Move.REPARTITIONED, spec.name, tuple(changes), line.head, opened=opened, pause=line.pause), False

    return finish(ledger, spec, decide, dry_run)


def _starts(conn: Connection, line: Line, course: Course, offsets: TopicOffsets, at: datetime | None) -> dict[int, int]:
    """{partition: the first offset whose record's key may have been in another partition before}."""
    ends_now = {p: offsets.end.get(p, stable) for p, stable in offsets.stable.items()}
    if offsets.wanted is not None:
        for p, wanted in sorted(offsets.wanted.items()):
            if wanted == offsets.stable[p] < ends_now[p]:
                raise IllegalMove(
                    f"{line.pipeline}: {offsets.held_back()}: which of these records are from before {utc(at)} is "
                    "known when it is decided; nothing was decided here; try again then"
                )
        return dict(offsets.wanted)
    before = newest(conn, line)[1]
    if len(offsets.stable) <= before:
        raise IllegalMove(
            f"{line.pipeline}: {offsets.title} has {counted(len(offsets.stable), 'partition')}, "
            "and had as many before; where keys have moved all the same, say since when with --at"
        )
    old = {p: end if p < before else 0 for p, end in ends_now.items()}
    return {p: max(end, course.taken.get(p, 0)) for p, end in old.items()}


def _chain(conn: Connection, line: Line) -> int:
    """The first of the sources, up to the present one, that are of the same logs, so that their offsets compare."""
    c = sources.c
    other = select(func.max(c.source)).where(
        c.pipeline == line.pipeline, c.source <= line.source, c.cause != Cause.REPARTITIONED
    )
    return conn.execute(other).scalar_one()


def _taken(conn: Connection, line: Line, first: int) -> dict[int, int]:
    """{partition: up to where records are committed or voided} by the sources from `first` on."""
    c = sources.c
    # Where a later one starts says something once it has committed: all before that is then, or is pruned.
    those = or_(c.source == first, c.first_txid <= line.head)
    mine = (c.pipeline == line.pipeline, c.source.between(first, line.source), those)
    found: dict[int, int] = {}
    for source in conn.execute(select(c.source).where(*mine)).scalars().all():
        of = plan.newest_until(conn, line.pipeline, source, line.head)
        for partition, until in Course(of, ends(conn, line.pipeline, source)).taken.items():
            found[partition] = max(found.get(partition, 0), until)
    return found


def _leave(
    conn: Connection, spec: Pipeline, line: Line, first: int, starts: dict[int, int], reason: str, who: str
) -> list[Change]:
    """Take what lies beyond the starts out of the plans that are behind the head."""
    c = transactions.c
    found = conn.execute(
        select(transactions)
        .where(c.pipeline == spec.name, c.revision == 0, c.txid > line.head)
        .order_by(c.txid)
        .with_for_update()
    )
    changes: list[Change] = []
    for row in Transaction.all(found):
        if source_of(conn, row.pipeline, row.txid) >= first:
            changes += _leave_of(conn, spec, line, row, starts, reason, who)
    return changes


def _leave_of(
    conn: Connection, spec: Pipeline, line: Line, row: Transaction, starts: dict[int, int], reason: str, who: str
) -> list[Change]:
    mine = (slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
    parts = SliceRow.all(conn.execute(select(slices).where(*mine).order_by(slices.c.slice)))
    beyond = [(part, _beyond(part, line.topics, starts)) for part in parts]
    if not any(gone for _, gone in beyond):
        return []
    if row.state == State.VOIDED:
        raise IllegalMove(
            f"{spec.name}: {row} is voided, and its turn has not come: the next source would take its records all the "
            "same; nothing was decided; commit or void what stands before it first"
        )
    if row.state != State.ABORTED:
        row = move(conn, row, State.ABORTED, who=who, why=reason, reason=reason)
    source = source_of(conn, row.pipeline, row.txid)
    changes = [take_out(conn, row, source, part, gone, who, reason) for part, gone in beyond if gone]
    conn.execute(update(transactions).where(is_row(row)).values(**halts.LIFTED))
    left = [line for change in changes for line in left_of(spec.name, change)]
    history.record(conn, row, who=who, move=str(Move.REPARTITIONED), detail={"why": reason, "left": left})
    return changes


def _beyond(part: SliceRow, topics: Topics, starts: dict[int, int]) -> list[OffsetRange]:
    """What of a slice's ranges the next source takes."""
    return [gone for r in plan.read_ranges(topics, part.ranges) for gone in plan.outside(r, 0, starts[r.partition])]
