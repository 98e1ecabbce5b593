"""What PostgreSQL's catalog has of sinks' tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table

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


def columns(conn: Connection, schema: str, name: str) -> dict[str, Any]:
    """{name: what PostgreSQL says of the column}, in order."""
    return {column["name"]: column for column in sa.inspect(conn).get_columns(name, schema)}


def has_rows(conn: Connection, table: Table) -> bool:
    """Whether a table that is there has rows of some transaction."""
    if TXID.name not in columns(conn, str(table.schema), table.name):
        return False
    return conn.execute(sa.select(sa.exists().where(table.c._txid > 0))).scalar_one()


def driver(conn: Connection) -> Any:
    """The driver's own connection, for statements about names."""
    opened = conn.connection.driver_connection
    assert opened is not None, "the connection is open"
    return opened
