"""The connection to the ledger's database, and the errors that tell how a database transaction ended."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from sqlalchemy import (
    Connection,
    Engine,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, InternalError, OperationalError, PendingRollbackError, ProgrammingError

from ratchet.errors import ConnectionsTaken, LedgerUnreachable, Locked, NotMigrated, OutcomeUnknown, SettingsError
from ratchet.ledger import crowded

_UNDEFINED_TABLE = "42P01"
_NOT_ALLOWED = "42501"
_HAS_TRANSACTION_TIMEOUT = 170_000
_LOCK_NOT_AVAILABLE = "55P03"
_IDLE = "idle_in_transaction_session_timeout"
_LOST_BEFORE = "8s2b"
"""SQLAlchemy's code for a statement on a connection that an earlier statement has lost."""

PATIENCE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's settings by which both ends learn that the other one's machine is gone, within half a minute."""

BY_A_POOLER: dict[str, Any] = {"prepare_threshold": None}
"""psycopg's settings for a connection behind which each database transaction may have another session: what is prepared
in one is not there in the next."""

IDLE_SECONDS = 60
"""So long a writer may ask nothing within a database transaction; then PostgreSQL ends its session, and frees what a
process that is stopped has locked."""


class Ledger:
    """One database that holds the ledger and the sinks beside it.

    `url` is a libpq URL, `name` what PostgreSQL shows of its sessions. Connections are made when they are needed and
    answer within 10 s or not at all; where a limit on their number is reached, one is waited for, unless not `waits`.
    With `lock_seconds` no lock is waited for any longer, and Locked is raised.
    """

    def __init__(self, url: str, name: str = "ratchet", *, waits: bool = True, lock_seconds: float = 0):
        self.url, self._lock_seconds = url, lock_seconds
        try:
            self.engine = create_engine(
                make_url(url).set(drivername="postgresql+psycopg"),
                pool_size=2,
                pool_pre_ping=True,
                # No sink has such columns, and each new engine would look for their type.
                use_native_hstore=False,
                connect_args={"application_name": name, **BY_A_POOLER, **PATIENCE},
            )
        except (ArgumentError, ValueError):
            # Not shown: it may hold a password.
            raise SettingsError("the ledger's URL cannot be read; write postgresql://USER@HOST/DATABASE") from None
        if waits:
            event.listen(self.engine, "do_connect", crowded.connect)

    @contextmanager
    def begin(self, *, dry_run: bool = False) -> Generator[Connection]:
        """One database transaction: committed when the block ends, rolled back when it raises, or when `dry_run`.

        Raises LedgerUnreachable when the connection cannot be made, or is lost before the commit: then nothing of
        the block has taken effect; ConnectionsTaken where all are in use. Raises OutcomeUnknown when it is lost in the
        commit: the state in the ledger tells.
        """
        with self._begin(self.engine, IDLE_SECONDS) as conn:
            yield conn
            if dry_run:
                conn.rollback()

    @contextmanager
    def alone(self) -> Generator[Connection]:
        """A session in which each statement is a database transaction of its own, for those that can be in no other.

        No limit of its role is for it, unless a pooler stands between, where its settings would be the next client's.
        Raises LedgerUnreachable when it cannot be had, or is lost.
        """
        try:
            with self.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as conn:
                if is_direct(driver_of(conn).info, conn.execute(text(BACKEND)).scalar_one()):
                    bound(conn, IDLE_SECONDS, "session")
                yield conn
        except OperationalError as error:
            if error.connection_invalidated or error.statement is None:
                raise self._lost(" ".join(str(error.orig).split()), in_commit=False) from error
            raise

    @contextmanager
    def snapshot(self) -> Generator[Connection]:
        """One database transaction that only reads, and sees one moment throughout."""
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        # A reader holds up nobody, and may take its time between two queries.
        with self._begin(self.engine.execution_options(**options), 0) as conn:
            yield conn

    @contextmanager
    def _begin(self, engine: Engine, idle_seconds: int) -> Generator[Connection]:
        in_commit = False
        try:
            with engine.begin() as conn:
                bound(conn, idle_seconds, "local", self._lock_seconds)
                yield conn
                in_commit = not conn.invalidated
        except (OperationalError, InternalError) as error:
            # A session that was idle for too long ends with an InternalError.
            if error.connection_invalidated or error.statement is None:
                raise self._lost(" ".join(str(error.orig).split()), in_commit) from error
            if self._lock_seconds and getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                raise Locked(
                    f"somebody has had a lock for more than {self._lock_seconds:g} s; nothing was changed"
                ) from error
            raise
        except PendingRollbackError as error:
            # Whoever went on after a statement that failed learns here that it was the connection that was lost.
            if error.code == _LOST_BEFORE:
                raise self._lost("the connection was lost", in_commit) from error
            raise
        except ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) == _UNDEFINED_TABLE:
                missing = str(error.orig).splitlines()[0]
                raise NotMigrated(f"{missing}; run `ratchet migrate`") from error
            if getattr(error.orig, "sqlstate", None) == _NOT_ALLOWED:
                raise SettingsError(
                    f"{str(error.orig).splitlines()[0]} to role {self.engine.url.username}; as the owner, run "
                    "`ratchet migrate --pipeline-role …` for it, or use that role's connection"
                ) from error
            raise

    def _lost(self, why: str, in_commit: bool) -> LedgerUnreachable:
        where = self.engine.url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
        if in_commit:
            return OutcomeUnknown(
                f"the ledger at {where} was lost in a commit: {why}; whether this step took effect is unknown until "
                "somebody looks; call again: what was done is found, and the rest is done"
            )
        if crowded.is_crowded(why):
            return ConnectionsTaken(
                f"the ledger at {where} gives no further connection: {why}; this step has changed nothing; raise that "
                "limit, or let fewer Spark tasks work at once, then try again"
            )
        return LedgerUnreachable(
            f"the ledger at {where} does not answer: {why}; this step has changed nothing; "
            "check that PostgreSQL runs and that the ledger's connection is right, then try again"
        )

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def be_patient(conn: Connection) -> None:
    """Let this database transaction be idle for as long as its process takes for its next rows: it holds nobody up."""
    _set(conn, "local", {_IDLE: "0"})


def be_quick(conn: Connection) -> None:
    """Let it be idle no longer than any other: it is about to lock what others need."""
    _set(conn, "local", {_IDLE: f"{IDLE_SECONDS}s"})


def bound(conn: Connection, idle_seconds: int, scope: str, lock_seconds: float = 0) -> None:
    """Say how long a writer may be idle, and that no limit of its role is for it: in this database transaction, since
    the session may be somebody else's after it, or in the session.

    A fold takes as long as its rows do, and whoever waits for a turn waits as long as the commit before. Moments come
    in the one style that the driver reads, whatever the database shows them in.
    """
    settings = {_IDLE: f"{idle_seconds}s", "statement_timeout": "0", "lock_timeout": f"{lock_seconds}s"}
    if driver_of(conn).info.server_version >= _HAS_TRANSACTION_TIMEOUT:
        settings["transaction_timeout"] = "0"
    _set(conn, scope, {**settings, "datestyle": "ISO"})


def _set(conn: Connection, scope: str, settings: dict[str, str]) -> None:
    # Several at once, and without parameters: the price of a round trip is paid by every database transaction.
    conn.exec_driver_sql("; ".join(f"set {scope} {name} = '{value}'" for name, value in settings.items()))


BACKEND = "select pg_backend_pid()"
"""Asks for the number of the process that serves the session."""


def is_direct(info: psycopg.ConnectionInfo, backend: int) -> bool:
    """Whether the session is PostgreSQL's own, by the answer to BACKEND: a pooler gives its clients numbers of its own,
    since a client cancels by them and has one session after another.
    """
    return info.backend_pid == backend


def driver_of(conn: Connection) -> psycopg.Connection[Any]:
    """The connection as psycopg has it."""
    return cast("psycopg.Connection[Any]", conn.connection.driver_connection)
