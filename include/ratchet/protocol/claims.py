"""Claims: which run may work on a transaction, for how long, and when it has been abandoned."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Connection, exists, func, insert, select, update

from ratchet.errors import Fenced, Refused
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import LedgerRow, runs, slices, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_row, move, notify, read_transaction
from ratchet.ledger.work import Claim, Run, name_of
from ratchet.protocol import plan
from ratchet.protocol.failures import DEADLINE, met_outages_alone
from ratchet.protocol.votes import promote_if_complete
from ratchet.spec.pipeline import Pipeline

UNFINISHED = (State.OPEN, State.PREPARED, State.ABORTED)

_NEWER = transactions.alias("newer")

IsActive = Callable[[str, str], bool]
"""(dag_id, run_id) → whether Airflow still has the run queued or running."""


def claim_of(ledger: Ledger, run: Run) -> Claim:
    """The claim that this run's begin took at this clear number; a late task finds its own, not today's."""
    with ledger.begin() as conn:
        row = bound(conn, run)
    if row is None:
        raise Fenced(f"run {run}: its begin has taken no transaction; clear the whole run")
    return Claim(row.pipeline, row.txid, row.epoch, row.claim, row.revision)


def bound(conn: Connection, run: Run) -> LedgerRow | None:
    """The row that binds this run, at this clear number, to its transaction."""
    return conn.execute(
        select(runs).where(
            runs.c.dag_id == run.dag_id, runs.c.run_id == run.run_id, runs.c.clear_number == run.clear_number
        )
    ).one_or_none()


def bound_before(conn: Connection, run: Run) -> LedgerRow | None:
    """The row of this run's latest earlier clear number, if it ever began."""
    return conn.execute(
        select(runs)
        .where(runs.c.dag_id == run.dag_id, runs.c.run_id == run.run_id, runs.c.clear_number < run.clear_number)
        .order_by(runs.c.clear_number.desc())
        .limit(1)
    ).one_or_none()


def is_newest() -> ColumnElement[bool]:
    """The condition that no newer revision of the transaction has been begun."""
    return ~exists().where(
        _NEWER.c.pipeline == transactions.c.pipeline,
        _NEWER.c.txid == transactions.c.txid,
        _NEWER.c.revision > transactions.c.revision,
    )


def unclaimed(conn: Connection, spec: Pipeline) -> list[LedgerRow]:
    """What is unfinished and not given up, whose claim has ended or whose lease has run out.

    A lease that reaches further than one given now was given while the database's clock was ahead, and counts as run
    out: it would hold for as long as the clock was wrong.

    The newest revision of each transaction counts. Live transactions first, the lowest first, then revisions. Each row
    has `claim_ended`: where it is false, only Airflow can tell whether the run still lives.
    """
    now = func.clock_timestamp()
    holds = transactions.c.lease_until.between(now, now + timedelta(seconds=spec.lease_seconds))
    return list(
        conn.execute(
            select(transactions)
            .where(
                transactions.c.pipeline == spec.name,
                transactions.c.state.in_(UNFINISHED),
                transactions.c.halted_at.is_(None),
                transactions.c.claim_ended | ~holds,
                is_newest(),
            )
            .order_by(transactions.c.revision > 0, transactions.c.txid)
        )
    )


def abandoned(rows: list[LedgerRow], is_active: IsActive, halt: LedgerRow | None) -> list[LedgerRow]:
    """Those of `unclaimed` that nobody works on and that a run may adopt: what waits behind a halt goes on waiting.

    A lease that ran out alone is no reason to adopt.
    """
    within = [row for row in rows if halt is None or row.revision or row.txid < halt.txid]
    return [row for row in within if row.claim_ended or not is_active(row.dag_id, row.run_id)]


def halt(conn: Connection, pipeline: str) -> LedgerRow | None:
    """The lowest transaction at which the line is halted; None if it is not."""
    return conn.execute(
        select(transactions)
        .where(
            transactions.c.pipeline == pipeline,
            transactions.c.revision == 0,
            transactions.c.state.in_(UNFINISHED),
            transactions.c.halted_at.is_not(None),
        )
        .order_by(transactions.c.txid)
        .limit(1)
    ).one_or_none()


def why_halted(row: LedgerRow) -> str:
    """Which transaction, since when, why, and the ways out, in a line."""
    since = f"{row.halted_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"{row.pipeline} is halted at transaction {row.txid} since {since}, after {row.failures} failures: "
        f"{row.reason}; correct the cause and clear run {row.run_id}, or `ratchet retry {row.pipeline} {row.txid}`, "
        f"or give its records up with `ratchet void {row.pipeline} {row.txid} --reason …`"
    )


