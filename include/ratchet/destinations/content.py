"""What destinations get: rows as they stand in the ledger's database."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql
from sqlalchemy.dialects import postgresql

from ratchet.errors import LedgerUnreachable, StageMismatch
from ratchet.ledger.work import Relation, counted, name_of
from ratchet.sinks.types import SENT, sql_type
from ratchet.spec.columns import Column
from ratchet.values.withheld import postgres_said

UTF8 = "set local client_encoding to 'UTF8'"
"""What COPY gives and takes has texts in the session's encoding, which is each database's own where nobody says so."""
_AT_A_TIME = 5_000
"""So many rows are in memory."""
_BYTES_AT_A_TIME = 1 << 20


@dataclass(frozen=True)
class Content:
    """Rows as they stand in the ledger's database: here all that readers see up to `until`, in the order of the line,
    or in that of their keys.

    `conn` is the database transaction in which they are read, a snapshot; `relation` the delta table or, of a sink with
    keys, the state.
    """

    conn: psycopg.Connection[Any]
    relation: Relation
    until: int
    fields: tuple[Column, ...]
    """The columns that they were written with, but for those that each row has."""
    added: tuple[Column, ...] = field(default=SENT, kw_only=True)
    """The columns that each row has besides."""
    key: tuple[Column, ...] = field(default=(), kw_only=True)
    """The columns that make a row one of its kind; none where every row is kept."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of the rows."""
        return (*self.fields, *self.added)

    def copied(self, columns: Sequence[sql.Composable]) -> Iterator[bytes | bytearray | memoryview]:
        """These expressions over the columns of the delta table, of each row, as COPY gives them in PostgreSQL's binary
        form; of one step in the order in which they were written. Raises as `selected` does.
        """
        query = self._query(columns, in_order=self._is_sorted)
        statement = sql.SQL("copy ({}) to stdout (format binary)").format(query)
        with self._told(), self.conn.cursor() as cursor:
            cursor.execute(UTF8)
            with cursor.copy(statement) as rows:
                yield from rows
            self._check(cursor.rowcount)

    def as_csv(self, columns: Sequence[sql.Composable]) -> Generator[bytes]:
        """The same as CSV in UTF-8, without a header, whole rows at a time: a null is nothing, an empty text is quoted.
        Floats have as many digits as tell them from all others. Raises as `selected` does.
        """
        query = self._query(columns, in_order=self._is_sorted)
        statement = sql.SQL("copy ({}) to stdout (format csv)").format(query)
        with self._told(), self.conn.cursor() as cursor:
            cursor.execute(UTF8)
            # A setting of the session decides how many digits a float has.
            cursor.execute("set local extra_float_digits = 1")
            with cursor.copy(statement) as rows:
                # A row comes at a time, which is little for whoever reads them.
                held = bytearray()
                for row in rows:
                    held += row
                    if len(held) >= _BYTES_AT_A_TIME:
                        yield bytes(held)
                        held.clear()
                if held:
                    yield bytes(held)
            self._check(cursor.rowcount)

    def selected(self, columns: Sequence[sql.Composable]) -> Generator[tuple[Any, ...]]:
        """These expressions of each row, some at a time; LedgerUnreachable.

        Between two fetches the session is idle, so whoever is stopped there loses it by PostgreSQL's limit for that;
        amid a COPY it would not.
        """
        with self._told(), self.conn.cursor(name="step") as cursor:
            cursor.itersize = _AT_A_TIME
            cursor.execute(self._query(columns, in_order=True))
            found = 0
            for row in cursor:
                found += 1
                yield row
            self._check(found)

    def _query(self, columns: Sequence[sql.Composable], *, in_order: bool) -> sql.Composed:
        query = sql.SQL("select {} from {}").format(sql.SQL(", ").join(columns), self._rows)
        if not in_order:
            return query
        by = [column.name for column in self.key] or ["_txid", "_partition", "_offset", "_n"]
        return query + sql.SQL(" order by ") + sql.SQL(", ").join(map(sql.Identifier, by))

    @property
    def _is_sorted(self) -> bool:
        """Whether whole tables and files get the rows in the order of the line, or of their keys."""
        return True

    @property
    def _rows(self) -> sql.Composed:
        """Where they come from, with the condition for them."""
        # A state has no row above the head.
        return sql.SQL("{} where _txid <= {}").format(sql.Identifier(*self.relation), self.until)

    def _check(self, found: int) -> None:
        """Look whether these are all."""

    @contextmanager
    def _told(self) -> Iterator[None]:
        """An error of the ledger's database is not to be taken for one of the destination's."""
        try:
            yield
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise LedgerUnreachable(f"the ledger did not answer while rows were read: {error}") from error
        except psycopg.Error as error:
            # Its words may quote a value.
            said = postgres_said(error, private=True)
            raise StageMismatch(
                f"{'.'.join(self.relation)}: its rows cannot be read: {said}; nothing was sent"
            ) from error


