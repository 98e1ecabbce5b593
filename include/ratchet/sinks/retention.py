"""Which rows have expired: the ledger remembers up to which transaction a sink's rows were deleted for their age."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, func, insert, select, tuple_

from ratchet.ledger.schema import expired
from ratchet.ledger.work import Relation


def until(conn: Connection, pipeline: str, tables: Iterable[Relation]) -> int:
    """Up to which txid the rows of some of these tables of sinks have expired; 0 where none have."""
    c = expired.c
    mine = (c.pipeline == pipeline, tuple_(c.schema, c.name).in_(list(tables)))
    return conn.execute(select(func.coalesce(func.max(c.until_txid), 0)).where(*mine)).scalar_one()


def note(conn: Connection, pipeline: str, table: Relation, until_txid: int, rows: int) -> None:
    """Remember it, in the database transaction that deletes them."""
    schema, name = table
    values = {"pipeline": pipeline, "schema": schema, "name": name, "until_txid": until_txid, "rows": rows}
    conn.execute(insert(expired).values(values))
