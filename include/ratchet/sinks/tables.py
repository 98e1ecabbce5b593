"""The tables of sinks: made where they are missing, and given new columns; a user's own are only checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString, cast

import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import Connection, Table
from sqlalchemy.schema import CreateSchema

from ratchet.errors import IllegalMove, NotMigrated
from ratchet.ledger import steps
from ratchet.ledger.schema import targets
from ratchet.ledger.transactions import lock_pipeline
from ratchet.ledger.work import Relation
from ratchet.sinks import catalog, fit, indexes, meaning, owned, renames, views
from ratchet.sinks.catalog import Held
from ratchet.sinks.layout import unknown_destinations
from ratchet.sinks.port import Sink
from ratchet.sinks.renames import Rename
from ratchet.sinks.types import TXID
from ratchet.spec.destination import DeclaredDestination


@dataclass(frozen=True)
class Made:
    """What a migration has made of one sink. A relation is named with its schema, as `ratchet_delta.public.flights`."""

    pipeline: str
    sink: str
    tables: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """(table, column) that tables which were there have gained."""
    nullable: tuple[tuple[str, str], ...]
    """(table, column) that may be null from now on."""
    renamed: tuple[tuple[str, str, str], ...]
    """(table, old, new) for each column that has another name from now on."""
    view: str | None
    indexes: tuple[tuple[str, str], ...]
    """(table, index) that tables which were there lack; whoever migrates builds them last, beside those who write."""
    destinations: tuple[str, ...]
    """Addresses that get the sink's rows from the next commit on."""

    @property
    def is_change(self) -> bool:
        """Whether anything was not as the spec says."""
        return bool(
            self.tables
            or self.columns
            or self.nullable
            or self.renamed
            or self.view
            or self.indexes
            or self.destinations
        )

    def __str__(self) -> str:
        made = [f"created {table}" for table in self.tables]
        made += [f"renamed {old} of {table} to {new}" for table, old, new in self.renamed]
        made += [f"added {column} to {table}" for table, column in self.columns]
        made += [f"{column} of {table} may be null" for table, column in self.nullable]
        made += [f"created view {self.view}"] if self.view else []
        made += [f"added index {index} to {table}" for table, index in self.indexes]
        made += [f"{address} gets what is committed from now on" for address in self.destinations]
        return f"{self.pipeline}: {self.sink}: {', '.join(made) or 'fits'}"


def create(conn: Connection, pipeline: str, sink: Sink) -> Made:
    """Bring a sink's tables to what the spec says, and its view.

    Missing tables and columns are made, columns are renamed where the spec says what they were called, columns of ours
    may be null where the spec has them so or has them no more, and a table that the user brought is only checked.
    Nothing that has rows is dropped or retyped; what has none, and does not fit, is made anew. From then on the tables
    are the pipeline's. Raises NotMigrated where they are another's, hold other types, or where the spec gives their
    deltas another meaning.
    """
    meaning.lock(conn, pipeline, sink)
    try:
        due = _look(conn, pipeline, sink)
    except NotMigrated:
        if not _dropped_empty(conn, pipeline, sink):
            raise
        due = _look(conn, pipeline, sink)
    _carry_out(conn, pipeline, sink, due)
    return due.made


def differences(conn: Connection, pipeline: str, sink: Sink) -> Made:
    """What `create` would make, by the catalog alone: nothing is tried, and no lock is waited for but by who reads.

    Raises NotMigrated as `create` does.
    """
    try:
        return _look(conn, pipeline, sink).made
    except NotMigrated:
        known = _known(conn, pipeline, sink)
        if known is None or not _are_empty(conn, _tables_there(conn, sink)):
            raise
    return anew(pipeline, sink)


def anew(pipeline: str, sink: Sink) -> Made:
    """What is made of a sink of which nothing is there."""
    names = () if sink.brings_table else tuple(".".join(catalog.place(table)) for table in sink.tables)
    addresses = tuple(destination.address for destination in sink.destinations)
    return Made(pipeline, sink.name, names, (), (), (), sink.shown if sink.is_view else None, (), addresses)


