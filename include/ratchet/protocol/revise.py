"""Revisions: a committed transaction's exact ranges once more, with today's code, in place of its old deltas.

A release is a revision that keeps the old deltas: its records are dead letters of the transaction, its rows are added.
"""

from __future__ import annotations

from sqlalchemy import Connection, exists, select

from ratchet.errors import NotRevisable
from ratchet.ledger import history, letters, steps
from ratchet.ledger.rows import Line, Transaction
from ratchet.ledger.schema import slices, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import move, newest_revision, read_transaction
from ratchet.ledger.work import Claim, Run, counted
from ratchet.protocol import claims, tombstones
from ratchet.protocol.applied import are_applied, newest_applied, newest_whole, voted_of
from ratchet.protocol.plan import copy_cut, cut_letters, cut_of, read_ranges
from ratchet.sinks import erasures, retention
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.pipeline import Pipeline


def revise(
    conn: Connection, spec: Pipeline, line: Line, txid: int, run: Run, *, asked_code: str | None = None
) -> Claim:
    """Begin the next revision of a transaction, for `run`; the caller holds the pipeline's lock.

    `asked_code` is that with which it was asked for, where it had to wait.

    The older rows stay as they are and visible until the revision commits; an unfinished older revision is
    superseded. Raises NotRevisable when the transaction is not behind the head, when its deltas are a base by now, when
    a destination cannot take its rows back, and when it stands for lost records.
    """
    check(conn, spec, line, txid)
    check_sent(conn, spec, txid)
    original = read_transaction(conn, spec.name, txid)
    whole = newest_whole(conn, spec.name, txid)
    assert whole is not None, "the original is no release"
    check_cut(conn, whole)
    late = tombstones.overdue(conn, spec, original) if original.state == State.VOIDED else None
    if late:
        raise NotRevisable(f"{late}; it stays voided")
    why = f"revises {original.state} transaction {txid}"
    row = _open(conn, spec, run, original, why, asked_code)
    copy_cut(conn, row, whole.epoch)
    return row.token


def release(
    conn: Connection, spec: Pipeline, line: Line, txid: int, run: Run, errors: str, *, asked_code: str | None = None
) -> Claim:
    """Begin a release of the dead letters of a transaction whose errors contain a text, as `revise` does a revision.

    Raises NotRevisable besides where nothing of the transaction was applied, where no dead letter is to be released,
    and where a sink's rows have other columns today.
    """
    applied, number = check_release(conn, spec, line, txid, errors)
    original = read_transaction(conn, spec.name, txid)
    why = f"releases {counted(number, 'dead letter')} of transaction {txid}"
    row = _open(conn, spec, run, original, why, asked_code, errors)
    cut_letters(conn, line, row, applied.epoch, errors)
    return row.token


def _open(
    conn: Connection,
    spec: Pipeline,
    run: Run,
    original: Transaction,
    why: str,
    asked_code: str | None,
    releases: str | None = None,
) -> Transaction:
    """The row of the next revision, in place of an unfinished older one."""
    txid = original.txid
    original = read_transaction(conn, spec.name, txid, lock=True)
    newest = newest_revision(conn, spec.name, txid)
    newest = read_transaction(conn, spec.name, txid, newest.revision, lock=True)
    number = newest.revision + 1
    if newest.revision and newest.state in (State.OPEN, State.PREPARED):
        superseded = f"superseded by revision {number}"
        move(conn, newest, State.ABORTED, who=str(run), why=superseded, reason=superseded)
    row = claims.open_transaction(
        conn,
        spec,
        run,
        txid,
        revision=number,
        epoch=newest.epoch + 1,
        txn_time=original.txn_time,
        asked_code=asked_code,
        releases=releases,
        # Nothing of it is committed: as the original, it has to read its records in time.
        term=tombstones.of(original) if original.state == State.VOIDED else None,
    )
    said = {"from": None, "why": why, "code": spec.code_hash}
    if releases:
        said["errors with"] = releases
    if asked_code not in (None, spec.code_hash):
        said["asked with"] = asked_code
    history.record(conn, row, who=str(run), move=str(State.OPEN), detail=said)
    return row


def check(conn: Connection, spec: Pipeline, line: Line, txid: int) -> None:
    """NotRevisable if the transaction cannot be revised as the line stands."""
    check_place(conn, spec, line, txid)
    for erased, why in erased_of(conn, spec, txid, txid).items():
        raise NotRevisable(f"{line.pipeline}: transaction {erased}: {why}")


