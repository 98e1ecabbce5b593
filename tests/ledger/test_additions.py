"""What a spec gains is added between two transactions, whoever writes or waits meanwhile, and the history has it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from ratchet import Append
from ratchet.errors import OtherCode
from ratchet.ledger import history
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote

from .staging import SPEC, a_try, committed, prepare, rows_of, start, vote_of, write_all, written
from .test_spec_changes import WIDER, faults, one, wider_rows

ROWS = SPEC.model_copy(update={"sinks": SPEC.sinks[:1]})
WIDER_ROWS = WIDER.model_copy(update={"sinks": [Append("rows", columns="a bigint, b string")]})


def test_a_slice_that_writes_while_a_column_is_added_is_waited_for_and_counts(ledger, log):
    begun = start(ledger, ROWS, log, "a")
    work, other = (a_try(ledger, begun, part.number, ROWS) for part in begun.slices)
    told = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with ledger.begin() as conn:
            writers = {"rows": written(conn, ROWS, work, "rows", rows_of(ROWS, work)["rows"])}
            done = pool.submit(migrate, ledger.url, [WIDER_ROWS], say=lambda _: told.set())
            assert told.wait(30) and not done.done()
        assert done.result(60).sinks[0].columns == (("ratchet_delta.public.rows", "b"),)
    cast_vote(ledger, ROWS, work.token, vote_of(ROWS, work, writers))
    # One that begins to write afterwards names its columns.
    cast_vote(ledger, ROWS, other.token, vote_of(ROWS, other, write_all(ledger, ROWS, other, rows_of(ROWS, other))))
    assert commit(ledger, ROWS, begun.claim).txids == (1,)
    for spec in (ROWS, WIDER_ROWS):
        assert faults(ledger, spec) == []
    with ledger.begin() as conn:
        assert conn.execute(text("select count(*), count(b) from rows")).one() == (20, 0)


def test_what_was_prepared_before_a_column_was_added_is_folded_by_no_spec_that_lacks_it(ledger, log):
    prepare(ledger, SPEC, begun := start(ledger, SPEC, log, "a"))
    migrate(ledger.url, [WIDER])
    with pytest.raises(OtherCode, match="its column c_min is not in the spec.*, since a migration; nothing was chang"):
        commit(ledger, SPEC, begun.claim)
    with pytest.raises(OtherCode, match="was prepared with code"):
        commit(ledger, WIDER, begun.claim)


def test_a_change_of_tables_is_in_the_history_with_who_and_from_which_columns_to_which(ledger, log):
    committed(ledger, log, "a")
    migrate(ledger.url, [WIDER], who="a tester", dry_run=True)
    with ledger.begin() as conn:
        assert {event.txid for event in history.read(conn, "line")} == {1}, "tables that were made have not changed"
    migrate(ledger.url, [WIDER], who="a tester")
    migrate(ledger.url, [WIDER], who="a tester")
    one(ledger, log, WIDER, "b", wider_rows)
    with ledger.begin() as conn:
        (event,) = history.read(conn, "line", 0)
    assert (event.move, event.who, event.seq) == ("MIGRATED", "a tester", 1)
    assert event.detail["why"].startswith("rows: added b to ratchet_delta.public.rows")
    tables = event.detail["tables"]
    assert sorted(tables) == ["public.latest", "public.totals", *(f"ratchet_delta.public.{n}" for n in MADE)]
    before, after = tables["public.latest"]["before"], tables["public.latest"]["after"]
    assert (before[:2], after[len(before) :]) == (['k TEXT COLLATE "C"', "a BIGINT"], ['b TEXT COLLATE "C"'])
    assert faults(ledger, WIDER) == []


MADE = ("latest", "rows", "totals")


def test_a_migration_that_is_changed_in_the_history_is_found(ledger, log):
    committed(ledger, log, "a")
    migrate(ledger.url, [WIDER])
    with ledger.begin() as conn:
        conn.execute(text("set local session_replication_role = replica"))
        conn.execute(text("update ratchet.events set who = 'nobody' where txid = 0"))
    for since in (1, 2):
        with ledger.begin() as conn:
            assert history.verify(conn, "line", since) == ["tables, event 1: was changed after it was written"]