@dataclass(frozen=True)
class _Due:
    """What a sink's tables lack, as the catalog has them."""

    made: Made
    existing: list[Table]
    before: dict[str, Any] | None
    """What the deltas mean so far."""
    fresh: list[Rename]


def _look(conn: Connection, pipeline: str, sink: Sink) -> _Due:
    """Compare a sink's tables with the spec; NotMigrated where they cannot be brought to it."""
    kinds = {table: catalog.kind_of(conn, *catalog.place(table)) for table in sink.tables}
    existing = [table for table, kind in kinds.items() if kind]
    _check_kinds(conn, sink, kinds)
    before = meaning.stored(conn, pipeline, sink, existing)
    held = {table: catalog.columns(conn, catalog.place(table)) for table in existing}
    fresh, renamed = renames.find(
        conn, pipeline, sink, {catalog.place(t): of for t, of in held.items()}, renames.among(before)
    )
    meaning.check(conn, sink, existing, before, fresh)
    columns: list[tuple[str, str]] = []
    nullable: list[tuple[str, str]] = []
    lacking: list[tuple[str, str]] = []
    # Of an index whose column is not renamed now, the old name may be another one's.
    was_index = sink.renamed_indexes if renamed else None
    for table, unique in zip(sink.tables, sink.unique, strict=True):
        if table not in existing:
            continue
        name = ".".join(catalog.place(table))
        now = {new: old for of, old, new in renamed if of == name}
        found = {renames.today(n, [(o, w) for w, o in now.items()]): column for n, column in held[table].items()}
        if not sink.brings_table:
            added = _lacks(conn, sink, table, found)
            allowed = _may_be_null(table, found)
            found |= added | {n: replace(found[n], nullable=True) for n in allowed}
            columns += [(name, column) for column in added]
            nullable += [(name, column) for column in allowed]
            lacking += [(name, index) for index in indexes.lacking(conn, table, was_index)]
        fit.check(conn, sink, table, unique, found, now)
    shown = list(catalog.columns(conn, sink.table)) if sink.is_view else []
    view = sink.shown if sink.is_view and sink.tables and not shown else None
    made = tuple(".".join(catalog.place(table)) for table in sink.tables if table not in existing)
    changed = tuple(columns), tuple(nullable), tuple(renamed)
    new = unknown_destinations(conn, pipeline, sink)
    return _Due(Made(pipeline, sink.name, made, *changed, view, tuple(lacking), new), existing, before, fresh)


def _carry_out(conn: Connection, pipeline: str, sink: Sink, due: _Due) -> None:
    made = due.made
    # Under the commit lock: what is decided before has no step for them, and what is decided after has.
    line = lock_pipeline(conn, pipeline) if made.destinations else None
    for destination in [each for each in sink.destinations if each.address in made.destinations]:
        named = {"pipeline": pipeline, "destination": destination.address, "sink": sink.name}
        steps.register(conn, line, {**named, "can_revise": _can_revise(sink, destination)})
    for destination in sink.destinations:
        # Its table may be anew, and of another kind.
        steps.declare(conn, pipeline, destination.address, can_revise=_can_revise(sink, destination))
    for schema in dict.fromkeys([sink.table[0], *(str(table.schema) for table in sink.tables)]):
        conn.execute(CreateSchema(schema, if_not_exists=True))
    renames.carry_out(conn, sink, made.renamed)
    for table in sink.tables:
        name = ".".join(catalog.place(table))
        if table not in due.existing:
            table.create(conn)
        for column in [column for of, column in made.columns if of == name]:
            _add(conn, table, column)
        for column in [column for of, column in made.nullable if of == name]:
            where = sql.Identifier(*catalog.place(table)), sql.Identifier(column)
            catalog.driver(conn).execute(sql.SQL("alter table {} alter column {} drop not null").format(*where))
    if sink.is_view and sink.tables:
        shown = catalog.columns(conn, sink.table)
        views.create(conn, pipeline, sink, list(shown))
    meaning.own(conn, pipeline, sink, due.before, due.fresh)


