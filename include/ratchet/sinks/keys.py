"""Keys in SQL, a null being like another: how rows of one key are found, also where the key has nulls."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import Connection, FromClause, Table, and_, cast, func, or_


def same_keys(one: FromClause, other: FromClause, keys: list[str]) -> list[sa.ColumnElement[bool]]:
    """Conditions that together pick the pairs of one key, a null being like another.

    The first is for keys without nulls, and an index of the keys serves it, which none does for IS NOT DISTINCT FROM;
    the second is for the others, and is left out where the columns allow no null. By IS NOT DISTINCT FROM alone
    PostgreSQL would compare all with all, so rows are matched by their hash first, which an index may have.
    """
    conditions = [and_(*(one.c[k] == other.c[k] for k in keys))]
    if any(one.c[k].nullable and other.c[k].nullable for k in keys):
        are_same = (one.c[k].is_not_distinct_from(other.c[k]) for k in keys)
        conditions.append(and_(has_null(one, keys), key_hash(one, keys) == key_hash(other, keys), *are_same))
    return conditions


def has_null(of: FromClause, keys: list[str]) -> sa.ColumnElement[bool]:
    """Whether a key has a null."""
    return or_(*(of.c[k].is_(None) for k in keys))


def key_hash(of: FromClause, keys: list[str]) -> sa.ColumnElement[int]:
    """The hash of a key in the declared types, whatever a table has come to have.

    5 as a bigint and as a numeric have two hashes.
    """
    return record_hash(cast(of.c[k], of.c[k].type) for k in keys)


def txid_of_key(deltas: FromClause) -> sa.ColumnElement[int]:
    """The txid as the index of keys has it.

    By the bare column PostgreSQL looks for a key's last row in the index of txids where keys seem to be few, and
    reads the whole table for a key that is not there.
    """
    return deltas.c._txid + sa.literal_column("0")


def record_hash(columns: Iterable[sa.ColumnElement]) -> sa.ColumnElement[int]:
    """PostgreSQL's 64-bit hash of these values in this order; a null is hashed like any other."""
    # The seed is no parameter: PostgreSQL would not know the expression of an index again.
    return func.hash_record_extended(func.row(*columns), sa.literal_column("0"))


def temporary(conn: Connection, name: str, like: Iterable[sa.Column]) -> Table:
    """An empty table with these columns, for this database transaction; rows of before a column was declared not null
    fit too.
    """
    columns = [sa.Column(c.name, c.type) for c in like]
    made = Table(name[:63], sa.MetaData(), *columns, prefixes=["TEMPORARY"], postgresql_on_commit="DROP")
    made.create(conn)
    return made


def count_rows(conn: Connection, table: Table) -> None:
    """Have PostgreSQL know how many keys there are in a table that was just filled, which it would else guess."""
    conn.execute(sa.DDL("analyze %(fullname)s").against(table))
