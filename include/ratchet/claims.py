"""Claims: which run may work on a transaction, for how long, and when it has been abandoned."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection, Row, func, insert, select, update

from ratchet import history
from ratchet.errors import Fenced
from ratchet.ledger import Ledger, move, notify, read_transaction
from ratchet.pipeline import Pipeline
from ratchet.schema import runs, slices, transactions
from ratchet.transaction import Claim, Run, State
from ratchet.votes import promote_if_complete

UNFINISHED = (State.OPEN, State.PREPARED, State.ABORTED)

IsActive = Callable[[str, str], bool]
"""(dag_id, run_id) → whether Airflow still has the run queued or running."""


def claim_of(ledger: Ledger, run: Run) -> Claim:
    """The claim that this run's begin took at this clear number; a late task finds its own, not today's."""
    with ledger.begin() as conn:
        row = bound(conn, run)
    if row is None:
        raise Fenced(f"run {run}: its begin has taken no transaction; clear the whole run")
    return _claim(row)


def bound(conn: Connection, run: Run) -> Row | None:
    """The row that binds this run, at this clear number, to its transaction."""
    return conn.execute(
        select(runs).where(
            runs.c.dag_id == run.dag_id, runs.c.run_id == run.run_id, runs.c.clear_number == run.clear_number
        )
    ).one_or_none()


def bound_before(conn: Connection, run: Run) -> Row | None:
    """The row of this run's latest earlier clear number, if it ever began."""
    return conn.execute(
        select(runs)
        .where(runs.c.dag_id == run.dag_id, runs.c.run_id == run.run_id, runs.c.clear_number < run.clear_number)
        .order_by(runs.c.clear_number.desc())
        .limit(1)
    ).one_or_none()


def unclaimed(conn: Connection, pipeline: str) -> list[Row]:
    """The unfinished transactions, lowest first, whose claim has ended or whose lease has run out.

    Each row has `claim_ended`: where it is false, only Airflow can tell whether the run still lives.
    """
    return list(
        conn.execute(
            select(transactions)
            .where(
                transactions.c.pipeline == pipeline,
                transactions.c.revision == 0,
                transactions.c.state.in_(UNFINISHED),
                transactions.c.claim_ended | (transactions.c.lease_until < func.clock_timestamp()),
            )
            .order_by(transactions.c.txid)
        )
    )


def abandoned(rows: list[Row], is_active: IsActive) -> list[Row]:
    """Those of `unclaimed` that nobody works on: a lease that ran out alone is no reason to adopt."""
    return [row for row in rows if row.claim_ended or not is_active(row.dag_id, row.run_id)]


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


def take(conn: Connection, spec: Pipeline, row: Row, run: Run) -> Claim:
    """Claim an unfinished transaction for `run`, whatever its state; the caller holds the pipeline's lock.

    ABORTED, or OPEN with other code than today's, begins a new epoch with the same ranges and the same cut.
    OPEN keeps the votes that stand, and is promoted if they are complete. PREPARED stays as it is.
    """
    row = read_transaction(conn, row.pipeline, row.txid, lock=True)
    code = spec.code_hash
    if row.state == State.OPEN and row.code_hash != code:
        why = f"the code is {code}, the epoch began with {row.code_hash}"
        row = move(conn, row, State.ABORTED, who=str(run), why=why, reason=why)
    if row.state == State.ABORTED:
        why = f"tried again after: {row.reason}"
        row = move(conn, row, State.OPEN, who=str(run), why=why, epoch=row.epoch + 1, code_hash=code, reason=None)
        _copy_cut(conn, row)
    row = conn.execute(
        update(transactions)
        .where(
            transactions.c.pipeline == row.pipeline,
            transactions.c.txid == row.txid,
            transactions.c.revision == row.revision,
            transactions.c.claim == row.claim,
            transactions.c.epoch == row.epoch,
        )
        .values(
            claim=row.claim + 1,
            claim_ended=False,
            lease_until=func.clock_timestamp() + timedelta(seconds=spec.lease_seconds),
            dag_id=run.dag_id,
            run_id=run.run_id,
            clear_number=run.clear_number,
        )
        .returning(transactions)
    ).one()
    claim = _claim(row)
    bind(conn, run, claim)
    said = {"claim": claim.number, "state": row.state}
    history.record(conn, row.pipeline, row.txid, epoch=row.epoch, who=str(run), move="claim", detail=said)
    if row.state == State.OPEN:
        promote_if_complete(conn, row)
    return claim


def renew(ledger: Ledger, claim: Claim, lease_seconds: int) -> None:
    """Lengthen the lease from now; Fenced when another run holds the claim or settle has ended it."""
    with ledger.begin() as conn:
        renewed = conn.execute(
            update(transactions)
            .where(
                transactions.c.pipeline == claim.pipeline,
                transactions.c.txid == claim.txid,
                transactions.c.revision == claim.revision,
                transactions.c.claim == claim.number,
                transactions.c.claim_ended.is_(False),
            )
            .values(lease_until=func.clock_timestamp() + timedelta(seconds=lease_seconds))
        )
        if renewed.rowcount != 1:
            raise Fenced(f"{claim.pipeline}: claim {claim.number} of transaction {claim.txid} is not held any more")


def settle(ledger: Ledger, run: Run, succeeded: bool, reason: str | None = None) -> str:
    """End this run's claim, by its number, and say in a line what that leaves; repeated, it changes nothing."""
    with ledger.begin() as conn:
        mine = bound(conn, run)
        if mine is None:
            return f"run {run} has taken no transaction"
        row = read_transaction(conn, mine.pipeline, mine.txid, lock=True)
        first = conn.execute(
            update(runs)
            .where(
                runs.c.dag_id == run.dag_id,
                runs.c.run_id == run.run_id,
                runs.c.clear_number == run.clear_number,
                runs.c.ended_at.is_(None),
            )
            .values(ended_at=func.clock_timestamp(), outcome="success" if succeeded else f"failed: {reason}")
        ).rowcount
        held = row.claim == mine.claim and not row.claim_ended
        if held:
            conn.execute(
                update(transactions)
                .where(
                    transactions.c.pipeline == row.pipeline,
                    transactions.c.txid == row.txid,
                    transactions.c.revision == row.revision,
                    transactions.c.claim == mine.claim,
                )
                .values(claim_ended=True)
            )
        if first:
            said = {"claim": mine.claim, "state": row.state, "succeeded": succeeded, "reason": reason}
            history.record(conn, row.pipeline, row.txid, epoch=row.epoch, who=str(run), move="settle", detail=said)
            notify(conn, row.pipeline)
    if not held:
        return f"transaction {mine.txid} is {row.state}; claim {mine.claim} had ended before"
    if row.state in UNFINISHED:
        return f"transaction {mine.txid} is left {row.state}; the next run of any kind finishes it"
    return f"transaction {mine.txid} is {row.state}"


def _claim(row: Row) -> Claim:
    return Claim(row.pipeline, row.txid, row.epoch, row.claim, row.revision)


def _copy_cut(conn: Connection, row: Row) -> None:
    """Give the new epoch the cut of the one before: Airflow maps slices by position."""
    columns = (slices.c.pipeline, slices.c.txid, slices.c.slice, slices.c.ranges)
    before = select(*columns, (slices.c.epoch + 1).label("epoch")).where(
        slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch - 1
    )
    conn.execute(insert(slices).from_select([c.name for c in columns] + ["epoch"], before))
