"""What the deltas of sinks' tables mean: stored beside them, as another meaning would make another state of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.errors import NotMigrated
from ratchet.ledger.schema import pipelines, targets
from ratchet.ledger.transactions import lock_pipeline
from ratchet.ledger.work import Relation
from ratchet.sinks import catalog, renames
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.sinks.renames import Rename
from ratchet.spec.pipeline import Pipeline


def other(conn: Connection, spec: Pipeline) -> str | None:
    """In which way the spec folds a sink otherwise than its table is folded, in a line; None if it does not."""
    own = of_pipeline(conn, spec)
    for sink in sinks_of(spec):
        other = _differs(own[sink.table], sink.meaning) if sink.table in own else None
        if other:
            return f"sink {sink.name!r}: {other}"
    return None


def of_pipeline(conn: Connection, spec: Pipeline) -> dict[tuple[str, str], dict[str, Any]]:
    """{(schema, table): what its deltas mean}, of the pipeline's tables."""
    found = conn.execute(sa.select(targets).where(targets.c.pipeline == spec.name))
    return {(row.schema, row.name): row.fold for row in found}


def _differs(stored: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """In which way deltas that were written with one meaning do not fold to what the other says, in a line."""
    for name in ("kind", "key", "order"):
        if stored.get(name) != wanted.get(name) and not _may_be_null_now(stored.get(name), wanted.get(name)):
            return f"its {name} was {_said(stored.get(name))} and is {_said(wanted.get(name))} in the spec"
    lost = _lost(stored, wanted)
    if lost:
        return _is_lost(lost[0])
    before, now = stored.get("measures", {}), wanted.get("measures", {})
    for name in before.keys() & now.keys():
        if before[name] != now[name]:
            return f"{name} was a {before[name]} and is a {now[name]} in the spec"
    return None


def _may_be_null_now(stored: object, wanted: object) -> bool:
    """Whether a key is the same but for columns that may be null since; rows whose key is null no fold would find where
    the spec says that there are none.
    """
    if not isinstance(stored, list) or not isinstance(wanted, list) or len(stored) != len(wanted):
        return False
    pairs = zip(stored, wanted, strict=True)
    return all(now in (before, str(before).removesuffix(" not null")) for before, now in pairs)


def _lost(stored: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The columns of keys' rows that the spec has no more."""
    return [name for name in stored.get("columns", ()) if name not in wanted.get("columns", ())]


def _said(part: object) -> str:
    return "none" if part is None else ", ".join(map(str, part)) if isinstance(part, list) else str(part)


def stored(conn: Connection, pipeline: str, sink: Sink, existing: list[Table]) -> dict[str, Any] | None:
    """What the deltas of the sink's tables mean so far, which are the pipeline's, or are to become it: None.

    Raises NotMigrated where they are another line's: its txids mean other transactions, which a revision would replace.
    """
    schema, name = sink.table
    known = conn.execute(
        sa.select(targets.c.pipeline, targets.c.fold).where(targets.c.schema == schema, targets.c.name == name)
    ).one_or_none()
    where = f"sink {sink.name!r}: {schema}.{name}"
    owner = known.pipeline if known else None
    if owner != pipeline:
        has_line = conn.execute(sa.select(sa.exists().where(pipelines.c.pipeline == owner))).scalar_one()
        if existing and has_line:
            raise NotMigrated(
                f"{where} is the table of pipeline {owner!r}, and a pipeline of another name is another line, with "
                "transactions of the same numbers; give the sink another table, and read both by a view, or drop that "
                f"line with all of its tables by `ratchet drop {owner}`, if nobody needs it"
            )
        for table in existing:
            if catalog.has_rows(conn, catalog.place(table)):
                raise NotMigrated(
                    f"{where}: {table.schema}.{table.name} holds rows of transactions that this ledger does not know; "
                    "give the sink another table, and read both by a view"
                )
        return None
    assert known is not None, "it has an owner"
    return known.fold


def lock(conn: Connection, pipeline: str, sink: Sink) -> None:
    """Hold the pipeline's lock if the sink's table is its own.

    A commit that goes on at this moment, with what the table means so far, comes first, or finds what it means then.
    """
    schema, name = sink.table
    mine = (targets.c.pipeline == pipeline, targets.c.schema == schema, targets.c.name == name)
    if conn.execute(sa.select(sa.exists().where(*mine))).scalar_one():
        lock_pipeline(conn, pipeline)


def check(
    conn: Connection, sink: Sink, existing: list[Table], before: dict[str, Any] | None, fresh: Sequence[Rename]
) -> None:
    """NotMigrated where deltas, which meant `before` and whose columns have `fresh` renames, mean another thing now.

    Of deltas that were made with another meaning no state can be folded that is that of their records: a task keeps one
    row of a key, by the order that it has.
    """
    if before is not None and existing:
        where = f"sink {sink.name!r}: {'.'.join(sink.table)}"
        _check_same(conn, where, sink, renames.translated(before, fresh), existing, {new: old for old, new in fresh})


def own(conn: Connection, pipeline: str, sink: Sink, before: dict[str, Any] | None, fresh: Sequence[Rename]) -> None:
    """Note whose the sink's tables are, and what their deltas mean."""
    schema, name = sink.table
    renamed = [*renames.among(before), *fresh]
    fold = {**sink.meaning, "renamed": renamed} if renamed else sink.meaning
    conn.execute(
        upsert(targets)
        .values(schema=schema, name=name, pipeline=pipeline, fold=fold)
        .on_conflict_do_update(index_elements=["schema", "name"], set_={"pipeline": pipeline, "fold": fold})
    )


def _check_same(
    conn: Connection,
    where: str,
    sink: Sink,
    stored: dict[str, Any],
    existing: list[Table],
    was: Mapping[str, str],
) -> None:
    """NotMigrated where the spec gives deltas another meaning than they have; `was` is what columns may be called yet.

    What no row bears out is none, as where a migration is taken back: a key that may not be null any more, or a column
    without any value that the spec has no more.
    """
    there = [catalog.place(table) for table in existing]
    if isinstance(stored.get("key"), list):
        stored = {**stored, "key": _without_nulls(conn, sink, stored["key"], there, was)}
    other = _differs({**stored, "columns": []}, sink.meaning)
    if other:
        raise NotMigrated(
            f"{where}: {other}, and what is there was written with the old one, by which rows were left out that "
            "the new one would keep; put the old one back, or give the sink another table, which begins empty and "
            "`ratchet replay` fills"
        )
    for name in _lost(stored, sink.meaning):
        if catalog.has(conn, there, name):
            raise NotMigrated(
                f"{where}: {_is_lost(name)}; put it back, where a transform may give null for it, say in renamed "
                "what it has become, or give the sink another table, which begins empty and `ratchet replay` fills"
            )


def _without_nulls(
    conn: Connection, sink: Sink, key: list[str], there: list[Relation], was: Mapping[str, str]
) -> list[str]:
    """A key with `not null` at those columns that the spec declares so, and of which no row has a null."""
    required = {str(c) for c in sink.written if not c.nullable}

    def has_null(name: str) -> bool:
        return any(catalog.has(conn, there, called, null=True) for called in (name, was.get(name)) if called)

    return [
        f"{column} not null" if f"{column} not null" in required and not has_null(column.partition(" ")[0]) else column
        for column in key
    ]


def _is_lost(name: str) -> str:
    return f"its column {name} is not in the spec, and a key's row would keep it from another transaction"
