"""Whether a table has what its sink needs of it."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from ratchet.errors import NotMigrated
from ratchet.sinks import catalog
from ratchet.sinks.catalog import Held
from ratchet.sinks.port import Sink


def misfit(conn: Connection, sink: Sink, table: Table, found: Mapping[str, Held]) -> str | None:
    """Which column is not as the sink declares it, and what to do, in a line; None where all are."""
    name = ".".join(catalog.place(table))
    for column in table.columns:
        where, wanted = f"sink {sink.name!r}: {name}.{column.name}", catalog.type_of(conn, column.type)
        if column.name not in found:
            return (
                f"{where} is missing; an existing table is never altered: "
                f"ALTER TABLE … ADD COLUMN {column.name} {wanted}, or give the sink another name"
            )
        held = found[column.name]
        if held.is_filled:
            return f"{where} is filled by PostgreSQL itself, and declared; take it out of the declaration"
        # Nothing is compared or folded in a user's table, so texts may be in any order.
        fits = catalog.is_type(conn, held, column.type) if sink.brings_table else held.type == wanted
        if not fits:
            way = (
                f"declare it so, or ALTER TABLE … ALTER COLUMN {column.name} TYPE {wanted}"
                if sink.brings_table
                else "what is there is never retyped: put the old type back and let the transform cast, give the new "
                "one another name, or give the sink another table, which begins empty and `ratchet replay` fills"
            )
            return f"{where} is {held.type}, the spec declares {wanted}; {way}"
        if held.is_required and column.nullable:
            return (
                f"{where} is NOT NULL, and the spec allows null; declare it not null, or ALTER TABLE … ALTER COLUMN "
                f"{column.name} DROP NOT NULL"
            )
    surplus = [n for n, held in found.items() if n not in table.columns and held.is_required and not held.has_default]
    if surplus:
        return (
            f"sink {sink.name!r}: {name} has the NOT NULL column {surplus[0]!r} without a default, which the spec does "
            "not fill; declare it, or give it a default"
        )
    return None


def check(
    conn: Connection,
    sink: Sink,
    table: Table,
    unique: tuple[str, ...],
    found: Mapping[str, Held],
    was: Mapping[str, str],
) -> None:
    """NotMigrated where a column is not as the sink declares it, or nothing tells rows of the sink's keys apart.

    `found` are the columns as they are to be, and `was` is what some are called yet.
    """
    said = misfit(conn, sink, table, found)
    if said:
        raise NotMigrated(said)
    inspected = sa.inspect(conn)
    if unique:
        # To a plain UNIQUE a null is never like another, so each transaction would add another row of a null key.
        has_nulls = any(found[key].nullable for key in unique)
        constraints = [
            set(u["column_names"])
            for u in inspected.get_unique_constraints(table.name, table.schema)
            if not has_nulls or u.get("dialect_options", {}).get("postgresql_nulls_not_distinct")
        ]
        constraints.append(set(inspected.get_pk_constraint(table.name, table.schema)["constrained_columns"]))
        if {was.get(key, key) for key in unique} not in constraints:
            raise NotMigrated(
                f"sink {sink.name!r}: {table.schema}.{table.name} has no unique constraint on {', '.join(unique)}"
                f"{', to which one null is like another' if has_nulls else ''}; "
                f"add UNIQUE NULLS NOT DISTINCT ({', '.join(unique)})"
            )
