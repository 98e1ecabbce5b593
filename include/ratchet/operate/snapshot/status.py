"""Where lines stand, and what each unfinished transaction waits for, of any number of pipelines in as many queries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection, func, select, true

from ratchet.ledger import history, steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import DestinationRow, Line, Pause, Replay, Transaction
from ratchet.ledger.schema import events, heads, pipelines, ranges, slices, targets, topics, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_newest, is_unfinished
from ratchet.operate.attention import Standing as Position
from ratchet.operate.attention import standings
from ratchet.protocol import replays
from ratchet.protocol.plan import Course
from ratchet.protocol.sources import ends_of
from ratchet.spec.pipeline import DEAD_LETTERS

SILENCE = timedelta(minutes=5)
"""The maintenance comes every minute; after so long without it, somebody should look."""
OVER = timedelta(minutes=10)
"""The time over which a rate is measured."""
NEWEST = 100
"""A rate is of so many transactions at most, so that it costs the same for every line."""


class Waits(StrEnum):
    """What an unfinished transaction waits for."""

    VOTES = "votes"
    """Slices have not voted."""
    TURN = "turn"
    """Another one is to be committed first."""
    PAUSE = "pause"
    """It is prepared, and beyond the pause."""
    COMMIT = "commit"
    """It is prepared, and its commit is next."""
    RETRY = "retry"
    """It was aborted; the next epoch begins."""
    PERSON = "person"
    """The line is halted there."""
    CLEAR = "clear"
    """A revision that was given up; the old result stays."""


@dataclass(frozen=True)
class Standing:
    """One unfinished transaction or revision: who has it, how many of its slices have voted, what it waits for.

    `before` is the transaction whose turn it is, where that has to come first. Of a release `releases` is which dead
    letters it takes: the text that their errors contain, empty for all.
    """

    pipeline: str
    txid: int
    revision: int
    state: State
    epoch: int
    dag_id: str
    run_id: str
    claim_ended: bool
    voted: int
    slices: int
    failures: int
    opened_at: datetime
    prepared_at: datetime | None
    deadline: datetime | None
    halted_at: datetime | None
    reason: str | None
    waits: Waits
    before: int | None
    releases: str | None


@dataclass(frozen=True)
class Rate:
    """What was committed lately: so many transactions and records in so many seconds, revisions not counted.

    `dead_letters` are among the records. The time ends now; it is shorter than was asked for where only the newest
    transactions are counted.
    """

    seconds: float
    transactions: int
    records: int
    dead_letters: int


@dataclass(frozen=True)
class Left:
    """What a source still has to plan of a partition, before the next one begins."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int


@dataclass(frozen=True)
class NextSource:
    """A source that begins when the present one is planned to its end."""

    source: int
    present: int
    left: tuple[Left, ...]


@dataclass(frozen=True)
class Otherwise:
    """A revision that was done with another code than the one with which it was asked for."""

    txid: int
    asked_code: str | None
    code: str


@dataclass(frozen=True)
class Reached:
    """How far a destination has come: `step` of `last`, since `reached_at`; or who has detached it, when and why.

    `waits_since` is since when it gets nothing although it lacks a step: since that was decided, or since it took the
    one before, whichever was later; None where it has all.
    """

    destination: str
    sink: str
    step: int
    last: int
    reached_at: datetime
    waits_since: datetime | None
    detached_at: datetime | None
    detached_by: str | None
    detached_why: str | None


@dataclass(frozen=True)
class Status:
    """A pipeline's line at one moment, `at`.

    `halt` is the transaction at which it is halted, `pause` where a person has stopped it. `unattended` is since when
    the maintenance was not here, None where that was some minutes ago at most, and `maintained_at` None where it was
    never here. `replays` is how many revisions are asked for and not begun, `releases` how many of these are releases,
    and `given_up` those that cannot be begun any more.
    """

    pipeline: str
    at: datetime
    topic: str | None
    head: int
    last_txid: int
    compacted: int
    committed_at: datetime | None
    rate: Rate
    halt: int | None
    maintained_at: datetime | None
    unattended: datetime | None
    next_source: NextSource | None
    replays: int
    unfinished: tuple[Standing, ...]
    given_up: tuple[Replay, ...] = ()
    otherwise: tuple[Otherwise, ...] = ()
    pause: Pause | None = None
    destinations: tuple[Reached, ...] = ()
    has_tables: bool = True
    """Whether `migrate` has ever made tables of it."""
    releases: int = 0
    topics: tuple[str, ...] = ()
    """Each by itself; `topic` has the names in one text."""
    left_topics: tuple[str, ...] = ()
    """Those of which nothing more is planned; what was committed of them stays."""

    @property
    def in_flight(self) -> int:
        """How many transactions are neither committed nor voided, or wait behind one that is not."""
        return self.last_txid - self.head

    def is_paused_before(self, row: Standing) -> bool:
        """Whether this one is beyond the pause; a revision never is."""
        return self.pause is not None and not row.revision and row.txid > self.pause.txid


