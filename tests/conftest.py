"""Real servers for the tests, on free ports, started once a session and only when a test asks for them."""

from __future__ import annotations

import fcntl
import gc
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TextIO

import psycopg
import pytest
from psycopg import sql

from ratchet.dev.stack import CHECKOUT, Stack
from ratchet.dev.stack.server import Server
from ratchet.spec.pipeline import Pipeline

from .databases import Databases

MEMORY, ROOM = Path("/dev/shm"), 4 * 2**30
"""Where files are held in memory, and how many bytes must be free for a server to have its data there."""


def pytest_configure() -> None:
    """Collect garbage seldom: it was a fifth of the time of a test's process."""
    gc.set_threshold(10_000)


def pytest_collection_finish() -> None:
    """Look for none in what has been imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A directory of this process' own, below the checkout's state but never the demo's."""
    state = CHECKOUT / ".state"
    state.mkdir(exist_ok=True)
    # One at a time, so that nobody takes what another has made and not locked yet for what was left.
    with (state / "tests.lock").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for left in state.glob("test-*"):
            # Of a session that was killed: nobody holds its lock any more.
            if _lock(left) is not None:
                _remove(left)
        made = Path(tempfile.mkdtemp(prefix="test-", dir=state))
        lock = _lock(made)
    yield made
    assert lock is not None, "another test session took this one's directory"
    lock.close()
    _remove(made)


@pytest.fixture(scope="session")
def postgres(scratch: Path) -> Iterator[Stack]:
    """One whose data is in memory where there is room: each test has a database made and dropped, of 300 files.

    Processes are killed here, and the kernel has what they have written. Where servers are at stake as a whole, in the
    acceptance tests, the faults and the campaign, PostgreSQL is as it is for users.
    """

    def unsynchronized(server: Server) -> None:
        server.command += ["-c", "fsync=off", "-c", "full_page_writes=off"]

    home = scratch / "postgres"
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
        home.symlink_to(tempfile.mkdtemp(prefix="ratchet-test-", dir=MEMORY), target_is_directory=True)
    with Stack(home, {"postgres"}, alter=unsynchronized) as stack:
        _hash_once(stack.ledger_url)
        yield stack


@pytest.fixture(scope="session")
def kafka(scratch: Path) -> Iterator[Stack]:
    """One that looks for transactions that are too old twice a second, not every ten seconds."""

    def attentive(server: Server) -> None:
        server.command += ["--override", "transaction.abort.timed.out.transaction.cleanup.interval.ms=500"]

    with Stack(scratch / "kafka", {"kafka"}, alter=attentive) as stack:
        yield stack


@pytest.fixture(scope="session")
def spark_connect(scratch: Path) -> Iterator[Stack]:
    with Stack(scratch / "connect", {"connect"}) as stack:
        yield stack


@pytest.fixture(scope="session")
def databases(postgres: Stack) -> Iterator[Databases]:
    with closing(Databases(postgres)) as made:
        yield made


@pytest.fixture
def migrated() -> tuple[Sequence[Pipeline], str]:
    """The specs whose tables `ledger_url` has from the start, and the SQL that was done before; none, and nothing."""
    return (), ""


@pytest.fixture
def ledger_url(databases: Databases, migrated: tuple[Sequence[Pipeline], str]) -> Iterator[str]:
    """A fresh database, empty but for what `migrated` says."""
    with databases.made(*migrated) as url:
        yield url


@pytest.fixture
def kafka_properties(kafka: Stack) -> dict[str, str]:
    return kafka.kafka


def _hash_once(ledger_url: str) -> None:
    """Let the owner's password be hashed once for a connection, not 4,096 times: a test makes ten and more."""
    with psycopg.connect(ledger_url) as conn:
        conn.execute("set scram_iterations = 1")
        role = sql.Identifier(conn.info.user)
        conn.execute(sql.SQL("alter role {} password {}").format(role, sql.Literal(conn.info.password)))


def _remove(directory: Path) -> None:
    """Remove the directory of a session, and what it has in memory."""
    for link in directory.glob("*"):
        if link.is_symlink():
            shutil.rmtree(link.resolve(), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def _lock(directory: Path) -> TextIO | None:
    """The open file that says a session uses this directory; None if another one holds it."""
    file = (directory / "in-use").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
