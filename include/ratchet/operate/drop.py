"""`ratchet drop`: take a line away, with all that the ledger and the sinks have of it, so that its names are free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, exists, func, insert, select

from ratchet.errors import IllegalMove
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import (
    dead_letter_deltas,
    drops,
    metadata,
    stages,
    targets,
    transactions,
)
from ratchet.ledger.transactions import is_unfinished, lock_pipeline, lock_rows
from ratchet.ledger.work import counted, utc
from ratchet.operate.locks import patiently
from ratchet.operate.roles import check_owner
from ratchet.sinks import owned, stage


@dataclass(frozen=True)
class Dropped:
    """What was dropped or, when `dry_run`, would be: the line, its tables and views, its stages and dead letters.

    `left` are tables of the user's own, in which rows of the line still stand.
    """

    pipeline: str
    last_txid: int
    head: int
    relations: tuple[str, ...]
    left: tuple[str, ...]
    stages: int
    dead_letters: int
    dry_run: bool = False


def lines_of(done: Dropped) -> list[str]:
    """What a person reads of it."""
    said = [f"dropped {relation}" for relation in done.relations]
    said += [
        f"left {table}, a table of your own; before its name is used again, take the rows away" for table in done.left
    ]
    said.append(
        f"dropped line {done.pipeline}: {counted(done.last_txid, 'transaction')}, the head was {done.head:,}; "
        f"{counted(done.dead_letters, 'dead letter')}, {counted(done.stages, 'stage')}"
    )
    return [*said, "this was a dry run: nothing was changed"] if done.dry_run else said


def drop(
    ledger: Ledger,
    pipeline: str,
    reason: str,
    who: str,
    say: Callable[[str], None] = lambda _: None,
    *,
    dry_run: bool = False,
) -> Dropped:
    """Take a line away in one database transaction: tables and views of its sinks, stages, dead letters, all history.

    What stays is a row in `ratchet.drops`. No spec is needed, since the ledger knows whose a table is. Of its jobs that
    still run none can write any more, whoever uses the name next. Raises IllegalMove while a run works on it, or where
    something of the user's own depends on a table; SettingsError where the caller does not own the ledger; Locked.
    """
    return patiently(ledger, lambda conn: _drop(conn, pipeline, reason, who, dry_run=dry_run), say, dry_run=dry_run)


def _drop(conn: Connection, pipeline: str, reason: str, who: str, *, dry_run: bool) -> Dropped:
    lock_rows(conn, pipeline)
    line = lock_pipeline(conn, pipeline)
    check_owner(conn, "drops a line, whose tables are its own")
    of = targets.c.pipeline == pipeline
    if line is None and not conn.execute(select(exists().where(of))).scalar_one():
        raise IllegalMove(f"the ledger has nothing of pipeline {pipeline}")
    # A job of a run that is gone may be about to commit what it has written: it comes first, or finds nothing any more.
    rows = select(transactions.c.txid).where(transactions.c.pipeline == pipeline).order_by(*transactions.primary_key)
    conn.execute(rows.with_for_update())
    _check_idle(conn, pipeline)
    staged = conn.execute(select(stages.c.relation).where(stages.c.pipeline == pipeline)).scalars().all()
    for relation in staged:
        stage.drop(conn, relation)
    gone = owned.drop(conn, pipeline)
    dead = conn.execute(delete(dead_letter_deltas).where(dead_letter_deltas.c._pipeline == pipeline)).rowcount
    done = Dropped(
        pipeline,
        line.last_txid if line else 0,
        line.head if line else 0,
        gone.dropped,
        gone.left,
        len(staged),
        dead,
        dry_run,
    )
    _record(conn, done, reason, who)
    # The history goes only with its line.
    conn.execute(select(func.set_config("ratchet.dropped", pipeline, True)))
    for table in reversed(metadata.sorted_tables):
        if "pipeline" in table.c and table is not drops:
            conn.execute(delete(table).where(table.c.pipeline == pipeline))
    return done


def _record(conn: Connection, done: Dropped, reason: str, who: str) -> None:
    commit = history.last_commit(conn, done.pipeline)
    conn.execute(
        insert(drops).values(
            pipeline=done.pipeline,
            last_txid=done.last_txid,
            head=done.head,
            last_commit=commit.hash if commit else None,
            relations=list(done.relations),
            who=who,
            reason=reason,
        )
    )


def _check_idle(conn: Connection, pipeline: str) -> None:
    """IllegalMove while a claim holds; whoever is at work would find its transaction gone, without a word why."""
    found = conn.execute(
        select(transactions)
        .where(
            transactions.c.pipeline == pipeline,
            is_unfinished(),
            transactions.c.claim_ended.is_(False),
            transactions.c.lease_until > func.clock_timestamp(),
        )
        .order_by(transactions.c.txid)
        .limit(1)
    )
    row = Transaction.one_or_none(found)
    if row is not None:
        raise IllegalMove(
            f"{pipeline}: run {row.run_id} works on {row}, and its lease runs out at {utc(row.lease_until)}; pause the "
            "DAG and let its runs end, or mark them failed; nothing was changed"
        )
