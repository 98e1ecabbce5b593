"""The rows of `topics`: how they are kept, read, and joined to rows that have a partition of the line."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, insert, select

from ratchet.ledger.schema import topics
from ratchet.ledger.topics import PER_TOPIC, LineTopic, Topics


def keep(conn: Connection, pipeline: str, source: int, of: Topics, first: int = 0, **joined: Any) -> None:
    """Write down the topics of a source from number `first` on; `joined` is what is noted of those that join it."""
    rows = [
        {"number": number, "topic": each.name, "topic_id": each.topic_id}
        for number, each in enumerate(of)
        if number >= first
    ]
    conn.execute(insert(topics), [{"pipeline": pipeline, "source": source, **row, **joined} for row in rows])


def of_source(conn: Connection, pipeline: str, source: int) -> Topics:
    """The topics of a source, with the ids that they have in it."""
    c = topics.c
    rows = conn.execute(
        select(c.topic, c.topic_id).where(c.pipeline == pipeline, c.source == source).order_by(c.number)
    )
    return Topics(tuple(LineTopic(*row) for row in rows))


def is_of(rows: FromClause) -> ColumnElement[bool]:
    """The condition that joins `topics` to rows that have a pipeline, a source and a partition."""
    c, of = topics.c, rows.c
    return (c.pipeline == of.pipeline) & (c.source == of.source) & (c.number == of.partition // PER_TOPIC)
