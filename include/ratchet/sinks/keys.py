"""Keys in SQL, a null being like another: how rows of one key are found, also where the key has nulls."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import Connection, FromClause, Table, and_, cast, func, or_


def same_keys(one: FromClause, other: FromClause, keys: list[str]) -> list[sa.ColumnElement[bool]]:
    """Conditions that together pick the pairs of one key, a null being like another.

    The first is for keys without nulls, and an index serves it, which none does for IS NOT DISTINCT FROM; the second
    is for the others, and is left out where the columns allow no null. By IS NOT DISTINCT FROM alone PostgreSQL would
    compare all with all, so rows are matched by their hash first.
    """
    conditions = [and_(*(one.c[k] == other.c[k] for k in keys))]
    if any(one.c[k].nullable and other.c[k].nullable for k in keys):
        some_null = or_(*(one.c[k].is_(None) for k in keys))
        # In the declared types, whatever a table has come to have: 5 as a bigint and as a numeric have two hashes.
        one_hash, other_hash = (record_hash(cast(of.c[k], of.c[k].type) for k in keys) for of in (one, other))
        conditions.append(
            and_(some_null, one_hash == other_hash, *(one.c[k].is_not_distinct_from(other.c[k]) for k in keys))
        )
    return conditions


def record_hash(columns: Iterable[sa.ColumnElement]) -> sa.ColumnElement[int]:
    """PostgreSQL's 64-bit hash of these values in this order; a null is hashed like any other."""
    return func.hash_record_extended(func.row(*columns), 0)


def temporary(conn: Connection, name: str, like: Iterable[sa.Column]) -> Table:
    """An empty table with these columns, for this database transaction; rows of before a column was declared not null
    fit too.
    """
    columns = [sa.Column(c.name, c.type) for c in like]
    made = Table(name[:63], sa.MetaData(), *columns, prefixes=["TEMPORARY"], postgresql_on_commit="DROP")
    made.create(conn)
    return made
