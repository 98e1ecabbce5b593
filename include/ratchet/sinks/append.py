"""Append: every row that the transform returns, once."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from hashlib import sha256
from typing import Annotated, ClassVar, Literal

import sqlalchemy as sa
from pydantic import Field, field_validator, model_validator
from sqlalchemy import Connection, MetaData, Table, delete

from ratchet.sinks import delta
from ratchet.sinks.copied import Copied, target_table
from ratchet.sinks.kept import Kept
from ratchet.sinks.port import Sink
from ratchet.sinks.types import POSITION
from ratchet.spec.columns import Column, parse_columns
from ratchet.spec.declaration import sink_columns
from ratchet.spec.destination import DeclaredDestination, To, listed

VACUUM = {
    "autovacuum_vacuum_insert_threshold": 1_000_000,
    "autovacuum_vacuum_insert_scale_factor": 0,
    "autovacuum_vacuum_cost_limit": 2_000,
}
"""After so many rows PostgreSQL vacuums the table, whatever its size, and fast enough for rows that come in bulk.

What it has not come to is read by everyone who looks for a transaction's rows.
"""


class Append(Kept, frozen=True):
    """Every row that the transform returns, once. Readers see a view of the table's name."""

    is_view: ClassVar[bool] = True
    kind: Literal["append"] = "append"
    columns: str
    """The columns of the table, as `"id bigint not null, at timestamp"`."""
    indexes: tuple[str, ...] = ()
    """Indexes of the table behind the view, each a list of columns, as `"customer_id, at"`."""
    existing: bool = False
    """Whether the table is one of your own: each commit copies its rows into it, and you index it yourself."""
    keep: Annotated[timedelta, Field(gt=timedelta(0))] | None = None
    """How long rows are kept: those of a transaction are deleted, all together, when it was committed longer ago."""
    to: To = ()
    """Where the rows go besides, commit by commit: a `Table` in another database, a `KafkaTopic`, a `DeltaLake`,
    `Files`, an `Iceberg`, or a list of such."""
    _check = field_validator("columns")(sink_columns)

    @model_validator(mode="after")
    def _indexes_fit(self) -> Append:
        known = [c.name for c in self.fields]
        for index in self.indexes:
            for name in _names(index):
                if name not in known:
                    raise ValueError(f"indexes: {name!r} is not one of columns: {', '.join(known)}")
        if self.existing and self.indexes:
            raise ValueError("indexes: a table of your own has those that you give it; leave indexes or existing out")
        if self.existing and self.to:
            raise ValueError("to: a table of your own keeps no copy of what goes elsewhere; leave to or existing out")
        for destination in self.destinations:
            misfit = destination.misfit(self.fields, ())
            if misfit:
                raise ValueError(f"to: {misfit}")
        if self.existing and self.keep is not None:
            raise ValueError("keep: from a table of your own you delete rows yourself; leave keep or existing out")
        return self

    @property
    def working(self) -> Sink:
        return Copied(self.name, columns=self.columns, renamed=self.renamed) if self.existing else self

    @property
    def fields(self) -> tuple[Column, ...]:
        """The declared columns."""
        return parse_columns(self.columns)

    @property
    def destinations(self) -> tuple[DeclaredDestination, ...]:
        return listed(self.to)

    @property
    def needed(self) -> tuple[Column, ...]:
        return self.fields

    @property
    def written(self) -> tuple[Column, ...]:
        return (*self.fields, *POSITION)

    @property
    def position(self) -> tuple[Column, ...]:
        return POSITION

    @property
    def rows_table(self) -> Table:
        return _delta(self)

    @property
    def target(self) -> Table:
        """What readers see: the rows, with where they come from and the txid that brought them."""
        return target_table(self.table, self.fields)

    @property
    def renamed_indexes(self) -> dict[str, str]:
        was, table = dict(self.renamed), self.home[1]
        pairs = {
            _index(table, names): _index(table, [was.get(n, n) for n in names]) for names in map(_names, self.indexes)
        }
        return {new: old for new, old in pairs.items() if new != old}

    @property
    def tables(self) -> tuple[Table, ...]:
        return (self.rows_table,)

    @property
    def expires_after(self) -> timedelta | None:
        return self.keep

    def expire(self, conn: Connection, after: int, until: int) -> int:
        of = self.rows_table
        with delta.by_index(conn):
            return conn.execute(delete(of).where(of.c._txid > after, of.c._txid <= until)).rowcount

    @property
    def described(self) -> str:
        kept = "" if self.keep is None else f", kept for {self.keep}"
        return f"every row, once{kept}: `{self.columns}`"


def _names(index: str) -> list[str]:
    return [name.strip() for name in index.split(",")]


def _index(table: str, names: list[str]) -> str:
    """The name of the index of these columns."""
    # `a, b` and a column `a_b` are two indexes.
    mark = "" if len(names) == 1 else f"_{sha256(','.join(names).encode()).hexdigest()[:6]}"
    return delta.index_name(table, f"by_{'_'.join(names)}{mark}")


@cache
def _delta(sink: Append) -> Table:
    """The same object each time, so that SQLAlchemy compiles a statement about it once."""
    table = delta.table(sink.home, sink).to_metadata(MetaData())
    table.dialect_options["postgresql"]["with"] = VACUUM
    # Block ranges suffice: rows of one transaction lie together. A revision's lie among those of later ones, so a range
    # keeps several intervals. VACUUM summarizes them: of the requests that `autosummarize` makes PostgreSQL keeps 256
    # and drops the others, and whoever works one off ends the VACUUM of the same table.
    sa.Index(
        f"{table.name}_txid",
        table.c._txid,
        postgresql_using="brin",
        postgresql_ops={"_txid": "int8_minmax_multi_ops"},
    )
    for index in sink.indexes:
        names = _names(index)
        sa.Index(_index(table.name, names), *(table.c[name] for name in names))
    return table
