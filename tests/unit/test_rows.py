"""The ledger's rows as values: a field for each column, in the same order."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ratchet.ledger import schema
from ratchet.ledger.rows import Binding, Event, Line, Prune, Replay, SliceRow, Transaction, WriterRow
from ratchet.ledger.work import utc

TABLES = {
    Line: schema.pipelines,
    Transaction: schema.transactions,
    Binding: schema.runs,
    Replay: schema.replays,
    SliceRow: schema.slices,
    WriterRow: schema.writers,
    Event: schema.events,
    Prune: schema.prunes,
}
OF_OTHERS = {Line: ["head"]}
"""Fields of a row that stand beside it in another table."""


@pytest.mark.parametrize("kind", TABLES)
def test_a_row_has_a_field_for_each_column(kind):
    columns = TABLES[kind].columns
    assert [field.name for field in fields(kind)] == [*(c.name for c in columns), *OF_OTHERS.get(kind, [])]
    may_be_null = {field.name for field in fields(kind) if "None" in str(field.type)}
    assert may_be_null == {column.name for column in columns if column.nullable}


def test_the_turn_is_that_of_the_transaction_behind_the_head():
    line = Line("line", "t", "first", 1, 5, 0, 0, 0, datetime.now(UTC), None, None, 3)
    assert (line.turn, line.in_flight) == (4, 2)


def test_a_moment_is_said_in_utc():
    assert utc(None) == "never"
    assert utc(datetime(2013, 1, 1, 6, 0, 5, tzinfo=timezone(timedelta(hours=1)))) == "2013-01-01 05:00:05 UTC"