def check_release(conn: Connection, spec: Pipeline, line: Line, txid: int, errors: str) -> tuple[Transaction, int]:
    """The revision whose ranges the sinks hold, and how many dead letters a release takes; NotRevisable if none can."""
    check(conn, spec, line, txid)
    where = f"{line.pipeline}: transaction {txid}"
    applied = newest_whole(conn, spec.name, txid, State.COMMITTED)
    if applied is None:
        raise NotRevisable(f"{where} is voided, so nothing of it was given up; `ratchet replay --voided` processes it")
    number = letters.count(conn, spec.name, txid, errors)
    if not number:
        of_which = f" whose errors contain {errors!r}" if errors else ""
        raise NotRevisable(f"{where} has no dead letters{of_which}; there is nothing to release")
    planned = [r for part in cut_of(conn, applied, applied.epoch) for r in read_ranges(line.topics, part)]
    if letters.count(conn, spec.name, txid, errors, planned) != number:
        raise NotRevisable(f"{where} has dead letters that are none of its records, as `ratchet verify` tells")
    check_adding(conn, spec, applied)
    return applied, number


def check_adding(conn: Connection, spec: Pipeline, applied: Transaction) -> None:
    """NotRevisable where a sink of the spec has rows to which those of a release cannot be added.

    `applied` is the newest revision of the whole. A spec without a sink has left there what an older one had, in which
    records may be rows that are dead letters since.
    """
    older = select(transactions.c.applied).where(*are_applied(spec.name, applied.txid, applied.txid))
    older = conn.execute(older.where(transactions.c.revision < applied.revision)).scalars().all()
    for sink in sinks_of(spec):
        before = voted_of(conn, spec.name, sink, applied.txid)
        why = sink.cannot_add_to(before) if before else None
        if sink.name not in (applied.applied or {}) and any(sink.name in of for of in older):
            why = f"{sink.name} has rows that {applied}, of a spec without it, has left; replay the transaction instead"
        if why:
            raise NotRevisable(f"{spec.name}: transaction {applied.txid}: {why}; the dead letters stay")


def check_place(conn: Connection, spec: Pipeline, line: Line, txid: int) -> None:
    """NotRevisable if the transaction is not committed yet, or too old; then so are all later, or all older ones."""
    where = f"{line.pipeline}: transaction {txid}"
    if txid > line.head:
        raise NotRevisable(f"{where} is not committed yet: the head is {line.head}; there is nothing to revise")
    if txid <= line.pruned:
        raise NotRevisable(f"{where} is pruned from the ledger, so it cannot be revised; the old result stays")
    if txid <= line.compacted:
        raise NotRevisable(
            f"{where} is older than the spec's keep_deltas: the deltas up to {line.compacted} are merged into a base, "
            "in which no single one can be replaced; the old result stays"
        )
    expired = retention.until(conn, spec.name, [sink.table for sink in sinks_of(spec)])
    if txid <= expired:
        raise NotRevisable(
            f"{where} is older than an Append keeps its rows: those up to transaction {expired} are deleted, and would "
            "come back; the old result stays"
        )


def erased_of(conn: Connection, spec: Pipeline, first: int, last: int) -> dict[int, str]:
    """{txid: why it is not revised any more} of those of these transactions of which a person has erased rows."""
    found = erasures.among(conn, spec.name, [sink.table for sink in sinks_of(spec)], first, last)
    return dict.fromkeys(sorted(found), "rows of it were erased by a person, and would come back; the old result stays")


def check_sent(conn: Connection, spec: Pipeline, txid: int) -> None:
    """NotRevisable where a destination has got what was applied of the transaction, and cannot take it back."""
    # By the ledger: the process that revises may have another spec.
    fixed = [of for of in steps.destinations_of(conn, spec.name) if of.is_attached and not of.can_revise]
    if fixed and newest_applied(conn, spec.name, txid) is not None:
        raise NotRevisable(
            f"{spec.name}: transaction {txid}: {fixed[0].destination} cannot take back what it was sent; detach it to "
            "revise the transaction without it; the old result stays"
        )


def check_cut(conn: Connection, newest: Transaction) -> None:
    """NotRevisable if nothing of the transaction was ever to be read: it stands for lost records."""
    mine = (slices.c.pipeline == newest.pipeline, slices.c.txid == newest.txid, slices.c.epoch == newest.epoch)
    if not conn.execute(select(exists(select(slices.c.slice).where(*mine)))).scalar_one():
        raise NotRevisable(
            f"{newest.pipeline}: transaction {newest.txid} stands for records that were accepted as lost: there is "
            "nothing to read"
        )
