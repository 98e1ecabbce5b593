"""The tables of a pipeline that the ledger knows: what roles may do with them, and what goes with the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa
from psycopg import sql
from psycopg.errors import DependentObjectsStillExist
from sqlalchemy import Connection

from ratchet.errors import IllegalMove
from ratchet.ledger.schema import DELTA_SCHEMA, targets
from ratchet.ledger.work import Relation
from ratchet.sinks import catalog
from ratchet.sinks.types import TXID

Rights = dict[Relation, tuple[str, ...]]
"""{table: what a role may do with it}."""


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
    return fits and TXID.name in catalog.columns(conn, shown)


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
    found = conn.execute(sa.select(targets).where(targets.c.pipeline == pipeline).order_by(targets.c.schema, "name"))
    gone = [dropped(conn, row) for row in found.all()]
    return Gone(tuple(n for each in gone for n in each.dropped), tuple(n for each in gone for n in each.left))


def dropped(conn: Connection, row: sa.Row) -> Gone:
    """Drop what one row of `targets` stands for."""
    gone: list[str] = []
    left: list[str] = []
    shown, rows, shows = (row.schema, row.name), (DELTA_SCHEMA, f"{row.schema}.{row.name}"), row.fold["shows"]
    if shows != "own" and _is_as_made(conn, shown, shows):
        _drop(conn, "view" if shows == "view" else "table", shown)
        gone.append(".".join(shown))
    elif catalog.kind_of(conn, *shown):
        left.append(".".join(shown))
    if catalog.kind_of(conn, *rows):
        _drop(conn, "table", rows)
        gone.append(".".join(rows))
    return Gone(tuple(gone), tuple(left))


def _drop(conn: Connection, what: Literal["table", "view"], relation: Relation) -> None:
    try:
        catalog.driver(conn).execute(sql.SQL(f"drop {what} {{}}").format(sql.Identifier(*relation)))
    except DependentObjectsStillExist as error:
        depends = "; ".join((error.diag.message_detail or str(error)).splitlines())
        raise IllegalMove(f"{'.'.join(relation)}: {depends}; drop that first; nothing was changed") from error
