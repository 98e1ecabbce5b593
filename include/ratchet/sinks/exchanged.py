"""Keys of rows that revisions have taken away: destinations of a sink with keys have still to hear of them.

Which keys a step has touched its delta tells; of a delta that a revision has replaced nothing else is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString, cast

import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import Connection, Select, delete, insert, literal, select
from sqlalchemy.dialects import postgresql

from ratchet.ledger.schema import destinations, exchanged
from ratchet.ledger.work import Relation
from ratchet.sinks.types import sql_type
from ratchet.spec.columns import Column


def are_awaited(conn: Connection, pipeline: str) -> frozenset[str]:
    """The sinks of which the ledger knows destinations, also detached ones, which may come back."""
    return frozenset(conn.execute(select(destinations.c.sink).where(destinations.c.pipeline == pipeline)).scalars())


def note(
    conn: Connection, pipeline: str, table: Relation, revision: tuple[int, int], keys: Select[tuple[Any, ...]]
) -> None:
    """Remember these keys, each once, in the database transaction in which a (txid, revision) takes their rows away."""
    of = keys.distinct().subquery("of")
    of_table = map(literal, (pipeline, *table, *revision))
    texts = postgresql.array([sa.cast(column, sa.Text) for column in of.c])
    names = ["pipeline", "schema", "name", "txid", "revision", "key"]
    conn.execute(insert(exchanged).from_select(names, select(*of_table, texts)))


def forget(conn: Connection, pipeline: str, table: Relation, until: int) -> None:
    """Forget those of transactions up to one: their deltas are not told apart any more, so nobody goes by them."""
    c, (schema, name) = exchanged.c, table
    conn.execute(delete(exchanged).where(c.pipeline == pipeline, c.schema == schema, c.name == name, c.txid <= until))


def keys_after(pipeline: str, table: Relation, key: Sequence[Column], after: int, last: int) -> sql.Composed:
    """SELECT the columns of the keys that were taken away by steps behind `after` up to the last."""
    read = [
        sql.SQL("(key)[{}]::{} as {}").format(number, sql.SQL(_type_of(column)), sql.Identifier(column.name))
        for number, column in enumerate(key, 1)
    ]
    return sql.SQL(
        "select {} from ratchet.exchanged join ratchet.steps using (pipeline, txid, revision) where pipeline = {} "
        "and schema = {} and name = {} and step > {} and step <= {}"
    ).format(sql.SQL(", ").join(read), pipeline, *table, after, last)


def _type_of(column: Column) -> LiteralString:
    # A type of our own, and no text of anybody's.
    return cast("LiteralString", sql_type(column.type).compile(dialect=postgresql.dialect()))
