"""A committer that is stopped, with or without the lock, tears nothing and holds nobody up for long."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from sqlalchemy import text

from ratchet.ledger.connection import IDLE_SECONDS, Ledger
from ratchet.ledger.work import Claim
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import commit
from tests.until import until

from .staging import SPEC, appended, contents, head, is_waiting, is_whole, moves_of, prepare, start

COMMITTER = """
import os, signal, sys
import ratchet.ledger.connection
from sqlalchemy import event
from ratchet.protocol.commit import commit
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Claim
from tests.ledger.staging import SPEC

url, txid, number, at, idle = sys.argv[1:]
ratchet.ledger.connection.IDLE_SECONDS = int(idle)
stops = ["once"]
with Ledger(url) as ledger:
    @event.listens_for(ledger.engine, "before_cursor_execute")
    def stop(conn, cursor, statement, *_):
        if stops and at in " ".join(statement.split()).lower():
            stops.pop()
            os.kill(os.getpid(), signal.SIGSTOP)
    print(commit(ledger, SPEC, Claim(SPEC.name, int(txid), 1, int(number))).message)
"""
BEFORE_THE_LOCK = "where ratchet.pipelines.pipeline = %(pipeline_1)s::varchar for update"
IN_THE_MIDST = "update ratchet.heads set txid"


class Committer:
    """A process that commits a transaction and stops itself before a statement."""

    def __init__(self, ledger: Ledger, claim: Claim, at: str, idle_seconds: int):
        said = [ledger.url, str(claim.txid), str(claim.number), at, str(idle_seconds)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMITTER, *said], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def stopped(self) -> None:
        """Wait until it stands still."""
        look = psutil.Process(self.process.pid)
        until(
            "the process stands still",
            lambda: look.status() == psutil.STATUS_STOPPED or self.process.poll() is not None,
            60,
        )
        assert self.process.poll() is None, self.process.communicate()

    def go_on(self) -> str:
        """Let it run; what it says in the end."""
        self.process.send_signal(signal.SIGCONT)
        return self.process.communicate(timeout=60)[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def committer(ledger):
    made: list[Committer] = []

    def make(claim: Claim, at: str, idle_seconds: int = IDLE_SECONDS) -> Committer:
        made.append(Committer(ledger, claim, at, idle_seconds))
        made[-1].stopped()
        return made[-1]

    yield make
    for one in made:
        one.kill()


def prepared(ledger, log, run: str) -> Begun:
    begun = start(ledger, SPEC, log, run)
    prepare(ledger, SPEC, begun)
    return begun


def test_a_committer_that_is_stopped_before_the_lock_holds_up_nobody_and_then_finds_it_done(ledger, log, committer):
    first, second = (prepared(ledger, log, run) for run in "ab")
    stopped = committer(first.claim, BEFORE_THE_LOCK)
    assert commit(ledger, SPEC, first.claim).txids == (1, 2)
    third = prepared(ledger, log, "c")
    assert commit(ledger, SPEC, third.claim).txids == (3,)
    before = (contents(ledger, SPEC), moves_of(ledger))
    assert "transaction 1: was committed at" in stopped.go_on()
    assert (contents(ledger, SPEC), moves_of(ledger)) == before
    is_whole(ledger, first, second, third)


def test_a_committer_that_is_stopped_in_the_midst_shows_nothing_and_goes_on_as_the_only_one(ledger, log, committer):
    first, second = (prepared(ledger, log, run) for run in "ab")
    stopped = committer(first.claim, IN_THE_MIDST)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(commit, ledger, SPEC, second.claim)
        until("the other waits for the lock", lambda: is_waiting(ledger))
        # Readers do not wait, and see nothing of what is half done.
        assert (head(ledger), appended(ledger)) == (0, [])
        assert not other.done()
        assert "committed and, waiting right behind it, 2" in stopped.go_on()
        assert other.result().txids == ()
    is_whole(ledger, first, second)


def test_when_a_committer_that_is_stopped_in_the_midst_is_killed_the_others_go_on(ledger, log, committer):
    first, second = (prepared(ledger, log, run) for run in "ab")
    stopped = committer(first.claim, IN_THE_MIDST)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(commit, ledger, SPEC, first.claim)
        until("the other waits for the lock", lambda: is_waiting(ledger))
        assert appended(ledger) == []
        stopped.kill()
        assert other.result().txids == (1, 2)
    is_whole(ledger, first, second)


def test_a_committer_that_stays_stopped_in_the_midst_is_ended_by_postgresql(ledger, log, committer):
    """Nobody has to find and kill it; when it goes on after all, it says that it changed nothing."""
    first, second = (prepared(ledger, log, run) for run in "ab")
    stopped = committer(first.claim, IN_THE_MIDST, idle_seconds=2)
    assert commit(ledger, SPEC, first.claim).txids == (1, 2)
    said = stopped.go_on()
    assert "LedgerUnreachable" in said and "this step has changed nothing" in said
    is_whole(ledger, first, second)


def test_a_reader_may_be_idle_and_a_writer_may_not(ledger):
    query = text("select current_setting('idle_in_transaction_session_timeout')")
    with ledger.begin() as writer, ledger.snapshot() as reader:
        assert (writer.execute(query).scalar_one(), reader.execute(query).scalar_one()) == ("1min", "0")
    with ledger.begin() as writer, ledger.begin() as another:
        assert (writer.execute(query).scalar_one(), another.execute(query).scalar_one()) == ("1min", "1min")
