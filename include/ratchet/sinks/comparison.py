"""Rows that a transaction has in a sink beside others that it might have: how many differ, and which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import Connection, Table, and_, func, insert, literal, select, union_all

from ratchet.errors import LedgerUnreachable, Refused
from ratchet.ledger.connection import driver_of
from ratchet.sinks import delta
from ratchet.sinks.binary import COPY_BEGINS, COPY_ENDS
from ratchet.sinks.keys import temporary
from ratchet.sinks.port import Sink
from ratchet.sinks.types import sql_column
from ratchet.sinks.writer import refusals_told
from ratchet.spec.types import Array, String
from ratchet.values.withheld import WITHHELD

EXAMPLES = 5
"""So many rows of each sink and transaction are shown that differ."""


@dataclass(frozen=True)
class Example:
    """A row that differs: the columns that name it, and {column: (before, after)} of those that are not alike.

    A row that is added has nothing before, one that is removed nothing after.
    """

    what: str
    named: dict[str, object]
    columns: dict[str, tuple[object, object]]

    @property
    def withheld(self) -> Example:
        """The same by its position and the names of its columns, without values."""
        named = {name: value if name.startswith("_") else WITHHELD for name, value in self.named.items()}
        return Example(self.what, named, dict.fromkeys(self.columns, (WITHHELD, WITHHELD)))

    def __str__(self) -> str:
        at = ", ".join(f"{name.removeprefix('_')} {value}" for name, value in self.named.items())
        said = ", ".join(f"{name} {before} → {after}" for name, (before, after) in self.columns.items())
        return f"{self.what}: {at}" + (f": {said}" if said and self.what == "changed" else "")


@dataclass(frozen=True)
class SinkDifference:
    """How many rows, or keys, a transaction gave a sink and would give it today; the first of those that differ."""

    sink: str
    counts: str
    """What is counted: `rows` or `keys`."""
    before: int
    after: int
    added: int
    removed: int
    changed: int
    examples: tuple[Example, ...]

    @property
    def is_same(self) -> bool:
        return not (self.added or self.removed or self.changed)

    def __str__(self) -> str:
        if self.is_same:
            return f"{self.sink}: the same {self.before:,} {self.counts}"
        said = f"{self.added:,} added, {self.removed:,} removed, {self.changed:,} changed"
        return f"{self.sink}: {said}; {self.before:,} {self.counts} before, {self.after:,} after"


def make(conn: Connection, sink: Sink, txid: int) -> Table:
    """A temporary table like the sink's delta table; the columns that a writer adds have one value each."""
    given = {"_txid": str(txid), "_writer": "0", "_source": "0", "_pipeline": "''"}
    columns = [sql_column(c) for c in sink.stored]
    for column in columns:
        if column.name in {c.name for c in sink.added}:
            column.server_default = sa.DefaultClause(sa.text(given[column.name]))
    name = delta.index_name("tried", ".".join(sink.table))
    made = Table(name, sa.MetaData(), *columns, prefixes=["TEMPORARY"], postgresql_on_commit="DROP")
    made.create(conn)
    return made


def copy(conn: Connection, into: Table, sink: Sink, parts: Iterable[bytes]) -> None:
    """Fill it with rows of the written columns, as the middle of a binary COPY has them."""
    columns = sql.SQL(", ").join(sql.Identifier(c.name) for c in sink.written)
    statement = sql.SQL("copy {} ({}) from stdin (format binary)").format(sql.Identifier(into.name), columns)
    # What PostgreSQL says of it is not the transform's doing.
    with refusals_told("dry run", sink.name), _lost_told(), driver_of(conn).cursor() as cursor:
        with cursor.copy(statement) as copy:
            copy.write(COPY_BEGINS)
            for part in parts:
                copy.write(part)
            copy.write(COPY_ENDS)


@contextmanager
def _lost_told() -> Iterator[None]:
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        if error.sqlstate is not None and not isinstance(error, psycopg.errors.AdminShutdown):
            raise
        raise LedgerUnreachable(f"dry run: the ledger did not answer: {str(error).strip()}") from error


