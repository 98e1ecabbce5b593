"""The channel of a pipeline: PostgreSQL tells those who wait that the head has moved, or that work has ended."""

from __future__ import annotations

from sqlalchemy import Connection, func, select


def channel_of(pipeline: str) -> str:
    """Its name: whole, since a pipeline's name has 32 characters at most, and a channel's may have 63."""
    return f"ratchet_{pipeline}"


def notify(conn: Connection, pipeline: str) -> None:
    """Tell whoever waits, when this database transaction commits; once, however often it is called within it."""
    conn.execute(select(func.pg_notify(channel_of(pipeline), "")))
