"""A transaction's rows are found by the block ranges that PostgreSQL's own VACUUM summarizes."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Connection, text

from ratchet.ledger.schema import STAGE_SCHEMA
from ratchet.sinks import delta
from ratchet.sinks.append import VACUUM
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Delta, Rows
from tests.until import until

from .staging import SPEC

SINK = sinks_of(SPEC)[0]
TABLE = sql.Identifier(*SINK.home)
TRANSACTIONS, ROWS = 11, VACUUM["autovacuum_vacuum_insert_threshold"] // 10
ANOTHER = 2
"""A writer that has written nothing."""


@pytest.fixture
def owner(ledger):
    with psycopg.connect(ledger.url, autocommit=True) as conn:
        conn.execute("alter system set autovacuum_naptime = 1")
        conn.execute("select pg_reload_conf()")
        yield conn
        conn.execute("alter system reset autovacuum_naptime")
        conn.execute("select pg_reload_conf()")


def test_after_a_bulk_load_a_transaction_is_found_wherever_its_rows_stand(owner, ledger):
    # A fifth of a table, which PostgreSQL would wait for otherwise, is more than comes within hours. That it is large
    # is all that it is told; the statistics of the rows are made with the same VACUUM.
    owner.execute("update pg_class set reltuples = 1e8, relpages = 1e6 where oid = %s::regclass", [_name()])
    into = sql.SQL(
        "insert into {} (_txid, _writer, _source, _partition, _offset, _n, a) "
        "select txid, 1, 1, 0, n, 0, n from generate_series(1, {}) as txid, generate_series(1, {}) as n"
    )
    owner.execute(into.format(TABLE, TRANSACTIONS, ROWS))
    until("PostgreSQL has vacuumed and analyzed", lambda: _is_kept(owner), 60)
    pages = _pages(owner)
    plan = _plan(owner, 7)
    # Ranges of 128 pages, in the first and last of which others' rows stand.
    assert _read(plan) < pages / TRANSACTIONS + 3 * 128, f"of {pages} pages: {plan}"

    # What the statistics say after revisions have moved rows about, long enough and in any order.
    restore = (
        "select pg_restore_attribute_stats('schemaname', %s::text, 'relname', %s::text, 'attname', '_txid', "
        "'inherited', false, 'n_distinct', 10::real, 'correlation', 0::real)"
    )
    owner.execute(restore, SINK.home)
    assert _plan(owner, 7)["Node Type"] == "Seq Scan", "now PostgreSQL would read everything"
    for move in (
        lambda conn: delta.discard(conn, SINK.home, 7, [ANOTHER]),
        _replace_with_nothing,
    ):
        with ledger.begin(dry_run=True) as conn:
            move(conn)
            asked = text("select pg_stat_get_xact_tuples_returned(cast(:name as regclass))")
            assert conn.execute(asked, {"name": _name()}).scalar_one() == 0, "no row was returned by a whole scan"
            assert conn.execute(text("show enable_seqscan")).scalar_one() == "on"


def _replace_with_nothing(conn: Connection) -> None:
    stage = (STAGE_SCHEMA, "of_the_revision")
    delta.table(stage, SINK).create(conn)
    SINK.replace(conn, Delta("line", "t", 7, Rows(stage, 7, (ANOTHER,), 0), replaces=True), 7)


def _name() -> str:
    return TABLE.as_string(None)


def _is_kept(conn: psycopg.Connection) -> bool:
    """Whether both have ended. ANALYZE says so before its transaction commits: its statistics must be seen too."""
    asked = (
        "select count(*) from pg_stat_user_tables t join pg_stats s using (schemaname) where relid = %s::regclass "
        "and s.tablename = t.relname and attname = '_txid' and last_autovacuum is not null"
    )
    return conn.execute(asked, [_name()]).fetchone() == (1,)


def _pages(conn: psycopg.Connection) -> int:
    found = conn.execute("select pg_relation_size(%s) / 8192", [_name()]).fetchone()
    assert found is not None
    return found[0]


def _plan(conn: psycopg.Connection, txid: int) -> dict:
    """How the rows of a transaction are found, and what was read for it."""
    asked = sql.SQL("explain (analyze, buffers, format json) select a from {} where _txid = {}")
    conn.execute("set max_parallel_workers_per_gather = 0")
    found = conn.execute(asked.format(TABLE, txid)).fetchone()
    assert found is not None
    return found[0][0]["Plan"]


def _read(plan: dict) -> int:
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
