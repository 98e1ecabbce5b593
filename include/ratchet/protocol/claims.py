"""Claims: which run may work on a transaction, and when it has been abandoned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, insert, select, update

from ratchet.errors import Fenced
from ratchet.ledger import history
from ratchet.ledger.channel import notify
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Binding, Line, Transaction
from ratchet.ledger.schema import runs, transactions
from ratchet.ledger.states import UNFINISHED, State
from ratchet.ledger.transactions import is_newest, is_row, is_unfinished, move, read_transaction
from ratchet.ledger.work import Claim, Run
from ratchet.protocol.deadlines import deadline
from ratchet.protocol.failures import coded, last_code
from ratchet.protocol.halts import LIFTED, count_failure, why_stopped
from ratchet.protocol.leases import holds, lease
from ratchet.protocol.plan import copy_cut
from ratchet.protocol.prepare import prepare_if_complete
from ratchet.protocol.tombstones import Term
from ratchet.spec.pipeline import Pipeline

IsActive = Callable[[str, str], bool]
"""(dag_id, run_id) → whether Airflow still has the run queued or running."""


def claim_of(ledger: Ledger, run: Run) -> Claim:
    """The claim that this run's begin took at this clear number; a late task finds its own, not today's."""
    with ledger.begin() as conn:
        row = binding_of(conn, run)
    if row is None:
        raise Fenced(f"run {run}: its begin has taken no transaction; clear the whole run")
    return row.token


def binding_of(conn: Connection, run: Run) -> Binding | None:
    """The row that binds this run, at this clear number, to its transaction."""
    found = conn.execute(
        select(runs).where(
            runs.c.dag_id == run.dag_id, runs.c.run_id == run.run_id, runs.c.clear_number == run.clear_number
        )
    )
    return Binding.one_or_none(found)


def earlier_binding(conn: Connection, run: Run) -> Binding | None:
    """The row of this run's latest earlier clear number, if it ever began."""
    found = conn.execute(
        select(runs)
        .where(runs.c.dag_id == run.dag_id, runs.c.run_id == run.run_id, runs.c.clear_number < run.clear_number)
        .order_by(runs.c.clear_number.desc())
        .limit(1)
    )
    return Binding.one_or_none(found)


def unclaimed(conn: Connection, spec: Pipeline) -> list[Transaction]:
    """What is unfinished and not given up, whose claim has ended or whose lease has run out.

    The newest revision of each transaction counts. Live transactions first, the lowest first, then revisions. Each row
    has `claim_ended`: where it is false, only Airflow can tell whether the run still lives.
    """
    found = conn.execute(
        select(transactions)
        .where(
            transactions.c.pipeline == spec.name,
            is_unfinished(),
            transactions.c.halted_at.is_(None),
            transactions.c.claim_ended | ~holds(spec.lease_seconds),
            is_newest(),
        )
        .order_by(transactions.c.revision > 0, transactions.c.txid)
    )
    return Transaction.all(found)


def abandoned(rows: list[Transaction], is_active: IsActive, line: Line, halt: Transaction | None) -> list[Transaction]:
    """Those of `unclaimed` that nobody works on and that a run may adopt: what waits behind a halt goes on waiting.

    So does what is beyond a pause. A lease that ran out alone is no reason to adopt.
    """
    within = [
        row for row in rows if row.revision or not (line.is_paused_before(row.txid) or (halt and halt.txid <= row.txid))
    ]
    return [row for row in within if row.claim_ended or not is_active(row.dag_id, row.run_id)]


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
    asked_code: str | None = None,
    releases: str | None = None,
    term: Term | None = None,
) -> Transaction:
    """A new row of the ledger, OPEN and claimed by `run`; its plan and its cut are the caller's to store.

    `txn_time` is now, where it is not given; of a compacted topic `term` says until when it is to be read. The caller
    holds the pipeline's lock.
    """
    found = conn.execute(
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
            lease_until=lease(spec.lease_seconds),
            deadline=deadline(spec),
            code_hash=spec.code_hash,
            asked_code=asked_code,
            releases=releases,
            txn_time=txn_time or func.date_trunc("milliseconds", func.clock_timestamp()),
            tombstones_since=term and term.since,
            tombstones_kept=term and term.kept,
        )
        .returning(transactions)
    )
    row = Transaction.one(found)
    bind(conn, run, row.token)
    return row


