"""Real servers for the tests, on free ports, started once a session and only when a test asks for them."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from ratchet.dev.stack import CHECKOUT, Stack


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
    with Stack(scratch / "postgres", {"postgres"}) as stack:
        yield stack


@pytest.fixture(scope="session")
def kafka(scratch: Path) -> Iterator[Stack]:
    with Stack(scratch / "kafka", {"kafka"}) as stack:
        yield stack


@pytest.fixture(scope="session")
def spark_connect(scratch: Path) -> Iterator[Stack]:
    with Stack(scratch / "connect", {"connect"}) as stack:
        yield stack


@pytest.fixture
def ledger_url(postgres: Stack) -> Iterator[str]:
    """A fresh, empty database."""
    name = f"test_{uuid4().hex[:12]}"
    with psycopg.connect(postgres.ledger_url, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    yield postgres.database_url(name)
    with psycopg.connect(postgres.ledger_url, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


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
