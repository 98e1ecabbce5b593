"""What PostgreSQL's catalog has of sinks' tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from ratchet.ledger.work import Relation
from ratchet.sinks.types import TXID

TABLES = ("r", "p", "f")
"""Tables, partitioned and foreign ones."""


def kind_of(conn: Connection, schema: str, name: str) -> str | None:
    """`r` for a table, `p` for a partitioned one, `v` for a view, and so on; None where there is nothing."""
    asked = sa.text(
        "select relkind::text from pg_class c join pg_namespace n on n.oid = relnamespace "
        "where nspname = :schema and relname = :name"
    )
    return conn.execute(asked, {"schema": schema, "name": name}).scalar_one_or_none()


@dataclass(frozen=True)
class Held:
    """A column as a table has it."""

    type: str
    """As PostgreSQL writes it, in capitals, with its collation where that is not the type's own."""
    nullable: bool
    is_key: bool
    """Whether it is of a unique index to which one null is not like another, as of a primary key."""
    has_default: bool
    is_filled: bool
    """Whether PostgreSQL computes it, and takes no value for it."""

    @property
    def is_required(self) -> bool:
        """Whether it takes no null, though no index of a person's own needs that."""
        return not self.nullable and not self.is_key


def columns(conn: Connection, relation: Relation) -> dict[str, Held]:
    """{name: column}, in order; none where there is no such table."""
    return columns_of(conn, [relation]).get(relation, {})


def columns_of(conn: Connection, relations: Iterable[Relation]) -> dict[Relation, dict[str, Held]]:
    """{table: {name: column}}, of those tables and views that are there."""
    asked = sa.text(
        "select n.nspname, c.relname, a.attname, upper(format_type(a.atttypid, a.atttypmod))"
        " || coalesce(' COLLATE \"' || l.collname || '\"', '') as type, not a.attnotnull as nullable, exists"
        " (select from pg_index i where i.indrelid = c.oid and i.indisunique and not i.indnullsnotdistinct"
        " and a.attnum = any (i.indkey)) as is_key, a.atthasdef or a.attidentity <> '' as has_default,"
        " a.attidentity = 'a' or a.attgenerated <> '' as is_filled"
        " from unnest(cast(:schemas as text[]), cast(:names as text[])) as wanted (schema, name)"
        " join pg_namespace n on n.nspname = wanted.schema"
        " join pg_class c on c.relnamespace = n.oid and c.relname = wanted.name"
        " join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped"
        " join pg_type t on t.oid = a.atttypid"
        " left join pg_collation l on l.oid = a.attcollation and a.attcollation <> t.typcollation"
        " order by c.oid, a.attnum"
    )
    schemas, names = zip(*relations, strict=True)
    found: dict[Relation, dict[str, Held]] = {}
    for row in conn.execute(asked, {"schemas": list(schemas), "names": list(names)}):
        held = Held(row.type, row.nullable, row.is_key, row.has_default, row.is_filled)
        found.setdefault((row.nspname, row.relname), {})[row.attname] = held
    return found


def unseen(conn: Connection, relations: Iterable[Relation]) -> dict[Relation, list[str]]:
    """{table: the grants without which the connection's own role may not read its rows}, of those that are there."""
    asked = sa.text(
        "select n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE') as enters,"
        " has_table_privilege(c.oid, 'SELECT') as reads, quote_ident(n.nspname) as schema,"
        " quote_ident(c.relname) as name, quote_ident(current_user) as quoted"
        " from unnest(cast(:schemas as text[]), cast(:names as text[])) as wanted (schema, name)"
        " join pg_namespace n on n.nspname = wanted.schema"
        " join pg_class c on c.relnamespace = n.oid and c.relname = wanted.name order by 1, 2"
    )
    schemas, names = zip(*relations, strict=True)
    found: dict[Relation, list[str]] = {}
    for row in conn.execute(asked, {"schemas": list(schemas), "names": list(names)}):
        grants = [] if row.enters else [f"GRANT USAGE ON SCHEMA {row.schema} TO {row.quoted}"]
        grants += [] if row.reads else [f"GRANT SELECT ON {row.schema}.{row.name} TO {row.quoted}"]
        if grants:
            found[row.nspname, row.relname] = grants
    return found


def type_of(conn: Connection, kind: sa.types.TypeEngine[Any]) -> str:
    """A type as `Held` has it."""
    return kind.compile(conn.dialect).replace(", ", ",")


def is_type(conn: Connection, held: Held, kind: sa.types.TypeEngine[Any]) -> bool:
    """Whether a column is of a type, in whatever order its texts are."""
    return _uncollated(held.type) == _uncollated(type_of(conn, kind))


def _uncollated(said: str) -> str:
    return said.partition(" COLLATE ")[0]


def are_unique(conn: Connection, relation: Relation, names: Iterable[str]) -> bool:
    """Whether an index without a condition has these columns, and no others, and no two rows alike in them."""
    asked = sa.text(
        "select exists (select from pg_index i join pg_class c on c.oid = i.indrelid"
        " join pg_namespace n on n.oid = c.relnamespace where n.nspname = :schema and c.relname = :name"
        " and i.indisunique and i.indimmediate and i.indisvalid and i.indpred is null and i.indexprs is null"
        ' and (select array_agg(cast(a.attname as text) order by cast(a.attname as text) collate "C")'
        " from unnest(cast(i.indkey as int2[])) with ordinality of (number, place)"
        " join pg_attribute a on a.attrelid = c.oid and a.attnum = of.number and of.place <= i.indnkeyatts)"
        " = cast(:names as text[]))"
    )
    schema, name = relation
    return conn.execute(asked, {"schema": schema, "name": name, "names": sorted(names)}).scalar_one()


def with_other_likeness(conn: Connection, relation: Relation, names: Iterable[str]) -> list[str]:
    """Those of these columns by whose collation texts of other bytes are the same."""
    asked = sa.text(
        "select a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid"
        " join pg_namespace n on n.oid = c.relnamespace join pg_collation l on l.oid = a.attcollation"
        " where n.nspname = :schema and c.relname = :name and a.attname = any (cast(:names as text[]))"
        " and not l.collisdeterministic order by a.attnum"
    )
    schema, name = relation
    return list(conn.execute(asked, {"schema": schema, "name": name, "names": list(names)}).scalars())


def has_rows(conn: Connection, relation: Relation) -> bool:
    """Whether a table that is there has rows of some transaction."""
    if TXID.name not in columns(conn, relation):
        return False
    schema, name = relation
    of = sa.table(name, sa.column(TXID.name), schema=schema)
    return conn.execute(sa.select(sa.exists().where(of.c._txid > 0))).scalar_one()


def has(conn: Connection, relations: Iterable[Relation], column: str, *, null: bool = False) -> bool:
    """Whether some row of these tables, which may lack it, has a value in a column, or has a null there."""
    for relation in [of for of, held in columns_of(conn, relations).items() if column in held]:
        schema, name = relation
        held = sa.table(name, sa.column(column), schema=schema).c[column]
        if conn.execute(sa.select(sa.exists().where(held.is_(None) if null else held.is_not(None)))).scalar_one():
            return True
    return False


def place(table: Table) -> Relation:
    """(schema, name)."""
    return str(table.schema), table.name


def driver(conn: Connection) -> Any:
    """The driver's own connection, for statements about names."""
    opened = conn.connection.driver_connection
    assert opened is not None, "the connection is open"
    return opened
