"""Turns: transactions commit in txid order, and the others wait for the one whose turn it is."""

from __future__ import annotations

from sqlalchemy import Connection

from ratchet.ledger.rows import Line
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.protocol.halts import why_halted


def waits_for(conn: Connection, line: Line, txid: int) -> str | None:
    """What stands before a transaction: "waits for 11, which run X is processing"; None when it is its turn."""
    turn = line.turn
    if txid <= turn:
        return None
    first = read_transaction(conn, line.pipeline, turn)
    if first.halted_at is not None:
        return f"waits for {turn}: {why_halted(first)}"
    doing = {
        State.OPEN: f"which run {first.run_id} is processing",
        State.PREPARED: f"which run {first.run_id} is about to commit",
        State.ABORTED: f"which was aborted ({first.reason}) and will be tried again",
    }
    gone = "; its run has ended, the next one adopts it" if first.claim_ended else ""
    return f"waits for {turn}, {doing.get(first.state, f'which is {first.state}')}{gone}"
