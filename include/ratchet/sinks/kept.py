"""Sinks that keep each row as it was written: nothing is folded, and what readers see is a view up to the head."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, FromClause, Select, Table, delete, insert, select

from ratchet.ledger.faults import Faults
from ratchet.ledger.work import OffsetRange
from ratchet.sinks import catalog, delta, erasures, retention
from ratchet.sinks.catalog import Held
from ratchet.sinks.checksum import MODULUS, row_hash
from ratchet.sinks.port import Applied, Check, Delta, Rows, Sink, Stretch, Taken, Touched, Voted
from ratchet.sinks.types import SOURCE, WRITER, as_hashed, sql_type
from ratchet.spec.columns import Column
from ratchet.spec.types import Type

if TYPE_CHECKING:
    import pyarrow as pa


_AT_A_TIME = 5_000
"""So many rows are in memory when all are read."""
_TOLD_EVERY = 1_000_000


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
        return self.noted(of)

    def cannot_add_to(self, before: Voted) -> str | None:
        """A transaction's rows are verified by the columns with which all of them were written."""
        then = before.columns
        if not before.rows or then is None or _kinds(then) == _kinds(self.declared):
            return None
        said, now = (", ".join(map(str, columns)) for columns in (then, self.declared))
        return f"{self.name} was written with columns {said}, and has {now} today; replay the transaction instead"

    def replace(self, conn: Connection, of: Delta, head: int) -> Taken | None:
        into, columns = self.rows_table, [c.name for c in self.stored]
        taken = self._give_way(conn, of)
        copying = insert(into).from_select(columns, delta.named(of.rows, self, *columns))
        delta.counted(of, self, conn.execute(copying.execution_options(preserve_rowcount=True)).rowcount)
        return taken

    def _give_way(self, conn: Connection, of: Delta) -> Taken | None:
        """Delete the older rows that a revision replaces."""
        if of.release is not None:
            return
        into = self.rows_table
        with delta.by_index(conn):
            conn.execute(delete(into).where(into.c._txid == of.txid, *self.mine(into, of.pipeline)))

    def refold(self, conn: Connection, of: Delta, left: Touched | Taken | None, head: int) -> Applied:
        return self.noted(of)

    @property
    def identity(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.position)

    def rows_of(self, pipeline: str, txid: int) -> sa.Select:
        of = self.rows_table
        picked = (of.c[c.name] for c in self.written)
        return select(*picked).where(of.c._txid == txid, *self.mine(of, pipeline))

    def one_each(self, rows: FromClause) -> sa.Select:
        return select(*(rows.c[c.name] for c in self.written))

    def txids(self, pipeline: str, since: int, head: int) -> Select[tuple[int]]:
        of = self.rows_table
        seen = select(of.c._txid).where(of.c._txid <= head, *self.mine(of, pipeline)).distinct()
        return seen.where(of.c._txid >= since) if since > 1 else seen

    def txids_with(self, conn: Connection, pipeline: str, key: Mapping[str, str], head: int) -> list[int]:
        """The transactions up to the head that have rows in which the columns have these values, in order."""
        of = self.rows_table
        mine = (of.c._txid <= head, *self.mine(of, pipeline), *delta.having(self, key))
        return list(conn.execute(select(of.c._txid).where(*mine).distinct().order_by(of.c._txid)).scalars())

    def erase(
        self, conn: Connection, of: Stretch, voted: Iterable[Voted], key: Mapping[str, str]
    ) -> dict[int, tuple[int, int]]:
        """Delete such rows of a stretch; {txid: (how many, the sum of their hashes)}."""
        schemas, there = _Schemas(of, self.written), catalog.columns(conn, catalog.place(self.rows_table))
        for one in voted:
            schemas.add(one, self._written_with(one))
        gone: dict[int, tuple[int, int]] = {}
        for txid, hashed in self._hashes(conn, of, schemas, there, delta.having(self, key)):
            rows, checksum = gone.get(txid, (0, 0))
            gone[txid] = rows + 1, (checksum + hashed) % MODULUS
        rows = self.rows_table
        mine = (rows.c._txid.between(of.first, of.last), *self.mine(rows, of.pipeline), *delta.having(self, key))
        conn.execute(delete(rows).where(*mine))
        return gone

    def sum_of(self, conn: Connection, pipeline: str, txid: int, which: Iterable[ColumnElement[bool]]) -> Taken:
        """How many such rows of a transaction there are, and the sum of their hashes, by the columns of the spec."""
        of = Stretch(pipeline, txid, txid, 0, lambda _: None)
        there = catalog.columns(conn, catalog.place(self.rows_table))
        rows, checksum = 0, 0
        for _, hashed in self._hashes(conn, of, _Schemas(of, self.written), there, which):
            rows, checksum = rows + 1, (checksum + hashed) % MODULUS
        return Taken(rows, checksum)

    def rows_at(self, pipeline: str, txid: int, partition: int, offset: int) -> sa.Select:
        of = self.rows_table
        return self.rows_of(pipeline, txid).where(of.c._partition == partition, of.c._offset == offset)

    def made_by(self, pipeline: str, key: Mapping[str, str], head: int) -> sa.Select:
        of = self.rows_table
        mine = (of.c._txid <= head, *self.mine(of, pipeline), *delta.having(self, key))
        return select(of.c._txid, of.c._partition, of.c._offset).where(*mine)

    def verify(self, conn: Connection, of: Stretch, voted: Iterable[Voted]) -> Check:
        expected, schemas = _Sums(of), _Schemas(of, self.written)
        for one in voted:
            schemas.add(one, self._written_with(one))
            expected.add(one.txid, one.rows, one.checksum)
        for txid, (rows, checksum) in erasures.of(conn, of.pipeline, self.table, of.first, of.last).items():
            expected.add(txid, -rows, -checksum)
        there = catalog.columns(conn, catalog.place(self.rows_table))
        found = _Sums(of)
        for number, (txid, hashed) in enumerate(self._hashes(conn, of, schemas, there), 1):
            found.add(txid, 1, hashed)
            if not number % _TOLD_EVERY:
                of.say(f"{of.pipeline}: {self.name}, {number:,} rows of transactions {of.first:,} to {of.last:,}")
        faults = Faults()
        expired = retention.until(conn, of.pipeline, [self.table])
        gone = [next((c.name for c in columns if c.name not in there), None) for columns in schemas.known]
        for place, schema in enumerate(schemas.of):
            txid, rows = of.first + place, found.rows[place]
            where = f"{self.name}: transaction {txid}"
            if not schema:
                continue
            if txid <= expired:
                if rows:
                    faults.add(f"{where} has {rows:,} rows, and they have expired")
            elif rows != expected.rows[place]:
                faults.add(f"{where} has {rows:,} rows, its votes say {expected.rows[place]:,}")
            elif rows and gone[schema]:
                faults.add(f"{where} was written with column {gone[schema]}, which is gone")
            elif found.checksums[place] != expected.checksums[place]:
                faults.add(f"{where} has other contents than its votes say")
        return Check(f"{self.name}: rows and checksums", sum(found.rows), tuple(faults.lines))

    def _written_with(self, of: Voted) -> tuple[Column, ...]:
        """The columns that a transaction's rows were written with, hidden ones behind the others."""
        hidden = (c for c in self.written if c.name.startswith("_"))
        return (*(of.columns if of.columns and of.rows else self.declared), *hidden)

    def _hashes(
        self,
        conn: Connection,
        of: Stretch,
        schemas: _Schemas,
        there: Mapping[str, Held],
        which: Iterable[ColumnElement[bool]] = (),
    ) -> Iterator[tuple[int, int]]:
        """(txid, hash) of every such row that readers see, by the columns with which its transaction was written.

        A row of a transaction of which nothing was voted counts by the columns of the spec.
        """
        # Also what the spec has no more, as migrate drops no column, or has of another type, as a user's own table may.
        known = schemas.columns
        place = {column: at for at, column in enumerate(known)}
        cells_of = [[place[c.name, c.type] for c in columns] for columns in schemas.known]
        beside = [c for c in self.added if c.name not in (WRITER.name, SOURCE.name)]
        table = self.rows_table
        names = dict.fromkeys([*(name for name, _ in known), *(c.name for c in beside)])
        rows = sa.table(table.name, *map(sa.column, names), schema=table.schema)
        cells = (_cell(conn, rows, Column(*each), there, runs) for each, runs in known.items())
        query = select(rows.c._txid, *cells)
        query = query.where(rows.c._txid.between(of.first, of.last), *self.mine(rows, of.pipeline), *which)
        for txid, *cells in conn.execute(query, execution_options={"yield_per": _AT_A_TIME}):
            schema = schemas.of[txid - of.first]
            yield txid, row_hash(schemas.known[schema], [cells[at] for at in cells_of[schema]])


