"""What `migrate` does beside people at work: indexes of tables that are there, and dry runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

from ratchet import Append, Upsert
from ratchet.errors import NotMigrated
from ratchet.ledger.work import Run
from ratchet.operate.migrate import BUILDING, PartlyMigrated, lines_of, migrate
from ratchet.protocol.begin import begin
from tests.until import until

from .staging import SPEC, always_active, committed, start
from .test_spec_changes import WIDER, faults

DELTA, INDEX = "ratchet_delta.public.rows", "public.rows_by_b"

CANCEL = text(
    "select pg_cancel_backend(pid) from pg_stat_activity "
    "where datname = current_database() and query like 'CREATE INDEX CONCURRENTLY%'"
)


@pytest.fixture
def narrow(ledger, log):
    """A delta table with rows that lacks an index and no column, for which writers would be waited for."""
    committed(ledger, log, "a")
    with ledger.begin() as conn:
        conn.execute(text('alter table ratchet_delta."public.rows" add column b text collate "C"'))


def write(conn: psycopg.Connection) -> None:
    insert = sql.SQL(
        "insert into {} (a, _source, _partition, _offset, _n, _txid, _writer) values (1, 1, 0, 1, 0, 99, 1)"
    )
    conn.execute(insert.format(sql.Identifier("ratchet_delta", "public.rows")))


@contextmanager
def building(ledger):
    """(session, future): a session that has written and not committed, and a migration whose index waits for it."""
    said: list[str] = []
    with ThreadPoolExecutor(1) as pool, psycopg.connect(ledger.url) as conn:
        write(conn)
        done = pool.submit(migrate, ledger.url, [WIDER], say=said.append)
        try:
            until("the index is being built", lambda: indexes(ledger).get(INDEX) is False, seconds=30)
            yield conn, done
        finally:
            conn.rollback()
    assert said == [f"{DELTA}: building index {INDEX}; readers and writers go on meanwhile"]


def indexes(ledger) -> dict[str, bool]:
    """{name: whether it can be used}, of the delta table's indexes."""
    asked = text(
        "select i.relname, x.indisvalid from pg_index x join pg_class i on i.oid = x.indexrelid "
        "join pg_class t on t.oid = x.indrelid where t.relname = 'public.rows'"
    )
    with ledger.begin() as conn:
        return {row.relname: row.indisvalid for row in conn.execute(asked)}


def test_an_index_of_a_table_with_rows_is_built_beside_those_who_write(ledger, narrow):
    with building(ledger) as (first, done):
        with psycopg.connect(ledger.url, options="-c lock_timeout=5s") as second:
            write(second)
            second.rollback()
        assert not done.done()
        first.rollback()
        assert done.result(60).indexes == [(DELTA, INDEX)]
    assert indexes(ledger)[INDEX]
    assert faults(ledger, WIDER) == []


def test_an_index_that_was_not_finished_is_built_anew(ledger, narrow):
    with building(ledger) as (_, done):
        with ledger.begin() as conn:
            conn.execute(CANCEL)
        with pytest.raises(NotMigrated, match=f"index {INDEX} was not built: canceling .*; all else is done; migrate"):
            done.result(60)
    assert indexes(ledger)[INDEX] is False
    assert migrate(ledger.url, [WIDER], dry_run=True).indexes == [(DELTA, INDEX)]
    assert migrate(ledger.url, [WIDER]).indexes == [(DELTA, INDEX)]
    assert indexes(ledger)[INDEX]
    assert migrate(ledger.url, [WIDER]).indexes == []


def test_two_migrations_at_once_do_not_build_the_same_index(ledger, narrow):
    with psycopg.connect(ledger.url) as other:
        other.execute("select pg_advisory_lock(%s)", [BUILDING])
        with pytest.raises(NotMigrated, match="another migration builds indexes, so none was built here; .* again"):
            migrate(ledger.url, [WIDER])
    assert INDEX not in indexes(ledger)
    assert migrate(ledger.url, [WIDER]).indexes == [(DELTA, INDEX)]


