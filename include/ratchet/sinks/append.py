"""Append: every row that the transform returns, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa
from pydantic import field_validator
from sqlalchemy import Connection, MetaData, Table, delete, insert, literal, select

from ratchet.ledger.work import OffsetRange, SinkVote, SliceToken
from ratchet.sinks import stage
from ratchet.sinks.checksum import row_hash
from ratchet.sinks.port import Applied, Check, Delta, Sink, Tagged, Voted
from ratchet.sinks.rows import check_rows, insert_rows
from ratchet.sinks.types import POSITION, TXID, as_hashed, sql_column
from ratchet.spec.columns import Column, parse_columns
from ratchet.spec.declaration import sink_columns
from ratchet.spec.types import STRING

if TYPE_CHECKING:
    import pyarrow as pa


class Append(Sink, frozen=True):
    """Every row that the transform returns, once."""

    kind: Literal["append"] = "append"
    columns: str
    _check = field_validator("columns")(sink_columns)

    @property
    def fields(self) -> tuple[Column, ...]:
        """The declared columns."""
        return parse_columns(self.columns)

    @property
    def needed(self) -> tuple[Column, ...]:
        return self.fields

    @property
    def staged(self) -> tuple[Column, ...]:
        return (*self.fields, *POSITION)

    @property
    def target(self) -> Table:
        """The table that readers see: the rows, with where they come from and the txid that brought them."""
        return _target(self)

    @property
    def tables(self) -> tuple[Table, ...]:
        return (self.target,)

    @property
    def rights(self) -> tuple[tuple[str, ...], ...]:
        return (("SELECT", "INSERT", "DELETE"),)

    @property
    def described(self) -> str:
        return f"every row, once: `{self.columns}`"

    def combine(self, rows: pa.Table) -> pa.Table:
        return rows.select([c.name for c in self.staged])

    def fault(
        self, conn: Connection, relation: str, token: SliceToken, vote: SinkVote, ranges: Iterable[OffsetRange]
    ) -> str | None:
        place = tuple(c.name for c in POSITION)
        return stage.position_fault(conn, stage.table(relation, self), token, vote, ranges, place)

    def fold(self, conn: Connection, of: Delta, relation: str, votes: Tagged) -> Applied:
        into, staged = self.target, stage.table(relation, self)
        if of.replaces:
            conn.execute(delete(into).where(into.c._txid == of.txid))
        given = {"_topic": literal(of.topic), "_txid": literal(of.txid, sa.BigInteger)}
        names = [c.name for c in into.columns]
        rows = stage.voted(staged, votes, *(given.get(n, staged.c.get(n)) for n in names))
        return insert_rows(conn, of, self.name, insert(into).from_select(names, rows), votes)

    def txids(self, conn: Connection, pipeline: str) -> Sequence[int]:
        return conn.execute(select(self.target.c._txid).distinct()).scalars().all()

    def verify(self, conn: Connection, pipeline: str, voted: Sequence[Voted], compacted: int) -> list[Check]:
        return [check_rows(self.name, self._hashes(conn), voted)]

    def _hashes(self, conn: Connection) -> Iterator[tuple[int, int]]:
        """(txid, hash) of every row that readers see."""
        c = self.target.c
        query = select(c._txid, *(as_hashed(column, c[column.name]) for column in self.staged))
        for txid, *cells in conn.execution_options(yield_per=5_000).execute(query):
            yield txid, row_hash(self.staged, cells)


@cache
def _target(sink: Append) -> Table:
    """The same object each time, so that SQLAlchemy compiles a statement about it once."""
    schema, name = sink.table
    columns = (*sink.fields, Column("_topic", STRING, False), *POSITION, TXID)
    # Block ranges suffice: rows of one transaction lie together. They make a revision's delete quick.
    by_txid = sa.Index(f"{name}_txid", "_txid", postgresql_using="brin")
    return Table(name, MetaData(), *map(sql_column, columns), by_txid, schema=schema)
