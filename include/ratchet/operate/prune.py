"""`ratchet prune`: take the rows of old transactions out of the ledger; what they have done in the sinks stays.

Of them stay the runs, by which a task or a clear that comes late finds that its transaction is done with, what a person
has accepted as lost, the sources, and a row that says what is gone and what the rest is held against.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    delete,
    func,
    insert,
    literal_column,
    not_,
    select,
    text,
    tuple_,
    update,
)

from ratchet.errors import IllegalMove
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, Prune
from ratchet.ledger.schema import (
    destinations,
    events,
    pipelines,
    prunes,
    ranges,
    replays,
    slices,
    stages,
    steps,
    transactions,
    writers,
)
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_unfinished, lock_pipeline, lock_rows
from ratchet.ledger.work import counted
from ratchet.operate.roles import check_owner
from ratchet.protocol.compact import old_until
from ratchet.sinks import retention
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.pipeline import Pipeline

KEPT = 1_000
"""So many of the newest transactions stay, however old: a gate compares with as many of them at most."""
BATCH = 1_000
"""The rows of so many transactions go in one database transaction."""
FIRST_SEEN = ranges.c.txid == literal_column("0")


@dataclass(frozen=True)
class Pruned:
    """What is pruned or, when `dry_run`, would be: transactions from `first` to `last`, and the rows of each table."""

    pipeline: str
    first: int
    last: int
    rows: dict[str, int]
    dry_run: bool = False


def lines_of(done: Pruned) -> list[str]:
    """What a person reads of it."""
    rows = ", ".join(counted(count, table.removesuffix("s")) for table, count in done.rows.items())
    said = f"{done.pipeline}: transactions {done.first} to {done.last} are pruned from the ledger: {rows}"
    return [said, "this was a dry run: nothing was changed"] if done.dry_run else [said]


def prune(
    ledger: Ledger,
    spec: Pipeline,
    reason: str,
    who: str,
    say: Callable[[str], None] = lambda _: None,
    *,
    dry_run: bool = False,
) -> Pruned:
    """Prune the transactions that nothing can revise any more, but for the newest.

    1. Under the commit lock, decide up to which txid, and record that with the hash of the last commit before those
       that stay. From here on nobody looks at those rows but a prune.
    2. Without that lock, take them away, the oldest first, some transactions in one database transaction: where their
       ranges end, their partitions start from then on. Broken off, the next prune goes on.

    Raises IllegalMove where nothing is old enough, SettingsError where the caller does not own the ledger.
    """
    with ledger.begin(dry_run=dry_run) as conn:
        # Step 1
        check_owner(conn, "prunes a line, whose history nobody else can remove")
        going = _decide(conn, spec, reason, who)
    if dry_run:
        # Without the commit lock, which the decision had.
        with ledger.snapshot() as conn:
            counts = {table.name: _count(conn, table, going) for table in (events, ranges, slices, transactions)}
        return Pruned(spec.name, going.first_txid, going.last_txid, counts, dry_run=True)
    with ledger.begin() as conn:
        # Else PostgreSQL might look for each range's successor among all of its partition.
        conn.execute(text("analyze ratchet.ranges"))
    # Step 2
    while going.finished_at is None:
        with ledger.begin() as conn:
            going = _take_away(conn, going.id)
        say(f"{spec.name}: pruned up to transaction {going.reached:,} of {going.last_txid:,}")
    return Pruned(spec.name, going.first_txid, going.last_txid, dict(going.rows))


def newest(conn: Connection, pipeline: str) -> Prune | None:
    """The latest prune of a pipeline, which may be unfinished."""
    mine = select(prunes).where(prunes.c.pipeline == pipeline).order_by(prunes.c.id.desc()).limit(1)
    return Prune.one_or_none(conn.execute(mine))


def _decide(conn: Connection, spec: Pipeline, reason: str, who: str) -> Prune:
    # A revision that is about to exchange rows comes first, or finds that its transaction is too old.
    lock_rows(conn, spec.name)
    line = lock_pipeline(conn, spec.name)
    if line is None:
        raise IllegalMove(f"the ledger has nothing of pipeline {spec.name} yet")
    before = newest(conn, spec.name)
    if before is not None and before.finished_at is None:
        return before
    merges = any(sink.is_compacted for sink in sinks_of(spec))
    until = _until(conn, spec, line, merges=merges)
    if until <= line.pruned:
        raise IllegalMove(
            f"{spec.name}: no transaction after {line.pruned} can be pruned: they are not older than keep_deltas, not "
            f"compacted yet, among the newest {KEPT:,}, an Append still keeps their rows for a time, or something of "
            "them is unfinished; nothing was changed"
        )
    values = {"pruned": until}
    if not merges:
        # There are no deltas to be merged; what can be revised is decided here.
        values |= {"compacted": max(line.compacted, until), "merged": max(line.merged, until)}
    conn.execute(update(pipelines).where(pipelines.c.pipeline == spec.name).values(values))
    border = history.first_commit(conn, spec.name, until + 1)
    assert border is not None, "the newest committed transaction stays"
    found = conn.execute(
        insert(prunes)
        .values(
            pipeline=spec.name,
            first_txid=line.pruned + 1,
            last_txid=until,
            last_commit=border.detail["previous_commit"],
            border=border.id,
            committed_before=border.at,
            reached=line.pruned,
            rows={},
            who=who,
            reason=reason,
        )
        .returning(prunes)
    )
    return Prune.one(found)


def _until(conn: Connection, spec: Pipeline, line: Line, *, merges: bool) -> int:
    """The last txid of those that can be pruned."""
    c = transactions.c
    mine = c.pipeline == spec.name
    until = min(line.merged if merges else old_until(conn, line, line.compacted, spec.keep_deltas), line.head - KEPT)
    committed = select(c.txid).where(mine, c.revision == 0, c.state == State.COMMITTED).order_by(c.txid.desc()).limit(1)
    # The first commit that stays names the last that does not.
    until = min(until, (conn.execute(committed).scalar_one_or_none() or 0) - 1)
    # Somebody may still do something with a revision, or remove what it has written.
    left = (
        select(func.min(c.txid)).where(mine, is_unfinished(), c.halted_at.is_(None)),
        select(func.min(writers.c.txid)).where(writers.c.pipeline == spec.name),
        select(func.min(stages.c.txid)).where(stages.c.pipeline == spec.name),
        # A run that comes to it gives it up, and notes that in the transaction's history.
        select(func.min(replays.c.txid)).where(replays.c.pipeline == spec.name),
    )
    found = [conn.execute(query).scalar_one() for query in left]
    # Rows expire by the time of their commit, which nothing would say any more.
    alive = [sink.table for sink in sinks_of(spec) if sink.expires_after is not None]
    expired = [retention.until(conn, spec.name, [table]) for table in alive]
    return min([until, *(txid - 1 for txid in found if txid is not None), *expired])


def _take_away(conn: Connection, number: int) -> Prune:
    """Take the rows of the next transactions away; the last time, what is left of commits before the border."""
    of = Prune.one_or_none(conn.execute(select(prunes).where(prunes.c.id == number).with_for_update()))
    if of is None:
        raise IllegalMove("the line was dropped meanwhile, and its prune with it")
    if of.finished_at is not None:
        return of
    until = min(of.reached + BATCH, of.last_txid)
    rows = Counter(of.rows)

    def take(table: Table, *where: ColumnElement[bool]) -> None:
        rows[table.name] += conn.execute(delete(table).where(*where)).rowcount

    for table in (transactions, slices):
        take(table, *_between(table, of, of.reached, until))
    # That at which a destination is tells its mark, and those behind it are still to be sent.
    places = select(func.min(destinations.c.step)).where(destinations.c.pipeline == of.pipeline).scalar_subquery()
    conn.execute(delete(steps).where(*_between(steps, of, of.reached, until), steps.c.step < places))
    rows[ranges.name] += _move_starts(conn, of, until)
    take(ranges, *_between(ranges, of, of.reached, until))
    # Revisions are committed among later transactions, and their commits are part of the chain.
    chained = and_(history.IS_COMMIT, events.c.id > of.border)
    take(events, *_between(events, of, of.reached, until), not_(chained))
    is_last = until == of.last_txid
    if is_last:
        take(events, events.c.pipeline == of.pipeline, history.IS_COMMIT, events.c.id < of.border)
    finished = func.clock_timestamp() if is_last else None
    change = update(prunes).where(prunes.c.id == number).values(reached=until, rows=dict(rows), finished_at=finished)
    return Prune.one(conn.execute(change.returning(prunes)))


def _move_starts(conn: Connection, of: Prune, until: int) -> int:
    """Let each partition start where its last range up to `until` ends, so that those after it still follow one; how
    many starts went.
    """
    c = ranges.c
    span = _between(ranges, of, of.reached, until)
    last = select(c.source, c.partition, func.max(c.until_offset)).where(*span).group_by(c.source, c.partition)
    ends = [tuple(row) for row in conn.execute(last)]
    if not ends:
        return 0
    conn.execute(text("set constraints ratchet.ranges_tile deferred"))
    places = [(source, partition) for source, partition, _ in ends]
    mine = c.pipeline == of.pipeline
    gone = conn.execute(delete(ranges).where(mine, FIRST_SEEN, tuple_(c.source, c.partition).in_(places))).rowcount
    moved = update(ranges).where(*span, tuple_(c.source, c.partition, c.until_offset).in_(ends))
    conn.execute(moved.values(txid=0, from_offset=None))
    return gone


def _between(table: Table, of: Prune, after: int, until: int) -> tuple[ColumnElement[bool], ...]:
    return table.c.pipeline == of.pipeline, table.c.txid > after, table.c.txid <= until


def _count(conn: Connection, table: Table, of: Prune) -> int:
    where = _between(table, of, of.reached, of.last_txid)
    return conn.execute(select(func.count()).select_from(table).where(*where)).scalar_one()
