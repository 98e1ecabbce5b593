"""Columns that were given another name: `migrate` renames them, and the ledger knows what each was called before.

The renames of a table are a list of [old, new], in the order in which they came; it only grows. A commit notes how many
there were, so that the columns of its rows are found for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psycopg import sql
from sqlalchemy import Connection, select

from ratchet.errors import NotMigrated
from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import targets, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_in
from ratchet.ledger.work import Relation
from ratchet.sinks import catalog
from ratchet.sinks.port import Sink

Rename = Sequence[str]
"""[old, new]."""
Renamed = tuple[str, str, str]
"""(table, old, new)."""


def today(name: str, renames: Iterable[Rename]) -> str:
    """What a column is called after these renames."""
    for old, new in renames:
        name = new if name == old else name
    return name


def among(fold: Mapping[str, Any] | None) -> list[Rename]:
    """The renames that are stored with what a table's deltas mean."""
    return list((fold or {}).get("renamed", ()))


def of(conn: Connection, pipeline: str, sink: Sink) -> list[Rename]:
    """The renames of a sink's table, if it is the pipeline's."""
    schema, name = sink.table
    c = targets.c
    mine = (c.pipeline == pipeline, c.schema == schema, c.name == name)
    return among(conn.execute(select(c.fold).where(*mine)).scalar_one_or_none())


def translated(fold: Mapping[str, Any], fresh: Sequence[Rename]) -> dict[str, Any]:
    """What deltas mean, in the names after these renames."""

    def declared(column: str) -> str:
        name, space, rest = column.partition(" ")
        return today(name, fresh) + space + rest

    said = dict(fold)
    if isinstance(said.get("key"), list):
        said["key"] = [declared(column) for column in said["key"]]
    if isinstance(said.get("columns"), list):
        said["columns"] = [today(name, fresh) for name in said["columns"]]
    if isinstance(said.get("order"), str):
        said["order"] = today(said["order"], fresh)
    if isinstance(said.get("measures"), dict):
        said["measures"] = {today(name, fresh): part for name, part in said["measures"].items()}
    return said


def due(sink: Sink, fold: Mapping[str, Any] | None) -> str | None:
    """Which column is not renamed yet, in a line; None where all are, or the sink has no tables so far."""
    if fold is None:
        return None
    names = (pair for new, old in sink.renamed for pair in sink.stored_as(new, old).items())
    return next((f"{o} is not renamed to {n} yet" for n, o in names if not _is_noted(o, n, among(fold))), None)


def find(
    conn: Connection,
    pipeline: str,
    sink: Sink,
    held: Mapping[Relation, Mapping[str, Any]],
    before: Sequence[Rename],
) -> tuple[list[Rename], list[Renamed]]:
    """What the spec says that was called otherwise: the renames to note, and (table, old, new) for each column.

    `held` are the columns of those tables that are there. Tables that are made have the new names from the start, and a
    user's own is never altered: it is only noted that its owner has renamed the column. Raises NotMigrated where that
    cannot be, where something is unfinished that has written, or will write, the old names, or where the spec has the
    old name of a column that was renamed.
    """
    _check_taken_back(sink, held, before)
    done: list[Renamed] = []
    fresh: list[Rename] = []
    for new, old in sink.renamed:
        names = sink.stored_as(new, old)
        found = _found(sink, held, new, old, names)
        done += found
        fresh += [
            [o, n] for n, o in names.items() if not _is_noted(o, n, before) or any(f[1:] == (o, n) for f in found)
        ]
    if held and fresh:
        _check_idle(conn, pipeline, sink)
    return fresh, done


def carry_out(conn: Connection, sink: Sink, renamed: Sequence[Renamed]) -> None:
    """Rename these columns; the caller holds the pipeline's lock, under which they were found."""
    if not renamed:
        return
    if sink.is_view and catalog.kind_of(conn, *sink.table):
        # Before the table: whoever reads has locked the view first.
        _alter(conn, sink.table, [(old, new) for _, old, new in renamed])
    for relation in map(catalog.place, sink.tables):
        _alter(conn, relation, [(old, new) for table, old, new in renamed if table == ".".join(relation)])
    for new, old in sink.renamed_indexes.items():
        _rename_index(conn, sink.home[0], old, new)


