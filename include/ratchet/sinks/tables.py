"""The tables of sinks: made where they are missing, given new columns, owned by one line and dropped with it; a user's
own are only checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, LiteralString, cast

import sqlalchemy as sa
from psycopg import sql
from psycopg.errors import DependentObjectsStillExist
from sqlalchemy import Connection, Table
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.schema import CreateSchema

from ratchet.errors import IllegalMove, NotMigrated
from ratchet.ledger.schema import DELTA_SCHEMA, targets
from ratchet.ledger.work import Relation
from ratchet.sinks import catalog, indexes, meaning, views
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.sinks.types import TXID
from ratchet.spec.pipeline import Pipeline

Rights = dict[Relation, tuple[str, ...]]
"""{table: what a role may do with it}."""


@dataclass(frozen=True)
class Made:
    """What a migration has made of one sink. A relation is named with its schema, as `ratchet_delta.public.flights`."""

    pipeline: str
    sink: str
    tables: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """(table, column) that tables which were there have gained."""
    view: str | None
    indexes: tuple[tuple[str, str], ...]
    """(table, index) that tables which were there lack; whoever migrates builds them last, beside those who write."""

    def __str__(self) -> str:
        made = [f"created {table}" for table in self.tables]
        made += [f"added {column} to {table}" for table, column in self.columns]
        made += [f"created view {self.view}"] if self.view else []
        made += [f"added index {index} to {table}" for table, index in self.indexes]
        return f"{self.pipeline}: {self.sink}: {', '.join(made) or 'fits'}"


def create(conn: Connection, pipeline: str, sink: Sink) -> Made:
    """Bring a sink's tables to what the spec says, and its view.

    Missing tables and columns are made, nothing is dropped or changed, and a table that the user brought is only
    checked. From then on the tables are the pipeline's. Raises NotMigrated where they are another's, hold other types,
    or where the spec gives their deltas another meaning.
    """
    made: list[str] = []
    columns: list[tuple[str, str]] = []
    lacking: list[tuple[str, str]] = []
    conn.execute(CreateSchema(sink.table[0], if_not_exists=True))
    kinds = {table: catalog.kind_of(conn, str(table.schema), table.name) for table in sink.tables}
    existing = [table for table, kind in kinds.items() if kind]
    _check_kinds(conn, sink, kinds)
    meaning.own(conn, pipeline, sink, existing)
    for table, unique in zip(sink.tables, sink.unique, strict=True):
        if table not in existing:
            conn.execute(CreateSchema(str(table.schema), if_not_exists=True))
            table.create(conn)
            made.append(f"{table.schema}.{table.name}")
            continue
        if not sink.brings_table:
            columns += [(f"{table.schema}.{table.name}", name) for name in _add(conn, sink, table)]
            lacking += [(f"{table.schema}.{table.name}", name) for name in indexes.lacking(conn, table)]
        _check(conn, sink, table, unique)
    view = None
    if sink.is_view and sink.tables:
        shown = catalog.columns(conn, *sink.table) if catalog.kind_of(conn, *sink.table) else {}
        views.create(conn, pipeline, sink, list(shown))
        view = None if shown else sink.shown
    return Made(pipeline, sink.name, tuple(made), tuple(columns), view, tuple(lacking))


def rights(conn: Connection) -> tuple[Rights, Rights]:
    """What the pipelines, and what readers, need on what they see of sinks: of every line that the ledger knows.

    Delta tables are not among them: only the pipelines' role may look into these.
    """
    pipelines: Rights = {}
    for row in conn.execute(sa.select(targets)).all():
        shown = row.schema, row.name
        if _is_as_made(conn, shown, row.fold["shows"]):
            pipelines[shown] = _NEEDED[row.fold["shows"]]
    return pipelines, dict.fromkeys(pipelines, ("SELECT",))


_NEEDED = {
    "view": ("SELECT",),
    "table": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "own": ("SELECT", "INSERT", "DELETE"),
}
"""What the pipelines do with what readers see."""


def _is_as_made(conn: Connection, shown: Relation, shows: str) -> bool:
    """Whether what has the name of a sink still is what the sink shows: a person may have made another thing of it."""
    kind = catalog.kind_of(conn, *shown)
    fits = kind == "v" if shows == "view" else kind in catalog.TABLES
    return fits and TXID.name in catalog.columns(conn, *shown)


@dataclass(frozen=True)
class Gone:
    """What was dropped of a pipeline's tables, and what was left: tables of the user's own. Names have schemas."""

    dropped: tuple[str, ...]
    left: tuple[str, ...]


def drop(conn: Connection, pipeline: str) -> Gone:
    """Drop every table and view that the ledger knows as the pipeline's, also of sinks that no spec has any more.

    A table that the user brought, or has made since under a sink's name, is left as it is. Raises IllegalMove where
    something of the user's own depends on one that goes.
    """
    dropped: list[str] = []
    left: list[str] = []
    found = conn.execute(sa.select(targets).where(targets.c.pipeline == pipeline).order_by(targets.c.schema, "name"))
    for row in found.all():
        shown, rows = (row.schema, row.name), (DELTA_SCHEMA, f"{row.schema}.{row.name}")
        shows = row.fold["shows"]
        if shows != "own" and _is_as_made(conn, shown, shows):
            _drop(conn, "view" if shows == "view" else "table", shown)
            dropped.append(".".join(shown))
        elif catalog.kind_of(conn, *shown):
            left.append(".".join(shown))
        if catalog.kind_of(conn, *rows):
            _drop(conn, "table", rows)
            dropped.append(".".join(rows))
    return Gone(tuple(dropped), tuple(left))


def _drop(conn: Connection, what: Literal["table", "view"], relation: Relation) -> None:
    try:
        catalog.driver(conn).execute(sql.SQL(f"drop {what} {{}}").format(sql.Identifier(*relation)))
    except DependentObjectsStillExist as error:
        depends = "; ".join((error.diag.message_detail or str(error)).splitlines())
        raise IllegalMove(f"{'.'.join(relation)}: {depends}; drop that first; nothing was changed") from error


def probe(conn: Connection, spec: Pipeline) -> None:
    """NotMigrated if a table of a sink, or a column of one, is not there, not the pipeline's, or of another meaning;
    quick enough for every begin.
    """
    other = meaning.other(conn, spec)
    if other:
        raise NotMigrated(f"{other}; nothing was begun; run `ratchet migrate`, which says more")
    own = meaning.of_pipeline(conn, spec)
    for sink in sinks_of(spec):
        for table in (*sink.tables, *([sink.target] if sink.is_view else [])):
            try:
                conn.execute(sa.select(*table.columns).limit(0))
            except ProgrammingError as error:
                missing = str(error.orig).splitlines()[0]
                raise NotMigrated(
                    f"sink {sink.name!r}: {missing}; nothing was begun; `ratchet migrate` makes missing tables and "
                    "says what else does not fit"
                ) from error
        if sink.tables and sink.table not in own:
            raise NotMigrated(
                f"sink {sink.name!r}: the ledger does not know its table as one of pipeline {spec.name!r}; nothing was "
                "begun; run `ratchet migrate`"
            )


def _check_kinds(conn: Connection, sink: Sink, kinds: dict[Table, str | None]) -> None:
    """NotMigrated where a view is in the place of a table or the other way round, or a user's table is not there."""
    where = f"sink {sink.name!r}: {'.'.join(sink.table)}"
    if sink.brings_table and not all(kinds.values()):
        raise NotMigrated(
            f"{where} does not exist, and the spec says that it is one of your own (existing=True); create it, or "
            "leave existing out"
        )
    shown = catalog.kind_of(conn, *sink.table)
    if sink.is_view and shown not in (None, "v"):
        raise NotMigrated(
            f"{where} is a table, and readers are given a view of that name; say existing=True to have rows copied "
            "into your own table, or give the sink another name"
        )
    if sink.is_view and shown == "v" and TXID.name not in catalog.columns(conn, *sink.table):
        raise NotMigrated(f"{where} is a view of your own; give the sink another name, or drop the view")
    if not sink.is_view and shown == "v":
        raise NotMigrated(f"{where} is a view, and the sink needs a table of that name; give it another one")
    for table, kind in kinds.items():
        if kind not in (None, "v", *catalog.TABLES):
            raise NotMigrated(f"{where}: {table.schema}.{table.name} is there and no table; give the sink another name")