def status(ledger: Ledger, pipeline: str) -> Status:
    """The line of a pipeline as one snapshot has it; a pipeline that the ledger does not know stands at 0."""
    with ledger.snapshot() as conn:
        return statuses(conn, [pipeline])[pipeline]


def names_of(line: Line) -> list[str]:
    """The names of its topics, without those that it has left."""
    return [each.name for each in line.topics if not each.left]


def known(conn: Connection) -> list[str]:
    """The pipelines that have a line, by name."""
    return list(conn.execute(select(pipelines.c.pipeline).order_by(pipelines.c.pipeline)).scalars())


def statuses(
    conn: Connection, names: Collection[str], over: timedelta = OVER, lines: dict[str, Position] | None = None
) -> dict[str, Status]:
    """The lines of pipelines, in their order; `lines` is what `standings` has said of them in this snapshot."""
    names = list(names)
    lines = standings(conn, names) if lines is None else lines
    now: datetime = conn.execute(select(func.clock_timestamp())).scalar_one()
    unfinished, rates, commits = _unfinished(conn, names), _rates(conn, names, now, over), _last_commits(conn, names)
    next_sources, waiting = _next_sources(conn, lines), replays.waiting_of(conn, names)
    given_up, otherwise = replays.given_up(conn, names), replays.done_otherwise(conn, names)
    reached, lacking = steps.destinations_of_all(conn, names), steps.lacking(conn, names)
    made = _migrated(conn, names)
    found: dict[str, Status] = {}
    for name in names:
        line = lines[name].line if name in lines else None
        last = line.step if line else 0
        places = tuple(_reached(of, last, lacking.get((name, of.destination))) for of in reached.get(name, ()))
        if line is None:
            nothing = Rate(over.total_seconds(), 0, 0, 0)
            stands = Status(name, now, None, 0, 0, 0, None, nothing, None, None, None, None, 0, (), destinations=places)
            found[name] = replace(stands, has_tables=name in made)
            continue
        rows = tuple(_standing(line, *row) for row in unfinished.get(name, ()))
        since = line.maintained_at or line.created_at
        found[name] = Status(
            name,
            now,
            ", ".join(names_of(line)),
            line.head,
            line.last_txid,
            line.compacted,
            commits.get(name),
            rates[name],
            min((row.txid for row in rows if row.waits == Waits.PERSON), default=None),
            line.maintained_at,
            since if now - since >= SILENCE else None,
            next_sources.get(name),
            sum(waiting.get(name, (0, 0))),
            rows,
            tuple(row for row in given_up if row.pipeline == name),
            tuple(Otherwise(row.txid, row.asked_code, row.code_hash) for row in otherwise if row.pipeline == name),
            line.pause,
            places,
            name in made,
            waiting.get(name, (0, 0))[1],
            tuple(names_of(line)),
            tuple(each.name for each in line.topics if each.left),
        )
    return found


def _migrated(conn: Connection, names: Sequence[str]) -> set[str]:
    """Those of which the ledger has tables, a few rows each."""
    return set(conn.execute(select(targets.c.pipeline).where(targets.c.pipeline.in_(names))).scalars())


def _reached(of: DestinationRow, last: int, decided_at: datetime | None) -> Reached:
    detached = of.detached_at, of.detached_by, of.detached_why
    waits_since = max(of.reached_at, decided_at or of.reached_at) if of.step < last else None
    return Reached(of.destination, of.sink, of.step, last, of.reached_at, waits_since, *detached)


def _unfinished(conn: Connection, names: Sequence[str]) -> dict[str, list[tuple[Transaction, int, int]]]:
    """{pipeline: [(row, slices that have voted, slices)]}, live transactions first."""
    c, part = transactions.c, slices.c
    mine = (part.pipeline == c.pipeline, part.txid == c.txid, part.epoch == c.epoch)
    votes = select(func.count(part.voted_at).label("voted"), func.count().label("slices")).where(*mine).lateral("votes")
    rows = conn.execute(
        select(transactions, votes.c.voted, votes.c.slices)
        .join(votes, true())
        .where(c.pipeline.in_(names), is_unfinished(), is_newest())
        .order_by(c.pipeline, c.revision > 0, c.txid, c.revision)
    )
    found: dict[str, list[tuple[Transaction, int, int]]] = {}
    for row in rows.mappings():
        found.setdefault(row["pipeline"], []).append((Transaction.of(row), row["voted"], row["slices"]))
    return found


