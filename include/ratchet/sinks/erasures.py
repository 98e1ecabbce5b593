"""Which rows a person has erased: the ledger remembers how many of each transaction, and their checksum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, func, insert, select, tuple_

from ratchet.ledger.schema import erasures
from ratchet.ledger.work import Relation

Sum = tuple[int, int]
"""(how many rows, the sum of their hashes)."""


def of(conn: Connection, pipeline: str, table: Relation, first: int, last: int) -> dict[int, Sum]:
    """{txid: what was erased of it in a sink's table}, of these transactions."""
    c = erasures.c
    schema, name = table
    mine = (c.pipeline == pipeline, c.schema == schema, c.name == name, c.txid.between(first, last))
    query = select(c.txid, func.sum(c.rows), func.sum(c.checksum)).where(*mine).group_by(c.txid)
    return {txid: (int(rows), int(checksum)) for txid, rows, checksum in conn.execute(query)}


def among(conn: Connection, pipeline: str, tables: Iterable[Relation], first: int, last: int) -> set[int]:
    """Those of these transactions of which rows were erased in some of these tables of sinks."""
    c = erasures.c
    mine = (c.pipeline == pipeline, c.txid.between(first, last), tuple_(c.schema, c.name).in_(list(tables)))
    return set(conn.execute(select(c.txid).where(*mine).distinct()).scalars())


def note(conn: Connection, pipeline: str, table: Relation, erased: Mapping[int, Sum], who: str, reason: str) -> None:
    """Remember it, in the database transaction that deletes them."""
    schema, name = table
    row = {"pipeline": pipeline, "schema": schema, "name": name, "who": who, "reason": reason}
    rows = [{**row, "txid": txid, "rows": of[0], "checksum": of[1]} for txid, of in sorted(erased.items())]
    if rows:
        conn.execute(insert(erasures), rows)
