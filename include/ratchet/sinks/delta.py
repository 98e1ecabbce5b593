"""Delta tables: rows as Spark's tasks have written them, each with the txid and the writer that it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, Table, cast, delete, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY

from ratchet.errors import StageMismatch
from ratchet.ledger.schema import dead_letter_deltas
from ratchet.ledger.work import OffsetRange, Relation
from ratchet.sinks.port import Delta, Rows, Sink
from ratchet.sinks.types import TXID, WRITER, sql_column, sql_type
from ratchet.spec.declaration import LONGEST_NAME


@lru_cache(maxsize=256)
def table(relation: Relation, sink: Sink) -> Table:
    """A table with the columns of the sink's delta table: itself, or a stage.

    The same object while it is in use, so that SQLAlchemy compiles a statement about it once; revisions have new ones.
    """
    schema, name = relation
    return Table(name, sa.MetaData(), *map(sql_column, sink.stored), schema=schema)


def index_name(table: str, ending: str) -> str:
    """The name of an index; where it would be longer than PostgreSQL's names, a hash stands for its end."""
    name = f"{table}_{ending}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}_{digest}"


def named(rows: Rows, sink: Sink, *columns: str) -> Select[Any]:
    """SELECT these columns, or all that are written, of exactly the rows of these writers."""
    of = table(rows.relation, sink)
    picked = [of.c[name] for name in columns or [c.name for c in sink.written]]
    return select(*picked).where(*_are(of, rows))


def having(sink: Sink, key: Mapping[str, str]) -> list[ColumnElement[bool]]:
    """The condition that written columns, or the txid, have these values; PostgreSQL reads them from their texts."""
    types = {c.name: sql_type(c.type) for c in (*sink.written, TXID)}
    return [sa.column(name) == sa.cast(sa.literal(value), types[name]) for name, value in key.items()]


@contextmanager
def by_index(conn: Connection) -> Iterator[None]:
    """Have PostgreSQL look for the rows of a txid by the index of txids, whatever it expects of that.

    Where revisions have moved rows about, a table's order says nothing of its txids any more. Then PostgreSQL expects
    most block ranges to hold any of them and reads the whole table, though the ranges know better.
    """
    conn.execute(text("set local enable_seqscan = off"))
    yield
    # What an error rolls back takes the setting with it.
    conn.execute(text("set local enable_seqscan to default"))


@contextmanager
def in_index_order(conn: Connection) -> Iterator[None]:
    """Have PostgreSQL read the first or last rows of keys from an index that has them in order, and sort none of them.

    How many rows a key has it cannot know well, and where it expects few, it reads and sorts all of them.
    """
    conn.execute(text("set local enable_sort = off"))
    yield
    conn.execute(text("set local enable_sort to default"))


def counted(of: Delta, sink: Sink, found: int) -> int:
    """The number of rows; StageMismatch where there are more or fewer than the votes say."""
    if found != of.rows.count:
        raise StageMismatch(
            f"{of.pipeline}: transaction {of.txid}, {sink.name}: {found:,} rows are there, the votes say "
            f"{of.rows.count:,}"
        )
    return found


def number_of(conn: Connection, sink: Sink, txids: Sequence[int], writers: Sequence[int]) -> int:
    """How many rows these writers have in the deltas of these transactions."""
    of = table(sink.home, sink)
    are = of.c._txid == sa.any_(_bigints(txids)), of.c._writer == sa.any_(_bigints(writers))
    return conn.execute(select(func.count()).select_from(of).where(*are)).scalar_one()


def discard(conn: Connection, relation: Relation, txid: int, writers: Sequence[int]) -> None:
    """Delete what these writers have written; who they are is named one by one, since states may have changed."""
    schema, name = relation
    of = Table(name, sa.MetaData(), sql_column(TXID), sql_column(WRITER), schema=schema)
    with by_index(conn):
        conn.execute(delete(of).where(*_are(of, Rows(relation, txid, tuple(writers), 0))))


def position_fault(
    conn: Connection, sink: Sink, rows: Rows, ranges: Iterable[OffsetRange], position: Sequence[str]
) -> str | None:
    """What is wrong with rows that are told apart by `position`, in a line: their number, their place, repetition."""
    if not rows.count:
        return None
    of = named(rows, sink, *position).subquery()
    c = [of.c[name] for name in position]
    unique = select(*c, func.count().label("times")).group_by(*c).subquery()
    found = conn.execute(
        select(
            unique.c._partition,
            func.min(unique.c._offset),
            func.max(unique.c._offset),
            func.sum(unique.c.times),
            func.count(),
        ).group_by(unique.c._partition)
    ).all()
    if sum(row[3] for row in found) != rows.count:
        return f"{sum(row[3] for row in found):,} rows are there, the vote says {rows.count:,}"
    for partition, lowest, highest, times, distinct in found:
        foreign = foreign_span(ranges, partition, lowest, highest)
        if foreign:
            return foreign
        if times != distinct:
            return (
                f"{times - distinct:,} rows of partition {partition} repeat a (_partition, _offset, _n); a transform "
                "that makes several rows of one record numbers them in _n, and must not multiply records in a join"
            )
    return None


def foreign_span(ranges: Iterable[OffsetRange], partition: int, first: int, last: int) -> str | None:
    """Why records from `first` to `last` are not all of these ranges, in a line; None where they are."""
    allowed = sorted(r for r in ranges if r.partition == partition)
    if not allowed or first < allowed[0].from_offset or last >= allowed[-1].until_offset:
        return f"rows of partition {partition}, offsets {first} to {last}, are not of this slice"
    return None


def overlap(conn: Connection, sink: Sink, rows: Rows, dead: Sink, letters: Rows) -> str | None:
    """A record that is written both as a row and as a dead letter, in a line; None when there is none.

    One that was summed, or replaced by a later one of its key, has left no position behind and is not found.
    """
    mine = named(rows, sink, "_partition", "_offset").subquery()
    given_up = named(letters, dead, "_partition", "_offset").subquery()
    same = sa.and_(mine.c._partition == given_up.c._partition, mine.c._offset == given_up.c._offset)
    both = conn.execute(select(given_up).select_from(given_up.join(mine, same)).limit(1)).first()
    if both is None:
        return None
    return f"partition {both[0]}, offset {both[1]} is a row and a dead letter; the transform must make it one of them"


def beside_letters(conn: Connection, sink: Sink, rows: Rows, taken: Iterable[ColumnElement[bool]]) -> str | None:
    """A row of a release whose record is none of the dead letters that it takes, in a line; None when there is none."""
    mine = named(rows, sink, "_partition", "_offset")
    letters = select(dead_letter_deltas.c._partition, dead_letter_deltas.c._offset).where(*taken)
    # A difference of sets: of a text within errors PostgreSQL expects one letter, and would join row by row.
    found = conn.execute(mine.except_(letters).limit(1)).first()
    if found is None:
        return None
    partition, offset = tuple(found)
    return f"partition {partition}, offset {offset} is none of the dead letters that are released"


def _are(of: Table, rows: Rows) -> tuple[sa.ColumnElement[bool], ...]:
    """The conditions for the rows of these writers; the txid is what an index knows."""
    return of.c._txid == rows.txid, of.c._writer == sa.any_(_bigints(rows.writers))


def _bigints(numbers: Sequence[int]) -> sa.Cast[Sequence[int]]:
    return cast(list(numbers), ARRAY(sa.BigInteger))
