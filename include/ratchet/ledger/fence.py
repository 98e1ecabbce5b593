"""The fence of a slice: only its highest try writes and votes, while its epoch is open and it has not voted."""

from __future__ import annotations

from sqlalchemy import Connection, select

from ratchet.errors import Fenced
from ratchet.ledger.rows import SliceRow, Transaction
from ratchet.ledger.schema import slices
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import SliceToken


def hold_try(conn: Connection, token: SliceToken) -> None:
    """Keep the try the current one until this database transaction ends; Fenced if it is not any more.

    These are a writer's last statements: its rows appear together with the proof that they may, and none can appear
    under a transaction that is not OPEN. Locks are taken in the order transaction, slice, and shared with other
    writers.
    """
    row = read_transaction(conn, token.pipeline, token.txid, token.revision, share=True)
    current = read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice, share=True)
    check_try(row, current, token)


def check_try(row: Transaction, current: SliceRow, token: SliceToken) -> None:
    """Fenced, with what has the slice now, where the token is not the current one of a slice that has yet to vote."""
    where = f"{token.pipeline}: {token}, try {token.try_number}"
    if row.epoch != token.epoch or row.state != State.OPEN:
        raise Fenced(f"{where} of epoch {token.epoch}: the transaction is {row.state} in epoch {row.epoch}")
    if current.voted_at is not None:
        raise Fenced(f"{where}: the slice has voted in try {current.try_number}")
    if current.try_number != token.try_number:
        raise Fenced(f"{where}: try {current.try_number} has the slice now")
    if current.nonce != token.nonce:
        raise Fenced(
            f"{where}: another try of this number has the slice now; the ledger was restored to an earlier state"
        )


def read_slice(conn: Connection, pipeline: str, txid: int, epoch: int, number: int, *, share: bool = False) -> SliceRow:
    """The row of a slice, kept from being changed when `share`; Fenced where there is none."""
    query = select(slices).where(
        slices.c.pipeline == pipeline,
        slices.c.txid == txid,
        slices.c.epoch == epoch,
        slices.c.slice == number,
    )
    row = SliceRow.one_or_none(conn.execute(query.with_for_update(read=True) if share else query))
    if row is None:
        raise Fenced(f"{pipeline}: transaction {txid} has no slice {number} in epoch {epoch}")
    return row