def _can_revise(sink: Sink, destination: DeclaredDestination) -> bool:
    # What stands under a key always gives way.
    return bool(sink.key_columns) or destination.can_revise


def _tables_there(conn: Connection, sink: Sink) -> list[Relation]:
    """The tables of a sink, as they were made for an earlier spec."""
    return [of for of in (sink.table, sink.home) if catalog.kind_of(conn, *of) == "r"]


def _are_empty(conn: Connection, tables: Sequence[Relation]) -> bool:
    """Whether there are some, and none has a row."""
    return bool(tables) and not any(catalog.has_rows(conn, relation) for relation in tables)


def _known(conn: Connection, pipeline: str, sink: Sink) -> sa.Row | None:
    """What the ledger has of a sink's table that is the pipeline's and was made for it."""
    schema, name = sink.table
    mine = (targets.c.pipeline == pipeline, targets.c.schema == schema, targets.c.name == name)
    known = conn.execute(sa.select(targets).where(*mine)).one_or_none()
    return None if known is None or known.fold["shows"] == "own" else known


def _dropped_empty(conn: Connection, pipeline: str, sink: Sink) -> bool:
    """Drop the pipeline's tables of a sink, as they were made for an earlier spec, if they have no row; whether they
    were.
    """
    known = _known(conn, pipeline, sink)
    if known is None:
        return False
    there = _tables_there(conn, sink)
    for relation in there:
        # Whoever writes at this moment comes first, or finds the new one.
        catalog.driver(conn).execute(sql.SQL("lock table {}").format(sql.Identifier(*relation)))
    if not _are_empty(conn, there):
        return False
    try:
        owned.dropped(conn, known)
    except IllegalMove as error:
        raise NotMigrated(f"sink {sink.name!r}: {error}") from error
    return True


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
    if sink.is_view and shown == "v" and TXID.name not in catalog.columns(conn, sink.table):
        raise NotMigrated(f"{where} is a view of your own; give the sink another name, or drop the view")
    if not sink.is_view and shown == "v":
        raise NotMigrated(f"{where} is a view, and the sink needs a table of that name; give it another one")
    for table, kind in kinds.items():
        if kind not in (None, "v", *catalog.TABLES):
            raise NotMigrated(f"{where}: {table.schema}.{table.name} is there and no table; give the sink another name")


def _lacks(conn: Connection, sink: Sink, table: Table, found: Mapping[str, Held]) -> dict[str, Held]:
    """The columns that a table lacks, as they are to be."""
    added: dict[str, Held] = {}
    for column in table.columns:
        if column.name in found:
            continue
        if not column.nullable and catalog.has_rows(conn, catalog.place(table)):
            raise NotMigrated(
                f"sink {sink.name!r}: {table.schema}.{table.name} has rows, which have no {column.name}; declare it "
                "without not null"
            )
        kind = catalog.type_of(conn, column.type)
        added[column.name] = Held(kind, bool(column.nullable), is_key=False, has_default=False, is_filled=False)
    return added


def _may_be_null(table: Table, found: Mapping[str, Held]) -> list[str]:
    """Those columns of a table of ours that may be null by the spec, or are not in it any more, and may not so far."""
    required = {column.name for column in table.columns if not column.nullable}
    return [name for name, held in found.items() if held.is_required and name not in required]


def _add(conn: Connection, table: Table, name: str) -> None:
    column = table.columns[name]
    # What stands behind the name of the type is its collation; both are the dialect's own words.
    kind = column.type.compile(conn.dialect) + ("" if column.nullable else " not null")
    where = sql.Identifier(*catalog.place(table)), sql.Identifier(name)
    statement = sql.SQL("alter table {} add column {} {}")
    catalog.driver(conn).execute(statement.format(*where, sql.SQL(cast("LiteralString", kind))))