def why_stopped(row: LedgerRow) -> str:
    """Why a transaction is halted, or a revision given up, in a line."""
    if row.revision:
        return f"{name_of(row.txid, row.revision)} is given up: {row.reason}; the old result stays"
    return why_halted(row)


def bind(conn: Connection, run: Run, claim: Claim) -> None:
    """Remember for ever which transaction this run works on."""
    conn.execute(
        insert(runs).values(
            dag_id=run.dag_id,
            run_id=run.run_id,
            clear_number=run.clear_number,
            pipeline=claim.pipeline,
            txid=claim.txid,
            revision=claim.revision,
            epoch=claim.epoch,
            claim=claim.number,
        )
    )


def open_transaction(
    conn: Connection,
    spec: Pipeline,
    run: Run,
    txid: int,
    *,
    revision: int = 0,
    epoch: int = 1,
    txn_time: datetime | None = None,
) -> tuple[LedgerRow, Claim]:
    """A new row of the ledger, OPEN and claimed by `run`; its plan and its cut are the caller's to store.

    `txn_time` is now, where it is not given. The caller holds the pipeline's lock.
    """
    now = func.clock_timestamp()
    row = conn.execute(
        insert(transactions)
        .values(
            pipeline=spec.name,
            txid=txid,
            revision=revision,
            epoch=epoch,
            state=State.OPEN,
            claim=1,
            dag_id=run.dag_id,
            run_id=run.run_id,
            clear_number=run.clear_number,
            lease_until=now + timedelta(seconds=spec.lease_seconds),
            deadline=deadline(spec),
            code_hash=spec.code_hash,
            txn_time=txn_time or func.date_trunc("milliseconds", now),
        )
        .returning(transactions)
    ).one()
    claim = Claim(spec.name, txid, epoch, 1, revision)
    bind(conn, run, claim)
    return row, claim


def take(conn: Connection, spec: Pipeline, row: LedgerRow, run: Run, *, afresh: bool = False) -> Claim:
    """Claim what is unfinished for `run`, whatever its state; the caller holds the pipeline's lock.

    ABORTED, or OPEN with other code than today's, begins a new epoch with the same ranges and the same cut.
    OPEN keeps the votes that stand, and is promoted if they are complete. PREPARED stays as it is. `afresh` forgets
    earlier failures and lifts a halt: a person wants it so.
    """
    row = read_transaction(conn, row.pipeline, row.txid, row.revision, lock=True)
    code = spec.code_hash
    if row.state == State.OPEN and row.code_hash != code:
        why = f"the code is {code}, the epoch began with {row.code_hash}"
        row = move(conn, row, State.ABORTED, who=str(run), why=why, reason=why)
    if row.state == State.ABORTED:
        why = f"tried again after: {row.reason}"
        epoch = {"epoch": row.epoch + 1, "code_hash": code, "deadline": deadline(spec)}
        before = dict.fromkeys(("prepared_at", "records", "verdict", "reason"))
        row = move(conn, row, State.OPEN, who=str(run), why=why, **epoch, **before)
        copy_cut(conn, row, row.epoch - 1)
    forgotten = {"failures": 0, "halted_at": None} if afresh else {}
    row = conn.execute(
        update(transactions)
        .where(is_row(row), transactions.c.claim == row.claim, transactions.c.epoch == row.epoch)
        .values(
            claim=row.claim + 1,
            claim_ended=False,
            lease_until=func.clock_timestamp() + timedelta(seconds=spec.lease_seconds),
            dag_id=run.dag_id,
            run_id=run.run_id,
            clear_number=run.clear_number,
            reason=None,
            **forgotten,
        )
        .returning(transactions)
    ).one()
    claim = Claim(row.pipeline, row.txid, row.epoch, row.claim, row.revision)
    bind(conn, run, claim)
    history.record(conn, row, who=str(run), move="claim", detail={"claim": claim.number, "state": row.state})
    if row.state == State.OPEN:
        promote_if_complete(conn, row)
    return claim


def deadline(spec: Pipeline):
    """When an epoch that begins now is aborted if it is still OPEN; null where the spec has no timeout."""
    if spec.timeout_seconds is None:
        return None
    return func.clock_timestamp() + timedelta(seconds=spec.timeout_seconds)


