"""A dry run says what a move would do, and leaves the ledger and the sinks as they were."""

from __future__ import annotations

import pytest
from sqlalchemy import select, text

from ratchet.ledger.schema import events, heads, slices, transactions, writers
from ratchet.ledger.schema import replays as asked
from ratchet.operate import actions, replay
from ratchet.operate.outcome import lines_of

from .staging import SPEC, committed, fail, prepare, start, state


def everything(ledger) -> list[tuple]:
    """All that the ledger has of transactions, slices, history, requests and rows."""
    tables = (transactions, slices, events, asked, writers, heads)
    with ledger.begin() as conn:
        rows = [tuple(row) for table in tables for row in conn.execute(select(table).order_by(*table.primary_key))]
        return [*rows, *conn.execute(text('select count(*) from ratchet_delta."public.rows"'))]


def retry(ledger, dry_run):
    return actions.retry(ledger, SPEC, None, "me", "room again", dry_run=dry_run)


def abort(ledger, dry_run):
    return actions.abort(ledger, SPEC, 2, "wrong day", "me", dry_run=dry_run)


def ask(ledger, dry_run):
    return replay.ask(ledger, SPEC, 1, 1, "again", "me", dry_run=dry_run)


def take_back(ledger, dry_run):
    return replay.take_back(ledger, SPEC, 1, 1, "no", "me", dry_run=dry_run)


@pytest.mark.parametrize("move", [retry, abort, ask, take_back])
def test_a_move_that_is_tried_changes_nothing_and_says_what_it_does_when_it_is_made(ledger, log, move):
    log.stable = {0: 500, 1: 500}
    committed(ledger, log, "a")
    if move is retry:
        for run in "bcd":
            fail(ledger, log, run)
    else:
        prepare(ledger, SPEC, start(ledger, SPEC, log, "b"))
    if move is take_back:
        ask(ledger, False)
    before = everything(ledger)
    tried = move(ledger, True)
    assert everything(ledger) == before and tried.dry_run
    said = replay.lines_of if isinstance(tried, replay.Asked) else lines_of
    assert said(tried)[-1] == "this was a dry run: nothing was changed"
    done = move(ledger, False)
    assert everything(ledger) != before and said(done) == said(tried)[:-1]
    if move is abort:
        assert state(ledger, 2) == "ABORTED"
