"""The view that readers have of a sink whose rows stand in its delta table: those up to the head, with their topic."""

from __future__ import annotations

from psycopg import sql
from sqlalchemy import Connection

from ratchet.ledger.schema import heads, topics
from ratchet.ledger.topics import PER_TOPIC
from ratchet.sinks.port import Sink


def create(conn: Connection, pipeline: str, sink: Sink, existing: list[str]) -> None:
    """Make the view, or replace it: `existing` are its columns in their order, which stay, and new ones follow."""
    wanted = [c.name for c in sink.target.columns]
    names = [*existing, *(name for name in wanted if name not in existing)]
    columns = [_column(name) for name in names]
    statement = sql.SQL(
        "create or replace view {view} as select {columns} from {rows} d "
        # Unique, so a query that asks for no topic joins nothing.
        "left join {topics} t on t.pipeline = {pipeline} and t.source = d._source and t.number = d._partition / {per} "
        # Of a comparison with what it does not know PostgreSQL expects a third of the rows, and takes block ranges for
        # all of them; of a sum it knows no index, and reads the table as it is.
        "where d._txid + 0 <= (select txid from {heads} where pipeline = {pipeline})"
    ).format(
        view=sql.Identifier(*sink.table),
        columns=sql.SQL(", ").join(columns),
        rows=sql.Identifier(*sink.home),
        topics=sql.Identifier(str(topics.schema), topics.name),
        per=sql.Literal(PER_TOPIC),
        heads=sql.Identifier(str(heads.schema), heads.name),
        pipeline=sql.Literal(pipeline),
    )
    driver = conn.connection.driver_connection
    assert driver is not None, "the connection is open"
    driver.execute(statement)


def _column(name: str) -> sql.Composable:
    if name == "_topic":
        return sql.SQL("t.topic as _topic")
    if name == "_partition":
        # As Kafka numbers it, beside the topic.
        return sql.SQL("d._partition % {} as _partition").format(sql.Literal(PER_TOPIC))
    return sql.SQL("d.{}").format(sql.Identifier(name))
