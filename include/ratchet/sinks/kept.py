"""Sinks that keep each row as it was written: nothing is folded, and what readers see is a view up to the head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, FromClause, Table, delete, insert, select

from ratchet.ledger.work import OffsetRange
from ratchet.sinks import delta
from ratchet.sinks.checksum import MODULUS, row_hash
from ratchet.sinks.port import Applied, Check, Delta, Rows, Sink, Voted
from ratchet.sinks.types import SOURCE, WRITER, as_hashed, sql_name
from ratchet.spec.columns import Column

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

    def replace(self, conn: Connection, of: Delta) -> None:
        into, columns = self.rows_table, [c.name for c in self.stored]
        with delta.by_index(conn):
            conn.execute(delete(into).where(into.c._txid == of.txid, *self.mine(into, of.pipeline)))
        copying = insert(into).from_select(columns, delta.named(of.rows, self, *columns))
        delta.counted(of, self, conn.execute(copying.execution_options(preserve_rowcount=True)).rowcount)

    def refold(self, conn: Connection, of: Delta, touched: Table | None, head: int) -> Applied:
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
        found: dict[int, tuple[int, int]] = {}
        for txid, hashed in self._hashes(conn, pipeline, voted, head):
            rows, checksum = found.get(txid, (0, 0))
            found[txid] = (rows + 1, (checksum + hashed) % MODULUS)
        faults: list[str] = []
        for of in voted:
            rows, checksum = found.get(of.txid, (0, 0))
            if rows != of.rows:
                faults.append(f"{self.name}: transaction {of.txid} has {rows:,} rows, its votes say {of.rows:,}")
            elif checksum != of.checksum:
                faults.append(f"{self.name}: transaction {of.txid} has other contents than its votes say")
        return [Check(f"{self.name}: rows and checksums", sum(rows for rows, _ in found.values()), tuple(faults))]

    def _noted(self, of: Delta) -> Applied:
        return {"rows": of.rows.count, "columns": list(map(str, self.declared))}

    def _hashes(self, conn: Connection, pipeline: str, voted: Sequence[Voted], head: int) -> Iterator[tuple[int, int]]:
        """(txid, hash) of every row that readers see, by the columns with which its transaction was written."""
        hidden = tuple(c for c in self.written if c.name.startswith("_"))
        written_with = {of.txid: (*(of.columns or self.declared), *hidden) for of in voted}
        # Also what the spec has no more: migrate drops no column.
        known = {c.name: c for columns in (*written_with.values(), self.written) for c in columns}
        place = {name: at for at, name in enumerate(known)}
        beside = [c for c in self.added if c.name not in (WRITER.name, SOURCE.name)]
        table = self.rows_table
        of = sa.table(table.name, *map(sql_name, (*known.values(), *beside)), schema=table.schema)
        query = select(of.c._txid, *(as_hashed(c, of.c[name]) for name, c in known.items()))
        query = query.where(of.c._txid <= head, *self.mine(of, pipeline))
        for txid, *cells in conn.execution_options(yield_per=5_000).execute(query):
            columns = written_with.get(txid, self.written)
            yield txid, row_hash(columns, [cells[place[c.name]] for c in columns])
