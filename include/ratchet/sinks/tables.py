"""The tables of sinks: made where they are missing, checked and never altered where they exist, owned by one line."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection, Table
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.schema import CreateSchema

from ratchet.errors import NotMigrated
from ratchet.ledger.schema import pipelines, targets
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.spec.pipeline import Pipeline


def create(conn: Connection, pipeline: str, sink: Sink) -> str:
    """Create what is missing of a sink; check, and never alter, what exists. Returns a line for the user.

    From then on the table is the pipeline's. Raises NotMigrated where it is another's, or does not fit.
    """
    existing, made = [], []
    for table, unique in zip(sink.tables, sink.unique, strict=True):
        conn.execute(CreateSchema(str(table.schema), if_not_exists=True))
        if sa.inspect(conn).has_table(table.name, table.schema):
            _check(conn, sink, table, unique)
            existing.append(table)
        else:
            table.create(conn)
            made.append(f"{table.schema}.{table.name}")
    _own(conn, pipeline, sink, existing)
    return f"{sink.name}: created {', '.join(made)}" if made else f"{sink.name}: fits"


def probe(conn: Connection, spec: Pipeline) -> None:
    """NotMigrated if a table of a sink, or a column of one, is not there, or not the pipeline's; quick enough for every
    begin.
    """
    for sink in sinks_of(spec):
        for table in sink.tables:
            try:
                conn.execute(sa.select(*table.columns).limit(0))
            except ProgrammingError as error:
                missing = str(error.orig).splitlines()[0]
                raise NotMigrated(
                    f"sink {sink.name!r}: {missing}; nothing was begun; `ratchet migrate` makes missing tables and "
                    "says what else does not fit"
                ) from error
    found = conn.execute(sa.select(targets.c.schema, targets.c.name).where(targets.c.pipeline == spec.name))
    own = {(row.schema, row.name) for row in found}
    for sink in sinks_of(spec):
        if sink.tables and sink.table not in own:
            raise NotMigrated(
                f"sink {sink.name!r}: the ledger does not know its table as one of pipeline {spec.name!r}; nothing was "
                "begun; run `ratchet migrate`"
            )


def _own(conn: Connection, pipeline: str, sink: Sink, existing: list[Table]) -> None:
    """Note whose the sink's table is. Txids of another line mean other transactions: a revision would replace them."""
    schema, name = sink.table
    owner = conn.execute(
        sa.select(targets.c.pipeline).where(targets.c.schema == schema, targets.c.name == name)
    ).scalar_one_or_none()
    if owner == pipeline:
        return
    where = f"sink {sink.name!r}: {schema}.{name}"
    has_line = conn.execute(sa.select(sa.exists().where(pipelines.c.pipeline == owner))).scalar_one()
    if existing and has_line:
        left = ", ".join(f"{table.schema}.{table.name}" for table in existing)
        raise NotMigrated(
            f"{where} is the table of pipeline {owner!r}, and a pipeline of another name is another line, with "
            "transactions of the same numbers; give the sink another table, and read both by a view, or drop "
            f"{left} if nobody needs what is in there"
        )
    for table in existing:
        if conn.execute(sa.select(sa.exists().where(table.c._txid > 0))).scalar_one():
            raise NotMigrated(
                f"{where}: {table.schema}.{table.name} holds rows of transactions that this ledger does not know; give "
                "the sink another table, and read both by a view"
            )
    conn.execute(
        upsert(targets)
        .values(schema=schema, name=name, pipeline=pipeline)
        .on_conflict_do_update(index_elements=["schema", "name"], set_={"pipeline": pipeline})
    )


def _check(conn: Connection, sink: Sink, table: Table, unique: tuple[str, ...]) -> None:
    inspected = sa.inspect(conn)
    found = {c["name"]: c for c in inspected.get_columns(table.name, table.schema)}
    dialect = conn.dialect
    for column in table.columns:
        where = f"sink {sink.name!r}: {table.schema}.{table.name}.{column.name}"
        wanted = column.type.compile(dialect)
        if column.name not in found:
            raise NotMigrated(
                f"{where} is missing; an existing table is never altered: "
                f"ALTER TABLE … ADD COLUMN {column.name} {wanted}, or give the sink another name"
            )
        actual = found[column.name]["type"].compile(dialect)
        if actual != wanted:
            raise NotMigrated(f"{where} is {actual}, the spec declares {wanted}; make the two agree")
    surplus = [
        name for name, c in found.items() if name not in table.columns and not c["nullable"] and not c["default"]
    ]
    if surplus:
        raise NotMigrated(
            f"sink {sink.name!r}: {table.schema}.{table.name} has the NOT NULL column {surplus[0]!r} without a "
            "default, which the spec does not fill; declare it, or give it a default"
        )
    if unique:
        # To a plain UNIQUE a null is never like another, so each transaction would add another row of a null key.
        has_nulls = any(found[key]["nullable"] for key in unique)
        constraints = [
            set(u["column_names"])
            for u in inspected.get_unique_constraints(table.name, table.schema)
            if not has_nulls or u.get("dialect_options", {}).get("postgresql_nulls_not_distinct")
        ]
        constraints.append(set(inspected.get_pk_constraint(table.name, table.schema)["constrained_columns"]))
        if set(unique) not in constraints:
            raise NotMigrated(
                f"sink {sink.name!r}: {table.schema}.{table.name} has no unique constraint on {', '.join(unique)}"
                f"{', to which one null is like another' if has_nulls else ''}; "
                f"add UNIQUE NULLS NOT DISTINCT ({', '.join(unique)})"
            )