def take(conn: Connection, spec: Pipeline, row: Transaction, run: Run, *, afresh: bool = False) -> Claim:
    """Claim what is unfinished for `run`, whatever its state; the caller holds the pipeline's lock.

    ABORTED, or begun with other code than today's, begins a new epoch with the same ranges and the same cut: what was
    prepared is never folded by another spec. OPEN keeps the votes that stand, and is promoted if they are complete.
    PREPARED stays as it is. `afresh` forgets earlier failures and lifts a halt: a person wants it so.
    """
    row = read_transaction(conn, row.pipeline, row.txid, row.revision, lock=True)
    code = spec.code_hash
    if row.state in (State.OPEN, State.PREPARED) and row.code_hash != code:
        why = f"the code is {code}, the epoch began with {row.code_hash}"
        row = move(conn, row, State.ABORTED, who=str(run), why=why, reason=why)
    if row.state == State.ABORTED:
        why = f"tried again after: {row.reason}"
        epoch = {"epoch": row.epoch + 1, "code_hash": code, "deadline": deadline(spec)}
        before = dict.fromkeys(("prepared_at", "records", "verdict", "reason"))
        row = move(conn, row, State.OPEN, who=str(run), why=why, **epoch, **before)
        copy_cut(conn, row, row.epoch - 1)
    found = conn.execute(
        update(transactions)
        .where(is_row(row), transactions.c.claim == row.claim, transactions.c.epoch == row.epoch)
        .values(
            claim=row.claim + 1,
            claim_ended=False,
            lease_until=lease(spec.lease_seconds),
            dag_id=run.dag_id,
            run_id=run.run_id,
            clear_number=run.clear_number,
            reason=None,
            **(LIFTED if afresh else {}),
        )
        .returning(transactions)
    )
    row = Transaction.one(found)
    claim = row.token
    bind(conn, run, claim)
    history.record(
        conn,
        row,
        who=str(run),
        move="claim",
        detail={"claim": claim.number, "state": row.state, **({"afresh": True} if afresh else {})},
    )
    if row.state == State.OPEN:
        prepare_if_complete(conn, spec, row)
    else:
        # Another run may wait with it.
        notify(conn, row.pipeline)
    return claim


def end(conn: Connection, spec: Pipeline, row: Transaction, *, who: str, why: str) -> Transaction:
    """End the row's claim; if nothing came of it, count a failure, and halt after as many as the spec allows.

    Where an error has a code, the reason has it. Servers that did not answer are no failure of the transaction. A
    revision that failed so often is given up: the old result stays. The caller holds the row's lock.
    """
    failures, halts = count_failure(conn, spec, row)
    keeps_why = halts or row.state in (State.OPEN, State.ABORTED)
    code = last_code(conn, row) if keeps_why or failures > row.failures else None
    why = coded(why, code)
    if halts and row.revision and row.state in (State.OPEN, State.PREPARED):
        # Nobody goes on with its votes, so its stages may go.
        row = move(conn, row, State.ABORTED, who=who, why=why, reason=why)
    reason = row.reason or (why if keeps_why else None)
    if halts and reason:
        reason = coded(reason, code)
    found = conn.execute(
        update(transactions)
        .where(is_row(row), transactions.c.claim == row.claim, transactions.c.claim_ended.is_(False))
        .values(
            claim_ended=True,
            failures=failures,
            halted_at=func.clock_timestamp() if halts else transactions.c.halted_at,
            reason=reason,
        )
        .returning(transactions)
    )
    ended = Transaction.one(found)
    said = {"claim": row.claim, "state": row.state, "why": why, "failures": failures}
    history.record(conn, ended, who=who, move="halt" if halts else "end", detail=said)
    if row.state == State.PREPARED:
        notify(conn, row.pipeline)
    return ended


@dataclass(frozen=True)
class Settled:
    """What a run leaves behind: its transaction or revision as it stands, None where the run has taken none."""

    run: Run
    row: Transaction | None
    claim: int | None = None
    """The run's own; another may have the transaction by now."""
    had_ended: bool = False
    """Nothing was left to be ended."""

    def __str__(self) -> str:
        if self.row is None:
            return f"run {self.run} has taken no transaction"
        if self.had_ended:
            return f"{self.row} is {self.row.state}; claim {self.claim} had ended before"
        if self.row.halted_at is not None:
            return why_stopped(self.row)
        if self.row.state in UNFINISHED:
            return f"{self.row} is left {self.row.state}; the next run of any kind finishes it"
        return f"{self.row} is {self.row.state}"


def settle(ledger: Ledger, spec: Pipeline, run: Run, succeeded: bool, reason: str | None = None) -> Settled:
    """End this run's claim, by its number, and tell what that leaves; repeated, it changes nothing."""
    with ledger.begin() as conn:
        mine = binding_of(conn, run)
        if mine is None:
            return Settled(run, None)
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
        if row.claim != mine.claim or row.claim_ended:
            return Settled(run, row, mine.claim, had_ended=True)
        return Settled(run, end(conn, spec, row, who=str(run), why=reason or "the run ended"), mine.claim)
