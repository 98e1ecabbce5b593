"""One hook around every statement: who runs in a thread of an actor asks it before each statement and each COMMIT."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import psycopg


class Listener(Protocol):
    """What stands between a thread and PostgreSQL; it may wait there, or raise."""

    def statement(self, connection: psycopg.Connection, query: Any) -> Any:
        """Called before a statement; the statement to execute."""

    def commit(self, connection: psycopg.Connection, do: Callable[[], None]) -> None:
        """Called in place of a COMMIT, which is `do`."""


_of_thread = threading.local()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let `listener` stand between this thread and PostgreSQL."""
    _of_thread.listener = listener
    try:
        yield
    finally:
        _of_thread.listener = None


@contextmanager
def hooked() -> Iterator[None]:
    """Psycopg with the hook in it: below SQLAlchemy and below whoever connects by himself."""
    execute, executemany = psycopg.Cursor.execute, psycopg.Cursor.executemany
    commit = psycopg.Connection.commit

    def asked(cursor: psycopg.Cursor, query: Any) -> Any:
        listener = getattr(_of_thread, "listener", None)
        # What a new connection says before its first transaction changes nothing.
        return (
            query if listener is None or cursor.connection.autocommit else listener.statement(cursor.connection, query)
        )

    def hooked_execute(cursor, query, *given, **named):
        return execute(cursor, asked(cursor, query), *given, **named)

    def hooked_executemany(cursor, query, *given, **named):
        return executemany(cursor, asked(cursor, query), *given, **named)

    def hooked_commit(connection):
        listener = getattr(_of_thread, "listener", None)
        if listener is None:
            commit(connection)
        else:
            listener.commit(connection, lambda: commit(connection))

    psycopg.Cursor.execute, psycopg.Cursor.executemany = hooked_execute, hooked_executemany
    psycopg.Connection.commit = hooked_commit
    try:
        yield
    finally:
        psycopg.Cursor.execute, psycopg.Cursor.executemany = execute, executemany
        psycopg.Connection.commit = commit
