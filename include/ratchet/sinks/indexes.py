"""Indexes that tables which are there gain: built beside readers and writers, begun anew where one broke off."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, MetaData, Table, text
from sqlalchemy.schema import CreateIndex, DropIndex


def lacking(conn: Connection, table: Table, was: Mapping[str, str] | None = None) -> list[str]:
    """The names of those indexes that are not there, or that nobody has finished, so that nothing can use them.

    `was` is what some are called yet.
    """
    usable = _are_valid(conn, table)
    names = [str(index.name) for index in table.indexes]
    return sorted(name for name in names if not (usable.get(name) or usable.get((was or {}).get(name, name))))


def build(conn: Connection, table: Table, name: str) -> None:
    """Build one that is lacking, while others read and write; `conn` commits each statement by itself.

    It waits for whoever has begun a database transaction before it, and holds up nobody but another change of the same
    table. Broken off, it leaves what `lacking` finds again.
    """
    # A copy, since the table is also made anew elsewhere, within a database transaction, where this is not possible.
    (index,) = (each for each in table.to_metadata(MetaData()).indexes if each.name == name)
    index.dialect_options["postgresql"]["concurrently"] = True
    if name in _are_valid(conn, table):
        conn.execute(DropIndex(index, if_exists=True))
    conn.execute(CreateIndex(index))


def _are_valid(conn: Connection, table: Table) -> dict[str, bool]:
    """{name of an index of this table: whether it can be used}."""
    asked = text(
        "select i.relname, x.indisvalid from pg_index x join pg_class i on i.oid = x.indexrelid "
        "join pg_class t on t.oid = x.indrelid join pg_namespace n on n.oid = t.relnamespace "
        "where n.nspname = :schema and t.relname = :name"
    )
    return {row.relname: row.indisvalid for row in conn.execute(asked, {"schema": table.schema, "name": table.name})}