def end(conn: Connection, spec: Pipeline, row: LedgerRow, *, who: str, why: str) -> LedgerRow:
    """End the row's claim; if nothing came of it, count a failure, and halt after as many as the spec allows.

    Servers that did not answer are no failure of the transaction. A revision that failed so often is given up: the
    old result stays. The caller holds the row's lock.
    """
    unfinished = row.state in (State.OPEN, State.ABORTED)
    failed = unfinished and not met_outages_alone(conn, row)
    failures = row.failures + failed
    halts = failed and failures >= spec.max_failures
    if halts and row.revision and row.state == State.OPEN:
        # Nobody goes on with its votes, so its stages may go.
        row = move(conn, row, State.ABORTED, who=who, why=why, reason=why)
    ended = conn.execute(
        update(transactions)
        .where(is_row(row), transactions.c.claim == row.claim, transactions.c.claim_ended.is_(False))
        .values(
            claim_ended=True,
            failures=failures,
            halted_at=func.clock_timestamp() if halts else transactions.c.halted_at,
            reason=func.coalesce(transactions.c.reason, why) if unfinished else transactions.c.reason,
        )
        .returning(transactions)
    ).one()
    said = {"claim": row.claim, "state": row.state, "why": why, "failures": failures}
    history.record(conn, ended, who=who, move="halt" if halts else "end", detail=said)
    notify(conn, row.pipeline)
    return ended


def abort_overdue(conn: Connection, pipeline: str) -> list[LedgerRow]:
    """Abort every epoch that is still OPEN after its deadline; of a race with its last vote, the row's lock decides."""
    overdue = conn.execute(
        select(transactions)
        .where(
            transactions.c.pipeline == pipeline,
            transactions.c.state == State.OPEN,
            transactions.c.deadline < func.clock_timestamp(),
        )
        .order_by(transactions.c.txid)
        .with_for_update()
    )
    return [_abort_overdue(conn, row) for row in overdue.all()]


def _abort_overdue(conn: Connection, row: LedgerRow) -> LedgerRow:
    why = f"epoch {row.epoch} was not prepared by its deadline, {row.deadline.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return move(conn, row, State.ABORTED, who=DEADLINE, why=why, reason=why)


def renew(ledger: Ledger, claim: Claim, lease_seconds: int) -> None:
    """Lengthen the lease from now.

    Raises Fenced when another run holds the claim or settle has ended it, Refused when the epoch's deadline has
    passed, with the transaction aborted.
    """
    overdue = None
    with ledger.begin() as conn:
        row = read_transaction(conn, claim.pipeline, claim.txid, claim.revision, lock=True)
        if row.claim != claim.number or row.claim_ended:
            raise Fenced(f"{claim.pipeline}: claim {claim.number} of {claim} is not held any more")
        if row.state == State.OPEN and row.deadline and conn.execute(select(_passed(row.deadline))).scalar_one():
            overdue = _abort_overdue(conn, row)
        else:
            lease = func.clock_timestamp() + timedelta(seconds=lease_seconds)
            conn.execute(update(transactions).where(is_row(row)).values(lease_until=lease))
    if overdue:
        raise Refused(f"{claim.pipeline}: {claim} is aborted: {overdue.reason}")


def _passed(moment: ColumnElement[datetime] | datetime) -> ColumnElement[bool]:
    return func.clock_timestamp() > moment


def settle(ledger: Ledger, spec: Pipeline, run: Run, succeeded: bool, reason: str | None = None) -> str:
    """End this run's claim, by its number, and say in a line what that leaves; repeated, it changes nothing."""
    with ledger.begin() as conn:
        mine = bound(conn, run)
        if mine is None:
            return f"run {run} has taken no transaction"
        row = read_transaction(conn, mine.pipeline, mine.txid, mine.revision, lock=True)
        conn.execute(
            update(runs)
            .where(
                runs.c.dag_id == run.dag_id,
                runs.c.run_id == run.run_id,
                runs.c.clear_number == run.clear_number,
                runs.c.ended_at.is_(None),
            )
            .values(ended_at=func.clock_timestamp(), outcome="success" if succeeded else f"failed: {reason}")
        )
        what = name_of(row.txid, row.revision)
        if row.claim != mine.claim or row.claim_ended:
            return f"{what} is {row.state}; claim {mine.claim} had ended before"
        row = end(conn, spec, row, who=str(run), why=reason or "the run ended")
    if row.halted_at is not None:
        return why_stopped(row)
    if row.state in UNFINISHED:
        return f"{what} is left {row.state}; the next run of any kind finishes it"
    return f"{what} is {row.state}"


def copy_cut(conn: Connection, row: LedgerRow, before: int) -> None:
    """Give the row's epoch the cut of epoch `before`, less what was accepted as lost since.

    Airflow maps slices by position, so a slice of which nothing is left stays as an empty one.
    """
    mine = (slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == before)
    lost = plan.losses_of(conn, row.pipeline, row.txid)
    conn.execute(
        insert(slices),
        [
            {
                "pipeline": row.pipeline,
                "txid": row.txid,
                "epoch": row.epoch,
                "slice": part.slice,
                "ranges": plan.without(part.ranges, lost),
            }
            for part in conn.execute(select(slices.c.slice, slices.c.ranges).where(*mine).order_by(slices.c.slice))
        ],
    )