def compare(conn: Connection, pipeline: str, sink: Sink, tried: Table, txid: int) -> SinkDifference:
    """The rows that a transaction has in the sink beside those of `tried`.

    Refused where these repeat a position, which a vote would not be let to.
    """
    names = list(sink.identity)
    _check_repeated(conn, sink, tried)
    old = _by_bytes(sink, sink.one_each(sink.rows_of(pipeline, txid).subquery("kept")))
    new = _by_bytes(sink, sink.one_each(select(tried).subquery("tried")))
    # EXCEPT takes a null for another, and hashes.
    gone, fresh = (temporary(conn, delta.index_name(side, tried.name), _nullable(sink)) for side in ("gone", "fresh"))
    for into, one, other in ((gone, old, new), (fresh, new, old)):
        conn.execute(insert(into).from_select([c.name for c in sink.written], one.except_(other)))
    sides = union_all(
        select(*(gone.c[n] for n in names), literal(True).label("was")),
        select(*(fresh.c[n] for n in names), literal(False).label("was")),
    ).subquery("sides")
    of = [sides.c[n] for n in names]
    each = select(*of, func.bool_or(sides.c.was).label("was"), func.bool_or(~sides.c.was).label("is")).group_by(*of)
    each = each.subquery("each")
    was, now = each.c["was"], each.c["is"]
    counted = select(
        func.count().filter(and_(now, ~was)), func.count().filter(and_(was, ~now)), func.count().filter(and_(was, now))
    ).select_from(each)
    added, removed, changed = conn.execute(counted).one()
    before, after = (
        conn.execute(select(func.count()).select_from(rows.subquery())).scalar_one() for rows in (old, new)
    )
    shown = conn.execute(select(each).order_by(*(each.c[n] for n in names)).limit(EXAMPLES)).mappings().all()
    examples = tuple(_example(conn, sink, gone, fresh, {n: row[n] for n in names}) for row in shown)
    counts = "keys" if sink.key_names else "rows"
    return SinkDifference(sink.name, counts, before, after, added, removed, changed, examples)


def _check_repeated(conn: Connection, sink: Sink, tried: Table) -> None:
    if sink.key_names:
        return
    places = select(*(tried.c[name] for name in sink.identity)).distinct().subquery("places")
    rows, distinct = (select(func.count()).select_from(of).scalar_subquery() for of in (tried, places))
    repeated = conn.execute(select(rows - distinct)).scalar_one()
    if repeated:
        raise Refused(
            f"{sink.name}: {repeated:,} rows repeat a ({', '.join(sink.identity)}); a transform that makes several "
            "rows of one record numbers them in _n, and must not multiply records in a join"
        )


def _by_bytes(sink: Sink, rows: sa.Select[Any]) -> sa.Select[Any]:
    """The written columns of these rows, texts compared as Arrow does, which a table of one's own may do otherwise."""
    of = rows.subquery()
    texts = {c.name for c in sink.written if isinstance(c.type, String) or c.type == Array(String())}
    return select(*(_collated(c).label(c.name) if c.name in texts else c for c in of.c))


def _collated(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    # PostgreSQL collates arrays of texts too, of which SQLAlchemy does not know.
    return sa.type_coerce(sa.collate(sa.type_coerce(column, sa.Text()), "C"), column.type)


def _nullable(sink: Sink) -> list[sa.Column[Any]]:
    return [sa.Column(c.name, sql_column(c).type) for c in sink.written]


def _example(conn: Connection, sink: Sink, gone: Table, fresh: Table, named: dict[str, object]) -> Example:
    before, after = (_row(conn, side, named) for side in (gone, fresh))
    what = "changed" if before and after else "removed" if before else "added"
    differ = {
        c.name: ((before or {}).get(c.name), (after or {}).get(c.name))
        for c in sink.written
        if c.name not in named and not _alike((before or {}).get(c.name), (after or {}).get(c.name))
    }
    return Example(what, named, differ)


def _row(conn: Connection, of: Table, named: dict[str, object]) -> dict[str, object] | None:
    same = [of.c[n].is_not_distinct_from(sa.cast(value, of.c[n].type)) for n, value in named.items()]
    row = conn.execute(select(of).where(*same)).mappings().one_or_none()
    return dict(row) if row else None


def _alike(one: object, other: object) -> bool:
    """To PostgreSQL one NaN is like another."""
    return one == other or (one != one and other != other)
