"""Real servers for the tests, on free ports, started once a session and only when a test asks for them."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import pytest

from ratchet.dev.stack import CHECKOUT, Stack
from ratchet.dev.stack.server import Server
from ratchet.spec.pipeline import Pipeline

from .databases import Databases


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
                shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix="test-", dir=state))
        lock = _lock(made)
    yield made
    assert lock is not None, "another test session took this one's directory"
    lock.close()
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(scratch: Path) -> Iterator[Stack]:
    """One that writes to the disk when the kernel likes: each test has a database made and dropped.

    Processes are killed here, and the kernel has what they have written. Where servers are at stake as a whole, in the
    acceptance tests, the faults and the campaign, PostgreSQL is as it is for users.
    """

    def unsynchronized(server: Server) -> None:
        server.command += ["-c", "fsync=off", "-c", "full_page_writes=off"]

    with Stack(scratch / "postgres", {"postgres"}, alter=unsynchronized) as stack:
        yield stack


@pytest.fixture(scope="session")
def kafka(scratch: Path) -> Iterator[Stack]:
    with Stack(scratch / "kafka", {"kafka"}) as stack:
        yield stack


@pytest.fixture(scope="session")
def spark_connect(scratch: Path) -> Iterator[Stack]:
    with Stack(scratch / "connect", {"connect"}) as stack:
        yield stack


@pytest.fixture(scope="session")
def databases(postgres: Stack) -> Databases:
    return Databases(postgres)


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


def _lock(directory: Path) -> TextIO | None:
    """The open file that says a session uses this directory; None if another one holds it."""
    file = (directory / "in-use").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
