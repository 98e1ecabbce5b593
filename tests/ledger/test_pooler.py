"""A whole line by way of PgBouncer in transaction mode, which knows no prepared statements and keeps no session.

Needs Debian's pgbouncer; a newer one is less strict.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url, text

from ratchet.airflow import waiting
from ratchet.errors import NotMigrated
from ratchet.ledger.connection import Ledger
from ratchet.operate.actions import void
from ratchet.operate.drop import drop
from ratchet.operate.migrate import BUILDING, migrate
from ratchet.operate.snapshot.status import status
from ratchet.operate.upkeep import upkeep
from ratchet.protocol.begin import Begun
from ratchet.protocol.commit import Waits, commit
from ratchet.protocol.votes import cast_vote
from tests.until import until

from .pooler import Pooler
from .staging import (
    SPEC,
    a_try,
    always_active,
    appended,
    committed,
    finish,
    head,
    is_whole,
    planned,
    prepare,
    start,
    state,
)
from .task import Task
from .test_migrate import DELTA, INDEX, indexes, write
from .test_spec_changes import WIDER
from .waiting import TAKEN_ALONG, Counted, InLine, connections, is_listening

pytestmark = pytest.mark.all

SHOWN = """
    select current_setting('statement_timeout'), current_setting('lock_timeout'),
        current_setting('idle_in_transaction_session_timeout'), current_setting('transaction_timeout')
"""
ROLES = ("300ms", "200ms", "2s", "1s")
"""The limits of the role, in the order of SHOWN."""


@pytest.fixture
def migrated():
    """Nothing: the tables are made by way of the pooler."""
    return (), ""


@pytest.fixture
def pooled(ledger_url: str, scratch: Path) -> Iterator[Pooler]:
    """Two sessions for all, the least with which an index can be built."""
    with Pooler(scratch / uuid4().hex, ledger_url, sessions=2) as pooler:
        migrate(pooler.url, [SPEC])
        yield pooler


@pytest.fixture
def ledger(pooled: Pooler) -> Iterator[Ledger]:
    with Ledger(pooled.url) as opened:
        yield opened


@pytest.fixture
def stages(pooled, monkeypatch) -> Task:
    return Task(pooled.url, monkeypatch)


@pytest.fixture
def single(ledger_url: str, scratch: Path) -> Iterator[Pooler]:
    """One session for all, so that whatever one client leaves in it is the next one's."""
    with Pooler(scratch / uuid4().hex, ledger_url, sessions=1) as pooler:
        migrate(pooler.url, [SPEC])
        yield pooler


@pytest.fixture
def limited(single: Pooler, ledger_url: str) -> Pooler:
    """A pooler whose clients have the role's limits."""
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
    database = sql.Identifier(make_url(ledger_url).database or "")
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        for name, value in zip(names, ROLES, strict=True):
            conn.execute(sql.SQL("alter database {} set {} = {}").format(database, sql.Identifier(name), value))
        # The sessions that were without.
        conn.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
    return single


def limits(url: str) -> tuple:
    """Those of a client that sets none, and the session that it has."""
    with psycopg.connect(url) as conn:
        return (conn.execute(SHOWN).fetchone(), conn.execute("select pg_backend_pid()").fetchone())


# A line.


def test_a_whole_line_runs_by_way_of_a_pooler(ledger, pooled, stages, log):
    log.stable = {0: 200, 1: 200}
    first, second, third = (start(ledger, SPEC, log, run) for run in "abc")
    for begun in (second, third):
        for part in begun.slices:
            work = a_try(ledger, begun, part.number)
            cast_vote(ledger, SPEC, work.token, stages(work))
    assert isinstance(commit(ledger, SPEC, second.claim), Waits)
    void(ledger, SPEC, 3, "for the test", "me")
    # A task that breaks off leaves nothing, and its session as it was.
    work = a_try(ledger, first)
    with pytest.raises(KeyboardInterrupt):
        stages(work, between=interrupt)
    finish(ledger, first, stages)
    assert [state(ledger, txid) for txid in (1, 2, 3)] == ["COMMITTED", "COMMITTED", "VOIDED"]
    is_whole(ledger, first, second)
    revision = start(ledger, SPEC, log, "a", clear_number=1)
    finish(ledger, revision, stages)
    assert revision.claim.revision == 1
    for _ in upkeep(ledger, SPEC, always_active):
        pass
    is_whole(ledger, first, second)
    assert status(ledger, SPEC.name).head == head(ledger) == 3
    assert migrate(pooled.url, [SPEC]).before is not None
    drop(ledger, SPEC.name, "for the test", "me")
    assert status(ledger, SPEC.name).head == 0


def interrupt() -> None:
    raise KeyboardInterrupt