def _add(conn: Connection, sink: Sink, table: Table) -> list[str]:
    """Give a table the columns that it lacks; their names."""
    found, added = catalog.columns(conn, str(table.schema), table.name), []
    for column in table.columns:
        if column.name in found:
            continue
        kind = column.type.compile(conn.dialect)
        if not column.nullable and catalog.has_rows(conn, table):
            raise NotMigrated(
                f"sink {sink.name!r}: {table.schema}.{table.name} has rows, which have no {column.name}; declare it "
                "without not null"
            )
        # What stands behind the name of the type is its collation; both are the dialect's own words.
        words = sql.SQL(cast("LiteralString", kind + ("" if column.nullable else " not null")))
        where = sql.Identifier(str(table.schema), table.name), sql.Identifier(column.name)
        catalog.driver(conn).execute(sql.SQL("alter table {} add column {} {}").format(*where, words))
        added.append(column.name)
    return added


def _check(conn: Connection, sink: Sink, table: Table, unique: tuple[str, ...]) -> None:
    inspected = sa.inspect(conn)
    found = catalog.columns(conn, str(table.schema), table.name)
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
        if found[column.name].get("computed") or (found[column.name].get("identity") or {}).get("always"):
            raise NotMigrated(f"{where} is filled by PostgreSQL itself, and declared; take it out of the declaration")
        if sink.brings_table:
            # Nothing is compared or folded there, so texts may be in any order.
            actual, wanted = (said.partition(" COLLATE ")[0] for said in (actual, wanted))
        if actual != wanted:
            raise NotMigrated(f"{where} is {actual}, the spec declares {wanted}; make the two agree")
    surplus = [
        name
        for name, c in found.items()
        if name not in table.columns and not (c["nullable"] or c["default"] or c.get("identity") or c.get("computed"))
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