def test_a_dry_run_says_what_would_be_done_and_does_nothing(ledger_url):
    tried = migrate(ledger_url, [WIDER], dry_run=True)
    assert tried.before is None and tried.after is not None
    with psycopg.connect(ledger_url) as conn:
        found = conn.execute("select count(*) from pg_namespace where nspname like 'ratchet%'").fetchone()
    assert found == (0,)
    made = migrate(ledger_url, [WIDER])
    assert lines_of(tried) == [*lines_of(made), "this was a dry run: nothing was changed"]
    assert lines_of(made)[0] == f"ledger: created, at {made.after}"
    assert lines_of(migrate(ledger_url, [WIDER]))[0] == "ledger: up to date"


def test_a_ledger_that_another_version_has_made_is_not_touched_and_the_way_on_is_said(ledger, log):
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.alembic_version set version_num = '0001'"))
    with pytest.raises(NotMigrated, match="schema is 0001, this version of ratchet needs 0001_.*; nothing was begun"):
        start(ledger, SPEC, log, "a")
    with pytest.raises(NotMigrated, match="schema is 0001, .*, and no migration leads there .*`make clean`"):
        migrate(ledger.url, [SPEC])


def test_a_pipeline_that_does_not_fit_holds_up_no_other_and_keeps_what_it_has(ledger, log):
    other = SPEC.model_copy(update={"name": "other", "sinks": [Append("others", columns="a bigint")]})
    third = SPEC.model_copy(update={"name": "third", "sinks": [Append("thirds", columns="a bigint")]})
    wider = SPEC.sinks[0].model_copy(update={"columns": "a bigint, b bigint"})
    misfit = SPEC.model_copy(update={"sinks": [wider, *SPEC.sinks[1:]]})
    committed(ledger, log, "a")
    with ledger.begin() as conn:
        conn.execute(text("alter table latest alter column a type int"))
    for dry_run, rest in ((True, "would be"), (False, "is")):
        with pytest.raises(PartlyMigrated) as raised:
            migrate(ledger.url, [other, misfit, third], dry_run=dry_run)
        done, said = raised.value.done, str(raised.value)
        assert [refused.pipeline for refused in done.refused] == ["line"] and done.dry_run is dry_run
        assert [made.tables for made in done.sinks if made.tables] == [
            ("ratchet_delta.public.others",),
            ("ratchet_delta.public.thirds",),
        ]
        assert said.startswith("line: sink 'latest': public.latest.a is INTEGER, the spec declares BIGINT")
        assert said.endswith(f"nothing of it was changed, all else {rest} done")
    with ledger.begin() as conn:
        there = conn.execute(text("select attname from pg_attribute where attrelid = 'rows'::regclass and attnum > 0"))
        assert "b" not in there.scalars().all(), "a column of the pipeline that was refused"
    assert begin(ledger, third, Run("dag", "t"), log.offsets, always_active).claim.txid == 1


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("create sequence others", "public.others is there and no table"),
        ("create type others as enum ('a')", 'type "others" already exists'),
        ("create view others as select 1::bigint as a", "public.others is a view of your own"),
        ("create view others as select 1 as a, 2 as _txid", "cannot change"),
    ],
)
def test_whatever_has_a_sinks_name_already_holds_up_its_own_pipeline_alone(ledger, there, said):
    sink = (
        Append("others", columns="a bigint")
        if "view" in there
        else Upsert("others", key="k string", columns="a bigint")
    )
    other = SPEC.model_copy(update={"name": "other", "sinks": [sink]})
    third = SPEC.model_copy(update={"name": "third", "sinks": [Append("thirds", columns="a bigint")]})
    with ledger.begin() as conn:
        conn.execute(text(there))
    with pytest.raises(PartlyMigrated, match=f"^other: .*{said}") as raised:
        migrate(ledger.url, [other, third])
    assert [made.tables for made in raised.value.done.sinks] == [("ratchet_delta.public.thirds",)]
