"""Pauses: a person stops a line behind a transaction, and lets it go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import Connection, func, update

from ratchet.errors import IllegalMove
from ratchet.ledger import history
from ratchet.ledger.channel import notify
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line
from ratchet.ledger.schema import pipelines
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import name_of
from ratchet.operate.decisions import Decided, advanced, finish, lock
from ratchet.operate.outcome import Move, Outcome
from ratchet.protocol.commit import is_voided
from ratchet.spec.pipeline import Pipeline


def pause_at(
    ledger: Ledger, spec: Pipeline, txid: int | None, reason: str, who: str, *, dry_run: bool = False
) -> Outcome:
    """Stop a line behind transaction `txid`: all up to it are committed, and none after it is begun or committed.

    Without `txid` behind the last one that is begun now. A pause that is there is moved. Raises IllegalMove where a
    later one is committed already.
    """

    def decide(conn: Connection) -> Decided:
        line = lock(conn, spec)
        behind = line.last_txid if txid is None else txid
        if behind < line.head:
            raise IllegalMove(
                f"{spec.name}: the head is {line.head}, so the line cannot stop behind {name_of(behind)} any more; "
                "nothing was changed; without a txid it stops behind the last transaction that is begun"
            )
        said = {"paused_behind": behind, "paused_by": who, "paused_why": reason}
        return _set(
            conn, spec, line, Move.PAUSE_AT, {**said, "paused_at": func.clock_timestamp()}, reason, who, dry_run
        )

    return finish(ledger, spec, decide, dry_run)


def resume(ledger: Ledger, spec: Pipeline, reason: str, who: str, *, dry_run: bool = False) -> Outcome:
    """Let a paused line go on; whoever waits is told. Raises IllegalMove where it is not paused."""

    def decide(conn: Connection) -> Decided:
        line = lock(conn, spec)
        if line.pause is None:
            raise IllegalMove(f"{spec.name} is not paused; nothing was changed; `ratchet status {spec.name}` says more")
        nothing = {"paused_behind": None, "paused_by": None, "paused_why": None, "paused_at": None}
        return _set(conn, spec, line, Move.RESUME, nothing, reason, who, dry_run)

    return finish(ledger, spec, decide, dry_run)


def _set(
    conn: Connection,
    spec: Pipeline,
    before: Line,
    move: Move,
    values: Mapping[str, object],
    reason: str,
    who: str,
    dry_run: bool,
) -> Decided:
    """Put the pause, or none, in place of what was there, and write it into the history; the caller holds the lock."""
    conn.execute(update(pipelines).where(pipelines.c.pipeline == spec.name).values(values))
    now = lock(conn, spec)
    pause = now.pause or before.pause
    assert pause, "it is set, or was there"
    # The history is one of transactions: of the one behind which the line stops, where there is that one.
    at = pause.txid if now.pruned < pause.txid <= now.last_txid else now.last_txid
    if at:
        row = read_transaction(conn, spec.name, at, lock=True)
        history.record(conn, row, who=who, move=str(move), detail={"why": reason, "behind": pause.txid})
    # Those that wait beyond the pause of before may have their turn now.
    notify(conn, spec.name)
    outcome, has_met_leftovers = Outcome(move, spec.name, (), now.head, pause=now.pause), False
    if is_voided(conn, now):
        outcome, has_met_leftovers = advanced(conn, spec, move, [], now, dry_run=dry_run)
    return replace(outcome, lifted=before.pause), has_met_leftovers
