"""Allocation: the next transaction of a line and its plan, by what Kafka has said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ratchet.errors import Halted, RecordsLost, TombstonesLost, TopicChanged
from ratchet.ledger import history
from ratchet.ledger.rows import Line
from ratchet.ledger.states import State
from ratchet.ledger.transactions import next_txid
from ratchet.ledger.work import Run, counted, utc
from ratchet.protocol import beginning, claims, due, halts, membership, sources, tombstones
from ratchet.protocol.begun import Begun, Skip, Skipped, given
from ratchet.protocol.halt import why_halted
from ratchet.protocol.pause import why_paused
from ratchet.protocol.plan import anchor, check_readable, course_of, cut, plan, store, store_cut, taken_by
from ratchet.protocol.sources import Known
from ratchet.protocol.tombstones import Look
from ratchet.source.offsets import TopicOffsets
from ratchet.spec.pipeline import Pipeline


@dataclass(frozen=True)
class Wants:
    """What a run may take: so many offsets at most, and only what is older than its data interval's end.

    A run that `asks` makes due all that there is; another one takes only what is due.
    """

    max_records: int
    interval_end: datetime | None
    asks: bool


@dataclass(frozen=True)
class AskKafka:
    """Kafka has to be asked, of a line of which so much is known."""

    known: Known
    is_for_plan: bool = True
    """Else it is asked for work that is begun already, which waits for the answer."""


@dataclass(frozen=True)
class KafkaSaid:
    """What Kafka said when so much was known; the plans of later transactions may reach beyond it."""

    offsets: TopicOffsets
    known: Known
    asked_at: datetime | None = None
    """By the ledger's clock, of a compacted topic."""
    of_all: TopicOffsets | None = None
    """Of topics that are left too, of which begun work may have records; None where it was asked for a plan alone."""


def lengthen(
    conn: Connection, spec: Pipeline, line: Line, run: Run, kafka: KafkaSaid | None, wants: Wants
) -> Begun | Skipped | Halted | TombstonesLost | AskKafka:
    """The next transaction of the line, if it may be lengthened now."""
    halt = halts.halt(conn, spec.name)
    if halt:
        # Not raised here: the failure that was counted must be stored.
        return Halted(why_halted(halt))
    if not line.has_room(spec.max_in_flight):
        if wants.asks:
            if kafka is None or not sources.known(conn, line).has_logs_of(kafka.known):
                return ask(conn, line)
            due.ask(conn, line, kafka.offsets)
        return _full(spec, line)
    if spec.plan == "interval" and wants.interval_end is None:
        why = f"{spec.name}: nothing is abandoned, and a run without a data interval plans nothing"
        return Skipped(Skip.NO_INTERVAL, why)
    return _allocate(conn, spec, run, line, kafka, wants) if kafka else ask(conn, line)


def _full(spec: Pipeline, line: Line) -> Skipped:
    """Why the line may not be lengthened now."""
    if line.pause and line.is_paused_before(line.last_txid + 1):
        return Skipped(Skip.PAUSED, why_paused(spec.name, line.pause))
    return Skipped(
        Skip.MAX_IN_FLIGHT,
        f"{spec.name}: {counted(line.in_flight, 'transaction is', 'transactions are')} unfinished, {line.turn} to "
        f"{line.last_txid}; max_in_flight is {spec.max_in_flight}; their runs will take the rest",
    )


def ask(conn: Connection, line: Line) -> AskKafka:
    """Kafka has to be asked about what is known of the line now."""
    return AskKafka(sources.known(conn, line))


def _allocate(
    conn: Connection, spec: Pipeline, run: Run, line: Line, kafka: KafkaSaid, wants: Wants
) -> Begun | Skipped | TombstonesLost | AskKafka:
    """The next txid and its plan, in this one database transaction; the caller holds the pipeline's lock."""
    offsets = kafka.offsets
    now = sources.known(conn, line)
    if not now.has_logs_of(kafka.known) or (offsets.wanted is not None and now != kafka.known):
        # Another run has found new leaders, or a person has accepted another log: the answer is not to what is known.
        # Or another run has planned, and where the interval ends was looked for from where plans ended before.
        return ask(conn, line)
    if sources.waiting(conn, line) is not None:
        # Those that have come join the source that waits, once it begins.
        offsets = offsets.of(range(len(line.topics)))
    line = membership.join(conn, spec, line, offsets)
    anchor(conn, line, offsets)
    sources.check_partitions(conn, spec, line, offsets)
    course = course_of(conn, line)
    if course.is_at_end:
        return ask(conn, sources.begin_next(conn, line))
    try:
        check_readable(spec.name, course, offsets)
    except (RecordsLost, TopicChanged):
        if now != kafka.known:
            # Another run has planned since, by a newer answer: what this one does not know of is not lost.
            return ask(conn, line)
        raise
    looks: list[Look] = []
    if spec.source.compacted:
        heard = tombstones.hear(conn, line, tombstones.look(kafka.asked_at, offsets), course)
        if isinstance(heard, TombstonesLost):
            # Not raised here: what Kafka has said must be stored.
            return heard
        looks = heard
    sources.remember(conn, line, kafka.known, offsets.lineages)
    if wants.asks:
        due.ask(conn, line, offsets)
    wanted = offsets.wanted if wants.asks or offsets.wanted else due.limit(spec, line, offsets)
    planned = plan(course.previous, offsets, wants.max_records, course.limit(offsets, wanted))
    if not planned:
        begun = beginning.of_first(conn, line)
        why = "; ".join((_why_nothing(conn, line, offsets, wants), *([str(begun)] if begun else [])))
        if due.is_asked_for(spec) and plan(course.previous, offsets, 1, course.limit(offsets, None)):
            why = "all that a schedule or a person has asked for is taken; what has come since waits for the next time"
        return Skipped(Skip.NO_RECORDS, f"{spec.name}: {why}")
    term = tombstones.term(looks, {r.partition: r.from_offset for r in planned}) if looks else None
    row = claims.open_transaction(conn, spec, run, next_txid(conn, line), term=term)
    store(conn, spec.name, row.txid, line.source, planned)
    store_cut(conn, spec.name, row.txid, cut(planned, spec.slice_records))
    begun = beginning.of_first(conn, line)
    joined = membership.joined(conn, line, row.txid)
    news = [str(each) for each in (begun, beginning.tell_change(conn, spec, line)) if each]
    news += [membership.told(each) for each in joined]
    said = {"from": None, "ranges": [str(r) for r in planned], "why": "; ".join(("allocated", *news))}
    detail = {**said, "begins": begun.stored} if begun else said
    detail |= {"joins": [each.stored for each in joined]} if joined else {}
    detail |= {"to be read before": term.until.isoformat()} if term else {}
    history.record(conn, row, who=str(run), move=str(State.OPEN), detail=detail)
    odd = filter(None, (offsets.held_back(only_hanging=True), offsets.stamped_ahead()))
    return given(conn, spec, row.token, "allocated", "; ".join(("allocated", *odd, *news)))


def _why_nothing(conn: Connection, line: Line, offsets: TopicOffsets, wants: Wants) -> str:
    """Why there is nothing to plan."""
    held = offsets.held_back()
    behind = f"; {held}" if held else ""
    if wants.interval_end is None or offsets.wanted is None:
        return f"no records wait in {offsets.title} below its last stable offset{behind}"
    by = taken_by(conn, line, offsets.wanted)
    before = f"no records from before {utc(wants.interval_end)} wait in {offsets.title}"
    return (f"{before}: transaction {by} took the last of them" if by else before) + behind
