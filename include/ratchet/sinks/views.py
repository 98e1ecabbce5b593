"""The view that readers have of a sink whose rows stand in its delta table: those up to the head, with their topic."""

from __future__ import annotations

from psycopg import sql
from sqlalchemy import Connection

from ratchet.ledger.schema import heads, sources
from ratchet.sinks.port import Sink


def create(conn: Connection, pipeline: str, sink: Sink, existing: list[str]) -> None:
    """Make the view, or replace it: `existing` are its columns in their order, which stay, and new ones follow."""
    wanted = [c.name for c in sink.target.columns]
    names = [*existing, *(name for name in wanted if name not in existing)]
    columns = [_column(name) for name in names]
    statement = sql.SQL(
        "create or replace view {view} as select {columns} from {rows} d "
        # Unique, so a query that asks for no topic joins nothing.
        "left join {sources} s on s.pipeline = {pipeline} and s.source = d._source "
        # Of a comparison with what it does not know PostgreSQL expects a third of the rows, and takes block ranges for
        # all of them; of a sum it knows no index, and reads the table as it is.
        "where d._txid + 0 <= (select txid from {heads} where pipeline = {pipeline})"
    ).format(
        view=sql.Identifier(*sink.table),
        columns=sql.SQL(", ").join(columns),
        rows=sql.Identifier(*sink.home),
        sources=sql.Identifier(str(sources.schema), sources.name),
        heads=sql.Identifier(str(heads.schema), heads.name),
        pipeline=sql.Literal(pipeline),
    )
    driver = conn.connection.driver_connection
    assert driver is not None, "the connection is open"
    driver.execute(statement)


def _column(name: str) -> sql.Composable:
    if name == "_topic":
        return sql.SQL("s.topic as _topic")
    return sql.SQL("d.{}").format(sql.Identifier(name))