def test_twenty_runs_begin_and_commit_at_once_with_two_sessions(ledger, pooled, log):
    log.stable = {0: 1000, 1: 1000}
    spec = SPEC.model_copy(update={"max_in_flight": 20})

    def one(number: int) -> Begun:
        with Ledger(pooled.url) as mine:
            begun = start(mine, spec, log, f"r{number}")
            prepare(mine, spec, begun)
            commit(mine, spec, begun.claim)
            return begun

    with ThreadPoolExecutor(20) as pool:
        begun = sorted(pool.map(one, range(20)), key=lambda b: b.claim.txid)
    assert [b.claim.txid for b in begun] == list(range(1, 21))
    commit(ledger, spec, begun[-1].claim)
    assert appended(ledger) == planned(*begun)
    is_whole(ledger, *begun)


def test_an_index_is_built_by_way_of_a_pooler_and_by_one_migration_alone(ledger, ledger_url, pooled, log):
    committed(ledger, log, "a")
    with ExitStack() as open_:
        # The two sessions of the pooler are the migration's.
        direct = open_.enter_context(Ledger(ledger_url))
        pool, other = open_.enter_context(ThreadPoolExecutor(1)), open_.enter_context(psycopg.connect(ledger_url))
        with direct.begin() as conn:
            conn.execute(text('alter table ratchet_delta."public.rows" add column b text collate "C"'))
        write(other)
        done = pool.submit(migrate, pooled.url, [WIDER])
        until("the index is being built", lambda: indexes(direct).get(INDEX) is False, seconds=30)
        with pytest.raises(NotMigrated, match="another migration builds indexes"):
            migrate(ledger_url, [WIDER])
        other.rollback()
        assert done.result(60).indexes == [(DELTA, INDEX)]
        assert indexes(direct)[INDEX]
        assert migrate(pooled.url, [WIDER]).indexes == []
        with direct.begin() as conn:
            asked = "select count(*) from pg_locks where locktype = 'advisory' and objid = :lock"
            assert conn.execute(text(asked), {"lock": BUILDING % 2**32}).scalar_one() == 0


# What a session keeps.


def test_the_roles_limits_are_not_for_our_transactions_and_stay_for_whoever_has_the_session_next(limited):
    before = limits(limited.url)
    assert before[0] == ROLES
    with Ledger(limited.url) as ledger:
        with ledger.begin() as conn:
            assert conn.execute(text(SHOWN)).one() == ("0", "0", "1min", "0")
            # Longer than a statement or a transaction of the role may take.
            conn.execute(text("select pg_sleep(1.2)"))
        assert limits(limited.url) == before
        with ledger.snapshot() as conn:
            assert conn.execute(text(SHOWN)).one() == ("0", "0", "0", "0")
            conn.execute(text("select pg_sleep(1.2)"))
        assert limits(limited.url) == before
        with ledger.alone() as conn:
            assert conn.execute(text(SHOWN)).one() == ROLES
        assert limits(limited.url) == before
    with psycopg.connect(limited.url) as conn, pytest.raises(psycopg.errors.QueryCanceled):
        conn.execute("select pg_sleep(1.2)")


def test_without_a_pooler_no_limit_is_for_a_session_of_its_own(limited, ledger_url):
    with Ledger(ledger_url) as ledger, ledger.alone() as conn:
        assert conn.execute(text(SHOWN)).one() == ("0", "0", "1min", "0")


def test_a_statement_that_is_repeated_finds_nothing_amiss_in_another_session(ledger, pooled):
    sessions: list[int] = []
    with psycopg.connect(pooled.url, prepare_threshold=None) as other:
        for number in range(14):
            if number % 2:
                # What it has taken, the ledger does not get.
                other.execute("select")
            with ledger.begin() as conn:
                row = conn.execute(text("select pg_backend_pid(), cast(:number as int)"), {"number": number}).one()
            other.rollback()
            sessions.append(row[0])
            assert row[1] == number
    assert len(set(sessions[:7])) == len(set(sessions[7:])) == 2


# The wait for a turn.


def test_a_wait_is_told_of_its_turn_by_the_connection_past_the_pooler(pooled, ledger_url, log, monkeypatch):
    connections(monkeypatch, ledger=(pooled.url, "past"), past=ledger_url)
    monkeypatch.setattr(waiting, "POLL_SECONDS", 600)
    assert InLine(pooled.url, log).until(lambda: is_listening(ledger_url)) == (TAKEN_ALONG, [])


@pytest.mark.parametrize(
    ("direct", "why"),
    [
        (
            None,
            "a pooler stands before PostgreSQL; in the extra of the ledger's connection, name",
        ),
        ("pooled", "a pooler stands before PostgreSQL"),
    ],
    ids=str,
)
def test_a_wait_that_nobody_tells_looks_and_says_so_once(single, log, monkeypatch, direct, why):
    connections(monkeypatch, ledger=(single.url, direct), pooled=single.url)
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(waiting, "FRESH_SECONDS", 0.5)
    connected = Counted(psycopg.AsyncConnection.connect)
    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connected)
    # For more than one connection, each of which looks so often that psycopg would prepare it.
    event, said = InLine(single.url, log).until(lambda: connected.times > 4)
    assert event == TAKEN_ALONG
    (line,) = said
    assert line.startswith("is told of no move, and looks every 0 s instead: ") and why in line
    with psycopg.connect(single.url) as conn:
        assert conn.execute("select pg_listening_channels()").fetchall() == []
