"""The port of destinations: what the protocol asks of one, whatever its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from ratchet.errors import LedgerUnreachable, StageMismatch
from ratchet.ledger.work import Relation, counted, name_of
from ratchet.spec.columns import Column
from ratchet.spec.destination import DeclaredDestination

_AT_A_TIME = 5_000
"""So many rows are in memory."""


@dataclass(frozen=True)
class Mark:
    """What a destination says of itself: the number of the step that it took last, and that one's random token."""

    step: int
    token: int

    def __str__(self) -> str:
        return f"step {self.step} ({self.token:016x})"


@dataclass(frozen=True)
class Owner:
    """Whose the rows are: a pipeline and one of its sinks, with the columns that the spec declares."""

    pipeline: str
    sink: str
    fields: tuple[Column, ...]
    renamed: tuple[tuple[str, str], ...] = ()
    """(column, what it was called)."""
    private: bool = False
    """Whether errors must not show values."""

    def __str__(self) -> str:
        return f"{self.pipeline}: {self.sink}"


@dataclass(frozen=True)
class Change:
    """The rows of one step, as they stand in the ledger's database, in the order of their positions.

    `conn` is the database transaction in which they are read. `replaces` says that they take the place of all rows of
    the same txid that the destination has; else they are added to these.
    """

    txid: int
    revision: int
    replaces: bool
    rows: int
    """How many the votes say that there are."""
    conn: psycopg.Connection[Any]
    relation: Relation
    writers: tuple[int, ...]

    def copied(self, columns: Sequence[sql.Composable]) -> Iterator[bytes | bytearray | memoryview]:
        """These expressions over the columns of the delta table, of each row, as COPY gives them in PostgreSQL's binary
        form. Raises as `selected` does.
        """
        statement = sql.SQL("copy ({}) to stdout (format binary)").format(self._query(columns))
        with self._told(), self.conn.cursor() as cursor:
            with cursor.copy(statement) as rows:
                yield from rows
            self._check(cursor.rowcount)

    def selected(self, columns: Sequence[sql.Composable]) -> Generator[tuple[Any, ...]]:
        """These expressions of each row, some at a time.

        Raises StageMismatch, behind the last, where there are more or fewer rows than the votes say, LedgerUnreachable.
        """
        with self._told(), self.conn.cursor(name="step") as cursor:
            cursor.itersize = _AT_A_TIME
            cursor.execute(self._query(columns))
            found = 0
            for row in cursor:
                found += 1
                yield row
            self._check(found)

    def _query(self, columns: Sequence[sql.Composable]) -> sql.Composed:
        return sql.SQL(
            "select {} from {} where _txid = {} and _writer = any({}::bigint[]) order by _partition, _offset, _n"
        ).format(
            sql.SQL(", ").join(columns), sql.Identifier(*self.relation), sql.Literal(self.txid), list(self.writers)
        )

    def _check(self, found: int) -> None:
        if found != self.rows:
            raise StageMismatch(
                f"{name_of(self.txid, self.revision)}: {'.'.join(self.relation)} has {counted(found, 'row')} of it, "
                f"and its votes say {self.rows:,}; `ratchet verify` tells what is missing; nothing was sent"
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """An error of the ledger's database is not to be taken for one of the destination's."""
        try:
            yield
        except psycopg.Error as error:
            raise LedgerUnreachable(f"the ledger did not answer while a step was read: {error}") from error


class Outside(ABC):
    """A destination that is open for one pipeline and sink.

    All that it does raises DestinationUnreachable where it does not answer, after which nobody knows whether the last
    change was made until its mark is read; DestinationRefused where it does not take what it is given.
    """

    @abstractmethod
    def mark(self) -> Mark | None:
        """What it took last; None where it has never been started."""

    @abstractmethod
    def start(self, mark: Mark) -> None:
        """Give it its first mark, if it has none; nothing changes where it has one, whoever's that is."""

    @abstractmethod
    def apply(self, at: Mark, to: Mark, change: Change) -> bool:
        """Take the rows and move the mark, both or neither; False, with nothing changed, where the mark is not `at`."""


Reach = AbstractContextManager[Outside]


class Destination(DeclaredDestination, ABC, frozen=True):
    """A declared destination that knows how it is written."""

    @abstractmethod
    def open(self, owner: Owner, by: str) -> Reach:
        """The destination, by its connection as text: a libpq URL, or Kafka's client properties as JSON."""
