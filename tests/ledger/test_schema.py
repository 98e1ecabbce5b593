"""The ledger's tables in a real PostgreSQL: what they refuse whoever writes, and what is said when they are absent."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Table, delete, select, text, update
from sqlalchemy.exc import IntegrityError

from ratchet import Append, Pipeline
from ratchet.errors import LedgerUnreachable, NotMigrated
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import events, legal_moves, metadata, ranges, targets, transactions
from ratchet.ledger.states import LEGAL_MOVES, State
from ratchet.ledger.work import Run
from ratchet.operate.migrate import lines_of, migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import claim_of
from ratchet.protocol.commit import commit
from ratchet.sinks.lookup import sinks_of

from .staging import SPEC, always_active, committed, prepare, start


@pytest.mark.invariant("I8")
def test_the_database_allows_exactly_the_moves_that_the_code_allows(ledger):
    with ledger.begin() as conn:
        held = {(row.from_state, row.to_state) for row in conn.execute(select(legal_moves))}
    assert held == {("" if a is None else str(a), str(b)) for a, b in LEGAL_MOVES}


@pytest.mark.invariant("I8")
@pytest.mark.parametrize("to", [State.COMMITTED, State.VOIDED])
def test_the_database_refuses_a_move_that_is_not_legal(ledger, log, to):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    with pytest.raises(IntegrityError, match="no legal move"), ledger.begin() as conn:
        conn.execute(update(transactions).values(state=State.OPEN if to is State.COMMITTED else to))


def test_the_migrated_schema_is_the_declared_one(ledger):
    with ledger.begin() as conn:
        context = MigrationContext.configure(
            conn,
            opts={
                "include_schemas": True,
                "version_table_schema": "ratchet",
                "include_name": lambda name, kind, _: kind != "schema" or name in ("ratchet", "ratchet_delta"),
                "include_object": lambda of, name, kind, is_there, _: kind != "table" or not _is_of_a_sink(of),
            },
        )
        assert compare_metadata(context, metadata) == []


def _is_of_a_sink(table: Table) -> bool:
    return table.schema == "ratchet_delta" and table.name != "dead_letters"


def test_migrating_twice_changes_nothing_and_a_table_that_does_not_fit_is_named(ledger, log):
    fits = [f"line: {name}: fits" for name in ("rows", "totals", "latest")]
    assert lines_of(migrate(ledger.url, [SPEC])) == ["ledger: up to date", *fits]
    committed(ledger, log, "a")
    with ledger.begin() as conn:
        conn.execute(text("alter table totals alter column n type int"))
    with pytest.raises(NotMigrated, match=r"public.totals.n is INTEGER, the spec declares BIGINT"):
        migrate(ledger.url, [SPEC])


@pytest.mark.parametrize("table", ["totals", "latest"])
def test_a_unique_key_to_which_nulls_differ_fits_only_where_there_are_none(ledger, log, table):
    committed(ledger, log, "a")
    with ledger.begin() as conn:
        conn.execute(text(f"alter table {table} drop constraint {table}_key, add unique (k)"))
    said = rf"'{table}': .* no unique constraint on k, to which one null is like another"
    with pytest.raises(NotMigrated, match=said):
        migrate(ledger.url, [SPEC])
    with ledger.begin() as conn:
        conn.execute(text(f"alter table {table} alter column k set not null"))
    assert f"line: {table}: fits" in lines_of(migrate(ledger.url, [SPEC]))


def renamed(**changed: object) -> Pipeline:
    return SPEC.model_copy(update={"name": "renamed", **changed})


def test_a_table_is_one_pipelines_for_ever_since_the_txids_of_another_mean_other_transactions(ledger, log):
    # Of a name under which nothing was ever begun there is nothing to protect.
    assert "renamed: totals: fits" in lines_of(migrate(ledger.url, [renamed()]))
    with pytest.raises(NotMigrated, match="sink 'rows': the ledger does not know its table as one of pipeline 'line'"):
        start(ledger, SPEC, log, "a")
    migrate(ledger.url, [SPEC])
    start(ledger, SPEC, log, "a")
    with pytest.raises(
        NotMigrated,
        match=r"public.rows is the table of pipeline 'line', .*read both by a view, or drop .* by `ratchet drop line`",
    ):
        migrate(ledger.url, [renamed()])
    with pytest.raises(
        NotMigrated, match="sink 'rows': the ledger does not know its table as one of pipeline 'renamed'"
    ):
        begin(ledger, renamed(), Run("dag", "a"), log.offsets, always_active)
    apart = renamed(sinks=[Append("renamed_rows", columns="a int")])
    made = "renamed: renamed_rows: created ratchet_delta.public.renamed_rows, created view renamed_rows"
    assert made in lines_of(migrate(ledger.url, [apart]))
    assert begin(ledger, apart, Run("other", "a"), log.offsets, always_active).claim.txid == 1


HELD = {table.name: table for sink in sinks_of(SPEC) for table in sink.tables}


@pytest.mark.parametrize("kept", HELD)
def test_rows_of_transactions_that_the_ledger_does_not_know_are_not_mixed_with_its_own(ledger, log, kept):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    with ledger.begin() as conn:
        # As if the ledger and all other tables had been lost.
        for lost in (targets, *HELD.values()):
            if lost is not HELD[kept]:
                conn.execute(delete(lost))
    with pytest.raises(NotMigrated, match="holds rows of transactions that this ledger does not know"):
        migrate(ledger.url, [SPEC])
    with ledger.begin() as conn:
        conn.execute(delete(HELD[kept]))
    migrate(ledger.url, [SPEC])


def test_a_ledger_that_was_not_migrated_says_so(ledger_url, log):
    with Ledger(ledger_url) as bare:
        with pytest.raises(NotMigrated, match=r'^relation "ratchet.targets" does not exist; run `ratchet migrate`$'):
            begin(bare, SPEC, Run("dag", "a"), log.offsets, always_active)
        with pytest.raises(NotMigrated, match=r'^relation "ratchet.runs" does not exist; run `ratchet migrate`$'):
            claim_of(bare, Run("dag", "a"))


@pytest.mark.invariant("I12")
def test_an_unreachable_ledger_says_what_to_check():
    with (
        Ledger("postgresql://nobody@127.0.0.1:1/none") as gone,
        pytest.raises(LedgerUnreachable, match="check that PostgreSQL runs"),
        gone.begin(),
    ):
        pass


@pytest.mark.invariant("I2")
@pytest.mark.parametrize(("start_at", "until"), [(5, 30), (25, 30), (0, 20)])
def test_the_database_refuses_a_gap_an_overlap_and_a_fork(ledger, log, start_at, until):
    log.beginning, log.stable = {0: 0}, {0: 20}
    start(ledger, SPEC, log, "a")
    row = {"pipeline": "line", "txid": 2, "source": 1, "partition": 0}
    with pytest.raises(IntegrityError), ledger.begin() as conn:
        conn.execute(ranges.insert().values(**row, from_offset=start_at, until_offset=until))


@pytest.mark.invariant("I8")
def test_a_changed_history_is_found(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    with pytest.raises(IntegrityError, match="append-only"), ledger.begin() as conn:
        conn.execute(update(events).values(who="nobody"))
    with ledger.begin() as conn:
        assert history.verify(conn, SPEC.name) == []
        conn.execute(text("alter table ratchet.events disable trigger append_only"))
        conn.execute(update(events).where(events.c.seq == 2).values(who="nobody"))
        assert history.verify(conn, SPEC.name) == ["transaction 1, event 2: was changed after it was written"]
