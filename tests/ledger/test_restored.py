"""A ledger that has lost its last commits, while jobs of before still run: a standby that is promoted, and a backup."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select

from ratchet.dev.stack import Stack
from ratchet.dev.stack.postgres import binary
from ratchet.errors import Fenced, Refused
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import writers
from ratchet.ledger.states import State
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.operate.verify import verify
from ratchet.protocol.claims import claim_of, settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote
from tests.until import until

from .staging import SPEC, Log, a_try, appended, committed, do_slice, planned, start, state
from .task import Task

After = Callable[[], str]
"""Takes the ledger away, and gives the URL of the one that comes in its place."""


@contextmanager
def promoted(primary: Stack, home: Path, open_: ExitStack) -> Iterator[After]:
    """A standby that is cut off, and is promoted once the primary is gone."""
    _copy(primary, home, "--write-recovery-conf")
    with Stack(home, {"postgres"}) as standby:
        with psycopg.connect(primary.ledger_url) as conn:
            (at,) = conn.execute("select pg_current_wal_flush_lsn()").fetchone() or ()
        with psycopg.connect(standby.ledger_url, autocommit=True) as conn:
            asked = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
            until("the standby has it all", lambda: conn.execute(asked, [at]).fetchone() == (True,))

    def switch() -> str:
        primary.down()
        standby = open_.enter_context(Stack(home, {"postgres"}))
        with psycopg.connect(standby.ledger_url, autocommit=True) as conn:
            conn.execute("select pg_promote()")
        return standby.ledger_url

    yield switch


@contextmanager
def restored(primary: Stack, home: Path, open_: ExitStack) -> Iterator[After]:
    """A base backup, which is started once the primary is gone."""
    _copy(primary, home)

    def switch() -> str:
        primary.down()
        return open_.enter_context(Stack(home, {"postgres"})).ledger_url

    yield switch


def _copy(primary: Stack, home: Path, *options: str) -> None:
    (home / "postgres").mkdir(parents=True)
    url = primary.ledger_url.rpartition("/")[0]
    command = [binary("pg_basebackup"), "-d", f"{url}/postgres", "-D", home / "postgres" / "data", "-c", "fast"]
    subprocess.run([*command, *options], check=True, capture_output=True)
    shutil.copy(primary.home / "postgres" / "password", home / "postgres")


@pytest.mark.invariant("I6")
@pytest.mark.parametrize("how", [pytest.param(promoted, marks=pytest.mark.all), restored])
def test_what_jobs_of_before_do_is_no_part_of_what_the_same_numbers_mean_now(scratch, monkeypatch, how):
    log, home = Log(), scratch / how.__name__
    with ExitStack() as open_:
        primary = open_.enter_context(Stack(home / "primary", {"postgres"}))
        migrate(primary.ledger_url, [SPEC])
        ledger = open_.enter_context(Ledger(primary.ledger_url))
        log.stable = {0: 20, 1: 0}
        first = committed(ledger, log, "a")
        log.stable = {0: 40, 1: 0}
        second = start(ledger, SPEC, log, "b")
        known = a_try(ledger, second)
        with how(primary, home / "other", open_) as switch:
            # All of this is lost, but not to those who have done it.
            lost_vote = Task(primary.ledger_url, monkeypatch)(known)
            cast_vote(ledger, SPEC, known.token, lost_vote)
            do_slice(ledger, SPEC, second, 1)
            assert isinstance(commit(ledger, SPEC, second.claim), Committed)
            log.stable = {0: 60, 1: 0}
            third = start(ledger, SPEC, log, "c")
            forgotten = a_try(ledger, third)
            # As many writers as PostgreSQL's sequences are ahead of, and more.
            for attempt in range(20):
                forgotten_vote = Task(primary.ledger_url, monkeypatch)(forgotten, attempt=attempt)
            before = _writers(ledger)
            assert len(before) > 40
            url = switch()

        ledger = open_.enter_context(Ledger(url))
        task = Task(url, monkeypatch)
        # Numbers that the ledger does not know, and those of a try whose rows are gone.
        with pytest.raises(Fenced, match="there is no transaction 3"):
            task(forgotten)
        with pytest.raises(Fenced, match="there is no transaction 3"):
            cast_vote(ledger, SPEC, forgotten.token, forgotten_vote)
        with pytest.raises(Refused, match="its rows are gone"):
            cast_vote(ledger, SPEC, known.token, lost_vote)
        assert state(ledger, 2) is State.ABORTED
        with pytest.raises(Fenced, match="its begin has taken no transaction; clear the whole run"):
            claim_of(ledger, Run("dag", "c"))

        # The line goes on, with other records under the same numbers.
        settle(ledger, SPEC, Run("dag", "b"), succeeded=False)
        log.stable = {0: 40, 1: 30}
        begun = [start(ledger, SPEC, log, run) for run in ("d", "e")]
        assert [b.claim.txid for b in begun] == [2, 3]
        assert begun[1].slices != third.slices
        for b in begun:
            for part in b.slices:
                work = a_try(ledger, b, part.number)
                for old, old_vote in ((known, lost_vote), (forgotten, forgotten_vote)):
                    with pytest.raises(Fenced):
                        task(old)
                    with pytest.raises(Fenced):
                        cast_vote(ledger, SPEC, old.token, old_vote)
                vote = task(work)
                assert not _writers(ledger) & before
                cast_vote(ledger, SPEC, work.token, vote)
            assert isinstance(commit(ledger, SPEC, b.claim), Committed)
        assert appended(ledger) == planned(first, *begun)
        faults = [fault for check in verify(ledger, SPEC) for fault in check.faults]
        assert not faults


def _writers(ledger: Ledger) -> set[int]:
    with ledger.begin() as conn:
        return set(conn.execute(select(writers.c.writer)).scalars())
