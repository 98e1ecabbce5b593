"""The ledger's rows as values: a field for each column, in the same order."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ratchet.ledger import schema
from ratchet.ledger.rows import (
    Binding,
    DestinationRow,
    Event,
    Line,
    Pause,
    Prune,
    Replay,
    SliceRow,
    StepRow,
    Transaction,
    WriterRow,
)
from ratchet.ledger.topics import Topics
from ratchet.ledger.work import utc

TABLES = {
    Line: schema.pipelines,
    Transaction: schema.transactions,
    Binding: schema.runs,
    Replay: schema.replays,
    StepRow: schema.steps,
    DestinationRow: schema.destinations,
    SliceRow: schema.slices,
    WriterRow: schema.writers,
    Event: schema.events,
    Prune: schema.prunes,
}
LINE = Line(
    "line", Topics.one("t", "first"), 1, 5, 0, 0, 0, datetime.now(UTC), None, None, 0, None, None, None, None, 3
)
OF_OTHERS = {Line: ["head"]}
"""Fields of a row that stand beside it in another table."""


@pytest.mark.parametrize("kind", TABLES)
def test_a_row_has_a_field_for_each_column(kind):
    columns = TABLES[kind].columns
    assert [field.name for field in fields(kind)] == [*(c.name for c in columns), *OF_OTHERS.get(kind, [])]
    may_be_null = {field.name for field in fields(kind) if "None" in str(field.type)}
    assert may_be_null == {column.name for column in columns if column.nullable}


def test_the_turn_is_that_of_the_transaction_behind_the_head():
    assert (LINE.turn, LINE.in_flight) == (4, 2)


def test_a_line_has_room_while_fewer_are_unfinished_and_its_next_transaction_is_not_beyond_a_pause():
    assert (LINE.has_room(3), LINE.has_room(2), LINE.pause) == (True, False, None)
    for behind, has_room in ((3, False), (5, False), (6, True)):
        paused = replace(LINE, paused_behind=behind, paused_by="me", paused_why="a look", paused_at=LINE.created_at)
        assert paused.has_room(3) is has_room and paused.pause == Pause(behind, "me", "a look", LINE.created_at)
        assert [txid for txid in range(4, 8) if paused.is_paused_before(txid)] == list(range(behind + 1, 8))


def test_a_moment_is_said_in_utc():
    assert utc(None) == "never"
    assert utc(datetime(2013, 1, 1, 6, 0, 5, tzinfo=timezone(timedelta(hours=1)))) == "2013-01-01 05:00:05 UTC"
