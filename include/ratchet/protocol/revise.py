"""Revisions: a committed transaction's exact ranges once more, with today's code, in place of its old deltas."""

from __future__ import annotations

from sqlalchemy import Connection, exists, select

from ratchet.errors import NotRevisable
from ratchet.ledger import history
from ratchet.ledger.rows import Line, Transaction
from ratchet.ledger.schema import slices
from ratchet.ledger.states import State
from ratchet.ledger.transactions import move, newest_revision, read_transaction
from ratchet.ledger.work import Claim, Run
from ratchet.protocol import claims
from ratchet.protocol.plan import copy_cut
from ratchet.sinks import erasures, retention
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.pipeline import Pipeline


def revise(
    conn: Connection, spec: Pipeline, line: Line, txid: int, run: Run, *, asked_code: str | None = None
) -> Claim:
    """Begin the next revision of a transaction, for `run`; the caller holds the pipeline's lock.

    `asked_code` is that with which it was asked for, where it had to wait.

    The older rows stay as they are and visible until the revision commits; an unfinished older revision is
    superseded. Raises NotRevisable when the transaction is not behind the head, when its deltas are a base by now, and
    when it stands for lost records.
    """
    check(conn, spec, line, txid)
    original = read_transaction(conn, spec.name, txid, lock=True)
    newest = newest_revision(conn, spec.name, txid)
    newest = read_transaction(conn, spec.name, txid, newest.revision, lock=True)
    check_cut(conn, newest)
    number = newest.revision + 1
    if newest.revision and newest.state in (State.OPEN, State.PREPARED):
        why = f"superseded by revision {number}"
        move(conn, newest, State.ABORTED, who=str(run), why=why, reason=why)
    row = claims.open_transaction(
        conn,
        spec,
        run,
        txid,
        revision=number,
        epoch=newest.epoch + 1,
        txn_time=original.txn_time,
        asked_code=asked_code,
    )
    copy_cut(conn, row, newest.epoch)
    said = {"from": None, "why": f"revises {original.state} transaction {txid}", "code": spec.code_hash}
    if asked_code not in (None, spec.code_hash):
        said["asked with"] = asked_code
    history.record(conn, row, who=str(run), move=str(State.OPEN), detail=said)
    return row.token


def check(conn: Connection, spec: Pipeline, line: Line, txid: int) -> None:
    """NotRevisable if the transaction cannot be revised as the line stands."""
    check_place(conn, spec, line, txid)
    for erased, why in erased_of(conn, spec, txid, txid).items():
        raise NotRevisable(f"{line.pipeline}: transaction {erased}: {why}")


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


def check_cut(conn: Connection, newest: Transaction) -> None:
    """NotRevisable if nothing of the transaction was ever to be read: it stands for lost records."""
    mine = (slices.c.pipeline == newest.pipeline, slices.c.txid == newest.txid, slices.c.epoch == newest.epoch)
    if not conn.execute(select(exists(select(slices.c.slice).where(*mine)))).scalar_one():
        raise NotRevisable(
            f"{newest.pipeline}: transaction {newest.txid} stands for records that were accepted as lost: there is "
            "nothing to read"
        )