def _kinds(columns: Iterable[Column]) -> list[tuple[str, Type]]:
    return [(column.name, column.type) for column in columns]


Run = tuple[int, int]
"""Transactions from the first to the last one."""


def _cell(
    conn: Connection, of: FromClause, column: Column, there: Mapping[str, Held], runs: Sequence[Run]
) -> ColumnElement:
    """A column as it was written, by these transactions, where the table has it of another type."""
    held, kind = of.c[column.name], sql_type(column.type)
    if column.name not in there:
        return sa.null()
    if catalog.is_type(conn, there[column.name], kind):
        return as_hashed(column, sa.type_coerce(held, kind))
    mine = sa.or_(sa.false(), *(of.c._txid.between(*run) for run in runs))
    return sa.case((mine, as_hashed(column, sa.cast(held, kind))))


class _Schemas:
    """With which columns the rows of each transaction of a stretch were written: two bytes for each of them."""

    def __init__(self, of: Stretch, written: tuple[Column, ...]):
        self._first = of.first
        self.known: list[tuple[Column, ...]] = [written]
        """The first are those of transactions of which nothing was voted."""
        self._numbers: dict[tuple[Column, ...], int] = {}
        self.of = array("H", bytes(2 * (of.last - of.first + 1)))
        """The place in `known`, at the transaction's place in the stretch."""
        self._runs: list[tuple[int, Run]] = []

    def add(self, voted: Voted, columns: tuple[Column, ...]) -> None:
        """The next transaction, in the order of txids."""
        number = self._numbers.setdefault(columns, len(self.known))
        if number == len(self.known):
            self.known.append(columns)
        self.of[voted.txid - self._first] = number
        if not voted.rows:
            return
        last, run = self._runs[-1] if self._runs else (0, (0, 0))
        if last == number:
            self._runs[-1] = (number, (run[0], voted.txid))
        else:
            self._runs.append((number, (voted.txid, voted.txid)))

    @property
    def columns(self) -> dict[tuple[str, Type], list[Run]]:
        """{column: the transactions that have written rows with it}, those of the spec first."""
        found: dict[tuple[str, Type], list[Run]] = {(c.name, c.type): [] for c in self.known[0]}
        for columns in self.known:
            for c in columns:
                found.setdefault((c.name, c.type), [])
        for number, run in self._runs:
            for c in self.known[number]:
                found[c.name, c.type].append(run)
        return found


class _Sums:
    """How many rows each transaction of a stretch has, and the sum of their hashes."""

    def __init__(self, of: Stretch):
        self._first = of.first
        transactions = of.last - of.first + 1
        self.rows, self.checksums = array("q", bytes(8 * transactions)), array("Q", bytes(8 * transactions))

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, txid: int, rows: int, checksum: int) -> None:
        place = txid - self._first
        self.rows[place] += rows
        self.checksums[place] = (self.checksums[place] + checksum) % MODULUS
