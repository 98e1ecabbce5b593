"""Gates: what a spec demands of staged data before it may be committed, asked once an epoch."""

from __future__ import annotations

from typing import cast

from sqlalchemy import Connection, update

from ratchet.errors import Refused
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_row, move, read_transaction
from ratchet.protocol.applied import newest_whole, voted_of
from ratchet.protocol.gate_kinds import Gate, Prepared
from ratchet.protocol.votes import read_votes, rows_of
from ratchet.sinks import stage
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline


def judge(ledger: Ledger, spec: Pipeline, row: Transaction) -> None:
    """Ask every gate about a PREPARED epoch and store what they said; a no aborts the transaction.

    An epoch that has its verdict is not asked again. Raises Refused with the numbers of the gate that said no.
    """
    if row.state != State.PREPARED or is_passed(spec, row):
        return
    with ledger.snapshot() as conn:
        now = read_transaction(conn, row.pipeline, row.txid, row.revision)
        if _is_over(now, row):
            return
        prepared = _prepared(conn, spec, row)
        said = {gate.title: cast(Gate, gate).ask(conn, prepared) for gate in spec.gates}
    noes = [f"gate {name!r}: {numbers['why']}" for name, numbers in said.items() if not numbers["yes"]]
    with ledger.begin() as conn:
        now = read_transaction(conn, row.pipeline, row.txid, row.revision, lock=True)
        if _is_over(now, row):
            return
        if noes:
            move(conn, now, State.ABORTED, who=row.run_id, why=noes[0], detail={"gates": said}, reason="; ".join(noes))
        else:
            conn.execute(update(transactions).where(is_row(now)).values(verdict=said))
            history.record(conn, now, who=row.run_id, move="verdict", detail={"gates": said})
    if noes:
        raise Refused(f"{row.pipeline}: {row} is aborted: {'; '.join(noes)}")


def _is_over(now: Transaction, row: Transaction) -> bool:
    """Whether somebody was quicker, and perhaps the stages are gone; whoever goes on looks at the state again."""
    return now.state != State.PREPARED or now.epoch != row.epoch


def is_passed(spec: Pipeline, row: Transaction) -> bool:
    """Whether nothing is left to ask about the row's epoch: it has its verdict, or the spec has no gates."""
    return not spec.gates or row.verdict is not None


def _prepared(conn: Connection, spec: Pipeline, row: Transaction) -> Prepared:
    votes = read_votes(conn, spec.name, row.txid, row.epoch)
    sinks = sinks_of(spec)
    relations = stage.relations(conn, sinks, row)
    # Writer by writer: what else stands under the txid will not be visible.
    written = {sink.name: (sink, rows_of(votes, sink.name, relations[sink.name], row.txid)) for sink in sinks}
    if row.releases is None:
        return Prepared(row.pipeline, row.txid, row.records or 0, written, spec.private)
    whole = newest_whole(conn, spec.name, row.txid, State.COMMITTED)
    assert whole is not None, "a release adds to what is committed"
    there = {sink.name: voted_of(conn, spec.name, sink, row.txid) for sink in sinks}
    before = {name: of.rows for name, of in there.items() if of}
    before[DEAD_LETTERS] -= row.records or 0
    return Prepared(row.pipeline, row.txid, whole.records or 0, written, spec.private, before)
