"""The ledger restored from a backup: what was committed since is gone, while all who took part in it go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from ratchet.dev.stack import Stack
from tests.proof.faults.fault import NotNow
from tests.until import until

Committed = dict[tuple[str, int], int]
"""{(pipeline, partition): offset after the last one that is committed}."""
SECONDS = 60.0
"""The age of the backup when it comes in place of the ledger."""
BACKUP, LOST = "ledger_backup", "ledger_lost"
_COMMITTED = """
    select pipeline, partition, max(until_offset) from ratchet.ranges r join ratchet.heads h using (pipeline)
    where r.txid <= h.txid group by pipeline, partition
"""


class LedgerRestored:
    """A copy of the ledger's database is made, and some time later comes in its place.

    `tell` is given what had been committed in what is gone, before the backup is there. Nobody has a connection to the
    database while it is copied or changed for the other: PostgreSQL wants it so.
    """

    kind, seconds = "ledger restored from a backup", SECONDS

    def __init__(self, stack: Stack, tell: Callable[[Committed], None]):
        self._stack, self._tell = stack, tell
        self._ledger = urlsplit(stack.ledger_url).path.lstrip("/")

    def strike(self) -> None:
        try:
            with self._server() as conn:
                self._close(conn, self._ledger)
                conn.execute(_named("create database {} template {} strategy file_copy", BACKUP, self._ledger))
                self._open(conn, self._ledger)
        except psycopg.Error as error:
            self._give_up()
            raise NotNow(str(error)) from error

    def heal(self) -> None:
        until("the ledger is the backup, if there is one", self._restored, 600)

    def _restored(self) -> bool:
        """Every step is looked for first: another fault may have struck in the midst of the last try."""
        with suppress(psycopg.Error), self._server() as conn:
            if BACKUP in self._databases(conn):
                if LOST not in self._databases(conn):
                    self._close(conn, self._ledger)
                    conn.execute(_named("alter database {} rename to {}", self._ledger, LOST))
                self._open(conn, LOST)
                with psycopg.connect(self._stack.database_url(LOST)) as lost:
                    committed = {(name, partition): offset for name, partition, offset in lost.execute(_COMMITTED)}
                # Before anybody can see that it is gone.
                self._tell(committed)
                conn.execute(_named("alter database {} rename to {}", BACKUP, self._ledger))
            self._open(conn, self._ledger)
            conn.execute(_named("drop database if exists {} with (force)", LOST))
            return True
        return False

    def _give_up(self) -> None:
        """Nothing is different from before."""

        def is_gone() -> bool:
            with suppress(psycopg.Error), self._server() as conn:
                conn.execute(_named("drop database if exists {}", BACKUP))
                self._open(conn, self._ledger)
                return True
            return False

        until("the copy that was not finished is gone", is_gone, 600)

    def _server(self) -> psycopg.Connection:
        return psycopg.connect(self._stack.database_url("postgres"), autocommit=True, connect_timeout=5)

    def _databases(self, conn: psycopg.Connection) -> set[str]:
        return {name for (name,) in conn.execute("select datname from pg_database")}

    def _close(self, conn: psycopg.Connection, database: str) -> None:
        conn.execute(_named("alter database {} with allow_connections false", database))
        conn.execute("select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s", [database])

    def _open(self, conn: psycopg.Connection, database: str) -> None:
        conn.execute(_named("alter database {} with allow_connections true", database))


def _named(statement: str, *names: str) -> sql.Composed:
    return sql.SQL(statement).format(*map(sql.Identifier, names))
