"""Sinks that keep each row as it was written: nothing is folded, and what readers see is a view up to the head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, FromClause, Table, delete, insert, select
from sqlalchemy.dialects.postgresql import ARRAY

from ratchet.ledger.work import OffsetRange
from ratchet.sinks import catalog, delta, retention
from ratchet.sinks.catalog import Held
from ratchet.sinks.checksum import MODULUS, row_hash
from ratchet.sinks.port import Applied, Check, Delta, Rows, Sink, Touched, Voted
from ratchet.sinks.types import SOURCE, WRITER, as_hashed, sql_type
from ratchet.spec.columns import Column
from ratchet.spec.types import Type

if TYPE_CHECKING:
    import pyarrow as pa


class Kept(Sink, frozen=True):
    """A sink whose delta is the rows themselves."""

    is_view: ClassVar[bool] = True

    @property
    @abstractmethod
    def position(self) -> tuple[Column, ...]:
        """The columns that tell rows of one transaction apart."""

    @property
    @abstractmethod
    def rows_table(self) -> Table:
        """The table that has the committed rows."""

    def mine(self, rows: FromClause, pipeline: str) -> list[ColumnElement[bool]]:
        """The condition for the rows of a pipeline, in a table that several may share."""
        return []

    def combine(self, rows: pa.Table) -> pa.Table:
        return rows.select([c.name for c in self.written])

    def fault(self, conn: Connection, rows: Rows, ranges: Iterable[OffsetRange]) -> str | None:
        return delta.position_fault(conn, self, rows, ranges, [c.name for c in self.position])

    def fold(self, conn: Connection, of: Delta) -> Applied:
        """Nothing is left to do: the rows are there, and are seen once the head has moved."""
        return self._noted(of)

    def replace(self, conn: Connection, of: Delta, head: int) -> None:
        into, columns = self.rows_table, [c.name for c in self.stored]
        with delta.by_index(conn):
            conn.execute(delete(into).where(into.c._txid == of.txid, *self.mine(into, of.pipeline)))
        copying = insert(into).from_select(columns, delta.named(of.rows, self, *columns))
        delta.counted(of, self, conn.execute(copying.execution_options(preserve_rowcount=True)).rowcount)

    def refold(self, conn: Connection, of: Delta, touched: Touched | None, head: int) -> Applied:
        return self._noted(of)

    @property
    def identity(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.position)

    def rows_of(self, pipeline: str, txid: int) -> sa.Select:
        of = self.rows_table
        picked = (of.c[c.name] for c in self.written)
        return select(*picked).where(of.c._txid == txid, *self.mine(of, pipeline))

    def one_each(self, rows: FromClause) -> sa.Select:
        return select(*(rows.c[c.name] for c in self.written))

    def txids(self, conn: Connection, pipeline: str, head: int) -> Sequence[int]:
        of = self.rows_table
        seen = select(of.c._txid).where(of.c._txid <= head, *self.mine(of, pipeline)).distinct()
        return conn.execute(seen).scalars().all()

    def verify(self, conn: Connection, pipeline: str, voted: Sequence[Voted], compacted: int, head: int) -> list[Check]:
        expired = retention.until(conn, pipeline, [self.table])
        there = catalog.columns(conn, catalog.place(self.rows_table))
        alive = [of for of in voted if of.rows and of.txid > expired]
        gone = {of.txid: [c.name for c in self._written_with(of) if c.name not in there] for of in alive}
        found: dict[int, tuple[int, int]] = {}
        for txid, hashed in self._hashes(conn, pipeline, [of for of in voted if not gone.get(of.txid)], there, head):
            rows, checksum = found.get(txid, (0, 0))
            found[txid] = (rows + 1, (checksum + hashed) % MODULUS)
        faults: list[str] = []
        for of in voted:
            rows, checksum = found.get(of.txid, (0, 0))
            if of.txid <= expired:
                if rows:
                    faults.append(f"{self.name}: transaction {of.txid} has {rows:,} rows, and they have expired")
            elif rows != of.rows:
                faults.append(f"{self.name}: transaction {of.txid} has {rows:,} rows, its votes say {of.rows:,}")
            elif gone.get(of.txid):
                column = gone[of.txid][0]
                faults.append(f"{self.name}: transaction {of.txid} was written with column {column}, which is gone")
            elif checksum != of.checksum:
                faults.append(f"{self.name}: transaction {of.txid} has other contents than its votes say")
        return [Check(f"{self.name}: rows and checksums", sum(rows for rows, _ in found.values()), tuple(faults))]

    def _noted(self, of: Delta) -> Applied:
        return {"rows": of.rows.count, "columns": list(map(str, self.declared))}

    def _written_with(self, of: Voted) -> tuple[Column, ...]:
        """The columns that a transaction's rows were written with, hidden ones behind the others."""
        hidden = (c for c in self.written if c.name.startswith("_"))
        return (*(of.columns if of.columns and of.rows else self.declared), *hidden)

    def _hashes(
        self, conn: Connection, pipeline: str, voted: Sequence[Voted], there: Mapping[str, Held], head: int
    ) -> Iterator[tuple[int, int]]:
        """(txid, hash) of every row that readers see, by the columns with which its transaction was written.

        A row of a transaction that is not among these counts by the columns of the spec.
        """
        written_with = {of.txid: self._written_with(of) for of in voted}
        # Also what the spec has no more, as migrate drops no column, or has of another type, as a user's own table may.
        known: dict[tuple[str, Type], list[int]] = {(c.name, c.type): [] for c in self.written}
        for txid, columns in written_with.items():
            for c in columns:
                known.setdefault((c.name, c.type), []).append(txid)
        place = {of: at for at, of in enumerate(known)}
        beside = [c for c in self.added if c.name not in (WRITER.name, SOURCE.name)]
        table = self.rows_table
        names = dict.fromkeys([*(name for name, _ in known), *(c.name for c in beside)])
        of = sa.table(table.name, *map(sa.column, names), schema=table.schema)
        cells = (_cell(conn, of, Column(*each), there, txids) for each, txids in known.items())
        query = select(of.c._txid, *cells)
        query = query.where(of.c._txid <= head, *self.mine(of, pipeline))
        for txid, *cells in conn.execution_options(yield_per=5_000).execute(query):
            columns = written_with.get(txid, self.written)
            yield txid, row_hash(columns, [cells[place[c.name, c.type]] for c in columns])


def _cell(
    conn: Connection, of: FromClause, column: Column, there: Mapping[str, Held], txids: Sequence[int]
) -> ColumnElement:
    """A column as it was written, by these transactions, where the table has it of another type."""
    held, kind = of.c[column.name], sql_type(column.type)
    if column.name not in there:
        return sa.null()
    if catalog.is_type(conn, there[column.name], kind):
        return as_hashed(column, sa.type_coerce(held, kind))
    mine = of.c._txid == sa.any_(sa.cast(list(txids), ARRAY(sa.BigInteger)))
    return sa.case((mine, as_hashed(column, sa.cast(held, kind))))
