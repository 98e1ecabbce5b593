"""Where a line stands, and why each unfinished transaction waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, Transaction
from ratchet.ledger.schema import slices, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_newest, is_unfinished, read_line
from ratchet.ledger.work import utc
from ratchet.operate.replay import spans
from ratchet.protocol import halts, plan, replays, sources
from ratchet.protocol.turns import waits_for

SILENCE = timedelta(minutes=5)
"""The maintenance comes every minute; after so long without it, somebody should look."""


@dataclass(frozen=True)
class Standing:
    """One unfinished transaction or revision: who has it, how many of its slices have voted, what it waits for."""

    txid: int
    revision: int
    state: State
    epoch: int
    run_id: str
    voted: int
    slices: int
    failures: int
    deadline: datetime | None
    why: str


@dataclass(frozen=True)
class Status:
    """A pipeline's line; `halt` says why it is halted, in a line, and is None if it is not.

    `unattended` says, in a line, since when the maintenance was not here; None where it was, within some minutes.
    `next_source` says, in a line, what has to be planned before keys in other partitions are; None where none wait.
    """

    pipeline: str
    head: int
    last_txid: int
    compacted: int
    committed_at: datetime | None
    halt: str | None
    unattended: str | None
    next_source: str | None
    replays: int
    """Revisions that are asked for and not begun."""
    unfinished: tuple[Standing, ...]
    notices: tuple[str, ...] = ()
    """Of revisions that were asked for, in a line each: which were given up, and which were done with other code."""


def status(ledger: Ledger, pipeline: str) -> Status:
    """The line of a pipeline as one snapshot has it; a pipeline that the ledger does not know stands at 0."""
    with ledger.snapshot() as conn:
        line = read_line(conn, pipeline)
        if line is None:
            return Status(pipeline, 0, 0, 0, None, None, None, None, 0, ())
        c = transactions.c
        found = conn.execute(
            select(transactions)
            .where(c.pipeline == pipeline, is_unfinished(), is_newest())
            .order_by(c.revision > 0, c.txid, c.revision)
        )
        unfinished = Transaction.all(found)
        halt = halts.halt(conn, pipeline)
        commit = history.last_commit(conn, pipeline)
        return Status(
            pipeline,
            line.head,
            line.last_txid,
            line.compacted,
            commit.at if commit else None,
            halts.why_halted(halt) if halt else None,
            _unattended(conn, line),
            _next_source(conn, line),
            replays.waiting(conn, pipeline),
            tuple(_standing(conn, line, row) for row in unfinished),
            tuple(_notices(conn, pipeline)),
        )


def _notices(conn: Connection, pipeline: str) -> Iterator[str]:
    for asked in replays.given_up(conn, pipeline):
        what = f"the revision of transaction {asked.txid} that {asked.who} has asked for is given up: {asked.given_up}"
        yield f"{what}; `ratchet replay {pipeline} --from {asked.txid} --cancel --reason …` forgets it"
    of: dict[tuple[str | None, str], list[int]] = {}
    for row in replays.done_otherwise(conn, pipeline):
        of.setdefault((row.asked_code, row.code_hash), []).append(row.txid)
    for (asked_code, code), txids in of.items():
        what = f"the revision of {spans(txids)} was asked for with code {asked_code} and done with code {code}"
        yield f"{what}; where that was the older one, ask for it again"


def _unattended(conn: Connection, line: Line) -> str | None:
    since = line.maintained_at or line.created_at
    now = conn.execute(select(func.clock_timestamp())).scalar_one()
    if now - since < SILENCE:
        return None
    last = f"maintenance was here last at {utc(since)}" if line.maintained_at else "maintenance was never here"
    return f"{last}; is its DAG paused? without it lost work waits for the next run"


def _next_source(conn: Connection, line: Line) -> str | None:
    number, course = sources.waiting(conn, line), plan.course_of(conn, line)
    if number is None or course.until is None:
        return None
    left = [f"{line.topic}-{p} from {at} to {course.until[p]}" for p, at in sorted(course.left.items())]
    return f"source {number} begins when source {line.source} is planned to its end: {', '.join(left) or 'it is'}"


def _standing(conn: Connection, line: Line, row: Transaction) -> Standing:
    c = slices.c
    voted, total = conn.execute(
        select(func.count(c.voted_at), func.count()).where(
            c.pipeline == row.pipeline, c.txid == row.txid, c.epoch == row.epoch
        )
    ).one()
    return Standing(
        row.txid,
        row.revision,
        row.state,
        row.epoch,
        row.run_id,
        voted,
        total,
        row.failures,
        row.deadline,
        _why(conn, line, row, total - voted),
    )


def _why(conn: Connection, line: Line, row: Transaction, missing: int) -> str:
    """What has to happen next, and who does it."""
    if row.halted_at is not None:
        return f"given up: {row.reason}; clear the run again" if row.revision else halts.why_halted(row)
    if row.claim_ended:
        by = f"its run {row.run_id} has ended; the next run of any kind adopts it"
    else:
        by = f"run {row.run_id} works on it"
    if row.state == State.OPEN:
        return f"{missing} slices have not voted; {by}"
    if row.state == State.ABORTED:
        return f"aborted: {row.reason}; {by}"
    if row.revision:
        return f"prepared, and waits for no turn; {by}"
    return f"prepared; {waits_for(conn, line, row.txid) or 'it is its turn'}; {by}"
