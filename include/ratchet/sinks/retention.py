"""Which rows have expired: the ledger remembers up to which transaction a sink's rows were deleted for their age."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, func, insert, select, tuple_, update

from ratchet.ledger.schema import expired
from ratchet.ledger.work import Relation


def until(conn: Connection, pipeline: str, tables: Iterable[Relation]) -> int:
    """Up to which txid the rows of some of these tables of sinks have expired; 0 where none have."""
    c = expired.c
    mine = (c.pipeline == pipeline, tuple_(c.schema, c.name).in_(list(tables)))
    return conn.execute(select(func.coalesce(func.max(c.until_txid), 0)).where(*mine)).scalar_one()


def note(conn: Connection, pipeline: str, table: Relation, after: int, until_txid: int, rows: int) -> None:
    """Remember it, in the database transaction that deletes them; what follows on the same day adds to its row."""
    c, (schema, name) = expired.c, table
    of = {"pipeline": pipeline, "schema": schema, "name": name}
    today = c.at >= func.date_trunc("day", func.clock_timestamp(), "UTC")
    last = update(expired).where(*(c[key] == value for key, value in of.items()), c.until_txid == after, today)
    more = {"until_txid": until_txid, "rows": c.rows + rows, "at": func.clock_timestamp()}
    if not conn.execute(last.values(more)).rowcount:
        conn.execute(insert(expired).values(**of, until_txid=until_txid, rows=rows))