@dataclass(frozen=True)
class Puts(Content):
    """What has become of the keys that some steps have touched, the last of which is of transaction `until`: the row of
    each as it is after them, or none, where every column but those of the key is null, `_txid` among them.

    Steps come together, since the state is that after the last one of them: a destination is never between two.
    """

    delta: Relation
    txids: tuple[int, ...]
    writers: tuple[int, ...]
    """Who has written the deltas of these transactions that are to be heard of."""
    pipeline: str
    steps: tuple[int, int]
    """Behind the first, up to the last."""

    @property
    def _taken(self) -> sql.Composed:
        """SELECT the keys of deltas that are not there any more, which revisions among the steps have replaced."""
        read = [
            sql.SQL("(key)[{}]::{}").format(number, sql.SQL(_type_of(column)))
            for number, column in enumerate(self.key, 1)
        ]
        return sql.SQL(
            "select {} from ratchet.exchanged join ratchet.steps using (pipeline, txid, revision) where pipeline = {} "
            "and schema = {} and name = {} and step > {} and step <= {}"
        ).format(sql.SQL(", ").join(read), self.pipeline, *self.relation, *self.steps)

    @property
    def _rows(self) -> sql.Composed:
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in self.key)
        return sql.SQL(
            "(select {} from {} where _txid = any({}::bigint[]) and _writer = any({}::bigint[]) union {}) touched "
            "left join {} using ({})"
        ).format(
            names,
            sql.Identifier(*self.delta),
            list(self.txids),
            list(self.writers),
            self._taken,
            sql.Identifier(*self.relation),
            names,
        )


@dataclass(frozen=True)
class Change(Content):
    """The rows of one step, those of the writers that the votes of `until` name, its transaction.

    `replaces` says that they take the place of all rows of the same txid that the destination has; else they are added
    to these. Reading them raises StageMismatch, behind the last, where there are not as many as `rows`, which the votes
    say.
    """

    revision: int
    replaces: bool
    rows: int
    writers: tuple[int, ...]

    @property
    def txid(self) -> int:
        """The transaction."""
        return self.until

    @property
    def _is_sorted(self) -> bool:
        # Each writer has written its rows in order, and to sort millions takes as long as to read them.
        return False

    @property
    def _rows(self) -> sql.Composed:
        return sql.SQL("{} where _txid = {} and _writer = any({}::bigint[])").format(
            sql.Identifier(*self.relation), self.txid, list(self.writers)
        )

    def _check(self, found: int) -> None:
        if found != self.rows:
            raise StageMismatch(
                f"{name_of(self.txid, self.revision)}: {'.'.join(self.relation)} has {counted(found, 'row')} of it, "
                f"and its votes say {self.rows:,}: rows have expired, were erased, or are missing, which `ratchet "
                "verify` tells; nothing was sent; `ratchet attach --anew` sends what is there, `ratchet detach` lets "
                "the line go on"
            )


def _type_of(column: Column) -> LiteralString:
    # A type of our own, and no text of anybody's.
    return cast("LiteralString", sql_type(column.type).compile(dialect=postgresql.dialect()))
