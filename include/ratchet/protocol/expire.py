"""Expiry: an Append's rows are deleted when their transaction was committed longer ago than the sink keeps them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sqlalchemy import Connection

from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import lock_rows, read_line
from ratchet.ledger.work import counted
from ratchet.protocol.compact import STEPS_SECONDS, old_until, step
from ratchet.sinks import layout, retention
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.spec.pipeline import Pipeline


def expire(ledger: Ledger, spec: Pipeline) -> Iterator[str]:
    """Delete what is older than its sink keeps it; a line for each sink of which something went.

    Some transactions at a time, and each of them whole in one database transaction, in which the ledger notes up to
    which it has come: no reader sees half of one, and from then on none of them can be revised. Broken off, the next
    expiry goes on.
    """
    started = time.monotonic()
    for sink in sinks_of(spec):
        gone, until = 0, None
        while sink.expires_after is not None and time.monotonic() - started <= STEPS_SECONDS:
            with ledger.begin() as conn:
                done = _expire_some(conn, spec, sink)
            if done is None:
                break
            until, gone = done[0], gone + done[1]
        if until is not None:
            yield (
                f"{spec.name}: {sink.name}: rows of transactions up to {until} are older than {sink.expires_after} and "
                f"deleted, {counted(gone, 'row')}"
            )


def _expire_some(conn: Connection, spec: Pipeline, sink: Sink) -> tuple[int, int] | None:
    """(up to which txid, how many rows) of one step; None where nothing is old enough, or the tables are another's."""
    # A revision that exchanges rows comes first, or finds that there is nothing to exchange any more.
    lock_rows(conn, spec.name)
    line = read_line(conn, spec.name)
    if line is None or sink.expires_after is None or layout.misfit(conn, spec):
        return None
    if sink.destinations and steps.is_behind(conn, spec.name):
        # It has still to get some of them. What is decided after this moment is too young to expire.
        return None
    after = retention.until(conn, spec.name, [sink.table])
    until = old_until(conn, line, after, sink.expires_after)
    if until <= after:
        return None
    to = min(until, step(conn, spec.name, after, until))
    rows = sink.expire(conn, after, to)
    retention.note(conn, spec.name, sink.table, after, to, rows)
    return to, rows