def _found(
    sink: Sink, held: Mapping[Relation, Mapping[str, Any]], new: str, old: str, names: Mapping[str, str]
) -> list[Renamed]:
    """The columns that still have the old name."""
    found: list[Renamed] = []
    is_there = not held
    for relation, columns in held.items():
        table = ".".join(relation)
        for now, was in names.items():
            if was in columns and now in columns:
                raise NotMigrated(
                    f"sink {sink.name!r}: {was} cannot become {now}: {table} has both; leave it out of renamed if that "
                    "is done, else give the new column a name that is free"
                )
            if was in columns and sink.brings_table:
                raise NotMigrated(
                    f"sink {sink.name!r}: {table} still has {was}; an existing table is never altered: ALTER TABLE … "
                    f"RENAME COLUMN {was} TO {now}, and migrate again"
                )
            is_there = is_there or was in columns or now in columns
            if was in columns:
                found.append((table, was, now))
    if not is_there:
        raise NotMigrated(
            f"sink {sink.name!r}: there is no column {old} to become {new}; say in renamed what it is called now"
        )
    return found


def _is_noted(old: str, new: str, before: Sequence[Rename]) -> bool:
    """Whether the last thing that became of the new name is that the old one became it."""
    last = next((rename for rename in reversed(before) if new in rename), None)
    return last is not None and list(last) == [old, new]


def _check_taken_back(sink: Sink, held: Mapping[Relation, Mapping[str, Any]], before: Sequence[Rename]) -> None:
    """NotMigrated where a column that lacks has another name by now, by which the spec does not know it."""
    wanted = {c.name for c in sink.written}
    known = wanted | {was for new, old in sink.renamed for was in sink.stored_as(new, old).values()}
    for relation, columns in held.items():
        for name in sorted(wanted - columns.keys()):
            now = today(name, before)
            if now in columns and now not in known:
                raise NotMigrated(
                    f"sink {sink.name!r}: {name} of {'.'.join(relation)} was renamed to {now}; deploy a spec that has "
                    f"{now}, or take it back by renamed={{'{name}': '{now}'}}"
                )


def _check_idle(conn: Connection, pipeline: str, sink: Sink) -> None:
    """NotMigrated while some transaction is unfinished that was begun with the old names."""
    c = transactions.c
    mine = (c.pipeline == pipeline, is_in(State.OPEN, State.PREPARED))
    row = Transaction.one_or_none(conn.execute(select(transactions).where(*mine).order_by(c.txid, c.revision).limit(1)))
    if row is None:
        return
    what = ", ".join(f"{old} to {new}" for new, old in sink.renamed)
    raise NotMigrated(
        f"sink {sink.name!r}: {what} is not renamed while {row} is {row.state}, which was begun with the old name; "
        f"pause the DAG, let the spec of before commit it, or `ratchet abort {pipeline} {row.txid} --reason …`, and "
        "migrate again"
    )


def _alter(conn: Connection, relation: Relation, columns: Iterable[tuple[str, str]]) -> None:
    """Rename columns of a table, or of a view, which has each of them once."""
    what = sql.SQL("view" if catalog.kind_of(conn, *relation) == "v" else "table")
    for old, new in dict.fromkeys(columns):
        names = sql.Identifier(*relation), sql.Identifier(old), sql.Identifier(new)
        catalog.driver(conn).execute(sql.SQL("alter {} {} rename column {} to {}").format(what, *names))


def _rename_index(conn: Connection, schema: str, old: str, new: str) -> None:
    """The index goes on under the name that the spec gives it now."""
    if catalog.kind_of(conn, schema, old) == "i" and catalog.kind_of(conn, schema, new) is None:
        names = sql.Identifier(schema, old), sql.Identifier(new)
        catalog.driver(conn).execute(sql.SQL("alter index {} rename to {}").format(*names))
