"""A kind of destination that is no part of ratchet: a SQLite file, with whole numbers, and texts for all else."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from typing import ClassVar, Literal

from psycopg import sql

from ratchet.destinations.content import Change, Content, Puts
from ratchet.destinations.port import NONE, Destination, Mark, Outside, Owner, Registries
from ratchet.errors import DestinationUnreachable
from ratchet.spec.columns import Column
from ratchet.spec.destination import ReachedBy
from ratchet.spec.types import Integer


class SqliteFile(Destination, frozen=True):
    """A SQLite file with a table `sent`; its name is a path that every process of Airflow sees."""

    can_revise: ClassVar[bool] = True
    kind: Literal["sqlite_file"] = "sqlite_file"

    @property
    def reached_by(self) -> ReachedBy:
        return "path"

    @property
    def connection(self) -> None:
        return None

    @property
    def address(self) -> str:
        return f"sqlite:{self.name}"

    def misfit(self, fields: Sequence[Column], key: Sequence[Column]) -> str | None:
        return None

    @contextmanager
    def open(self, owner: Owner, by: str, registries: Registries = NONE) -> Generator[Outside]:
        with closing(sqlite3.connect(self.name, timeout=60, isolation_level=None)) as db:
            db.execute("create table if not exists mark (step integer, token integer)")
            columns = ", ".join(f"{column.name} {_affinity(column)}" for column in owner.columns)
            db.execute(f"create table if not exists sent ({columns})")
            yield SqliteOutside(db, owner, self.address)


class SqliteOutside(Outside):
    """The file, open; each change is a transaction of SQLite, of which there is one at a time."""

    def __init__(self, db: sqlite3.Connection, owner: Owner, address: str):
        self._db, self._owner, self._address = db, owner, address

    def mark(self) -> Mark | None:
        found = self._db.execute("select step, token from mark").fetchone()
        return Mark(*found) if found else None

    def start(self, mark: Mark) -> None:
        with self._changing():
            if self.mark() is None:
                self._move(mark)

    def apply(self, at: Mark, to: Mark, change: Change | Puts) -> bool:
        with self._changing():
            if self.mark() != at:
                return False
            if isinstance(change, Puts):
                self._put(change)
            else:
                if change.replaces:
                    self._db.execute("delete from sent where _txid = ?", [str(change.txid)])
                self._add(change)
            self._move(to)
        return True

    def restart(self, at: Mark | None, to: Mark, content: Content | None) -> bool:
        with self._changing():
            if self.mark() != at:
                return False
            if content is not None:
                self._db.execute("delete from sent")
                self._add(content)
            self._move(to)
        return True

    def _add(self, content: Content) -> None:
        columns = [sql.SQL("{}::text").format(sql.Identifier(column.name)) for column in content.columns]
        self._db.executemany(self._insert, content.selected(columns))

    def _put(self, puts: Puts) -> None:
        """Of each key the row that it has now takes the place of the one that it had."""
        columns = [sql.SQL("{}::text").format(sql.Identifier(column.name)) for column in (*puts.key, *puts.columns)]
        keys = " and ".join(f"{column.name} = ?" for column in puts.key)
        txid = [column.name for column in puts.columns].index("_txid")
        for row in puts.selected(columns):
            key, values = row[: len(puts.key)], row[len(puts.key) :]
            self._db.execute(f"delete from sent where {keys}", key)  # noqa: S608
            if values[txid] is not None:
                self._db.execute(self._insert, values)

    @property
    def _insert(self) -> str:
        names = [column.name for column in self._owner.columns]
        return f"insert into sent ({', '.join(names)}) values ({', '.join('?' * len(names))})"  # noqa: S608

    def _move(self, to: Mark) -> None:
        self._db.execute("delete from mark")
        self._db.execute("insert into mark values (?, ?)", [to.step, to.token])

    @contextmanager
    def _changing(self) -> Generator[None]:
        """All of it, or nothing."""
        try:
            self._db.execute("begin immediate")
            try:
                yield
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")
        except sqlite3.OperationalError as error:
            raise DestinationUnreachable(f"{self._owner}: {self._address}: {error}") from error


def _affinity(column: Column) -> str:
    """What SQLite makes of the texts that are given to a column."""
    return "integer" if isinstance(column.type, Integer) else "text"