def _standing(line: Line, row: Transaction, voted: int, of: int) -> Standing:
    waits, before = Waits.VOTES, None
    if row.halted_at is not None:
        waits = Waits.CLEAR if row.revision else Waits.PERSON
    elif row.state == State.ABORTED:
        waits = Waits.RETRY
    elif row.state == State.PREPARED and not row.revision and line.is_paused_before(row.txid):
        waits = Waits.PAUSE
    elif row.state == State.PREPARED and (row.revision or row.txid <= line.turn):
        waits = Waits.COMMIT
    elif row.state == State.PREPARED:
        waits, before = Waits.TURN, line.turn
    return Standing(
        row.pipeline,
        row.txid,
        row.revision,
        row.state,
        row.epoch,
        row.dag_id,
        row.run_id,
        row.claim_ended,
        voted,
        of,
        row.failures,
        row.opened_at,
        row.prepared_at,
        row.deadline,
        row.halted_at,
        row.reason,
        waits,
        before,
        row.releases,
    )


def _rates(conn: Connection, names: Sequence[str], now: datetime, over: timedelta) -> dict[str, Rate]:
    """{pipeline: its rate}, of the newest transactions below each head, which an index has at its end."""
    c = transactions.c
    given_up = sa.cast(c.applied[DEAD_LETTERS]["rows"].astext, sa.BigInteger).label("dead_letters")
    newest = (
        select(c.committed_at, c.opened_at, c.records, given_up)
        .where(c.pipeline == heads.c.pipeline, c.txid <= heads.c.txid, c.revision == 0)
        .order_by(c.txid.desc())
        .limit(NEWEST)
        .lateral("newest")
    )
    recent = newest.c.committed_at >= now - over
    query = (
        select(
            heads.c.pipeline,
            func.count().label("looked_at"),
            func.count().filter(recent).label("transactions"),
            func.coalesce(func.sum(newest.c.records).filter(recent), 0).label("records"),
            func.coalesce(func.sum(newest.c.dead_letters).filter(recent), 0).label("dead_letters"),
            func.min(func.coalesce(newest.c.committed_at, newest.c.opened_at)).label("since"),
        )
        .join(newest, true(), isouter=True)
        .where(heads.c.pipeline.in_(names))
        .group_by(heads.c.pipeline)
    )
    found: dict[str, Rate] = {}
    for row in conn.execute(query):
        # Where all of them are recent, those before are as well, and were not counted.
        seconds = (now - row.since if row.transactions == NEWEST else over).total_seconds()
        found[row.pipeline] = Rate(seconds, row.transactions, int(row.records), int(row.dead_letters))
    return found


def _last_commits(conn: Connection, names: Sequence[str]) -> dict[str, datetime]:
    """{pipeline: when something of it was committed last, revisions among it}."""
    c = events.c
    mine = select(c.at).where(c.pipeline == heads.c.pipeline, history.IS_COMMIT).order_by(c.id.desc()).limit(1)
    last = mine.lateral("last")
    query = select(heads.c.pipeline, last.c.at).join(last, true()).where(heads.c.pipeline.in_(names))
    return {pipeline: at for pipeline, at in conn.execute(query)}


def _next_sources(conn: Connection, lines: dict[str, Position]) -> dict[str, NextSource]:
    """{pipeline: the source that waits}, of those few of which a person has said that keys are elsewhere."""
    between = [name for name, of in lines.items() if of.is_between]
    if not between:
        return {}
    t, r = topics.c, ranges.c
    known: dict[str, dict[int, dict[int, str]]] = {}
    rows = select(t.pipeline, t.source, t.number, t.topic_id).where(t.pipeline.in_(between))
    for pipeline, source, number, topic_id in conn.execute(rows.order_by(t.pipeline, t.source, t.number)):
        if source >= lines[pipeline].line.source:
            known.setdefault(pipeline, {}).setdefault(source, {})[number] = topic_id
    starts: dict[tuple[str, int], dict[int, int]] = {}
    begun = select(r.pipeline, r.source, r.partition, r.until_offset).where(
        r.pipeline.in_(between), r.txid == sa.literal_column("0")
    )
    for pipeline, number, partition, at in conn.execute(begun):
        starts.setdefault((pipeline, number), {})[partition] = at
    found: dict[str, NextSource] = {}
    for name, of in known.items():
        until = ends_of([*of.items()], lambda number, name=name: starts.get((name, number), {}))
        if until is None:
            continue
        course = Course(lines[name].planned, until)
        names = lines[name].line.topics
        left = tuple(Left(*names.place(p), at, until[p]) for p, at in sorted(course.left.items()))
        present, following, *_ = of
        found[name] = NextSource(following, present, left)
    return found
