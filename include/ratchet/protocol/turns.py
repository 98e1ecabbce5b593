"""Turns: transactions commit in txid order, and the others wait for the one whose turn it is."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection

from ratchet.ledger.rows import Line
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.protocol.halt import Stopped, why_halted
from ratchet.protocol.pause import why_paused


class First(Stopped, Protocol):
    """What is told of the transaction whose turn it is."""

    @property
    def state(self) -> State: ...
    @property
    def claim_ended(self) -> bool: ...


def waits_for(conn: Connection, line: Line, txid: int) -> str | None:
    """What stands before a transaction: "waits for 11, which run X is processing", or a pause; None in its turn."""
    if line.pause and line.is_paused_before(txid):
        return why_paused(line.pipeline, line.pause)
    turn = line.turn
    if txid <= turn:
        return None
    return behind(read_transaction(conn, line.pipeline, turn))


def behind(first: First) -> str:
    """What those wait for that are prepared behind the transaction whose turn it is."""
    if first.halted_at is not None:
        return f"waits for {first.txid}: {why_halted(first)}"
    doing = {
        State.OPEN: f"which run {first.run_id} is processing",
        State.PREPARED: f"which run {first.run_id} is about to commit",
        State.ABORTED: f"which was aborted ({first.reason}) and will be tried again",
    }
    gone = "; its run has ended, the next one adopts it" if first.claim_ended else ""
    return f"waits for {first.txid}, {doing.get(first.state, f'which is {first.state}')}{gone}"
