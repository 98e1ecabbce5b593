"""Keys of rows that revisions have taken away: destinations of a sink with keys have still to hear of them.

Which keys a step has touched its delta tells; of a delta that a revision has replaced nothing else is left.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Select, delete, insert, literal, select
from sqlalchemy.dialects import postgresql

from ratchet.ledger.schema import destinations, exchanged
from ratchet.ledger.work import Relation


def are_awaited(conn: Connection, pipeline: str) -> frozenset[str]:
    """The sinks of which the ledger knows destinations, also detached ones, which may come back."""
    return frozenset(conn.execute(select(destinations.c.sink).where(destinations.c.pipeline == pipeline)).scalars())


def note(
    conn: Connection, pipeline: str, table: Relation, revision: tuple[int, int], keys: Select[tuple[Any, ...]]
) -> None:
    """Remember these keys, each once, in the database transaction in which a (txid, revision) takes their rows away."""
    of = keys.distinct().subquery("of")
    of_table = map(literal, (pipeline, *table, *revision))
    texts = postgresql.array([sa.cast(column, sa.Text) for column in of.c])
    names = ["pipeline", "schema", "name", "txid", "revision", "key"]
    conn.execute(insert(exchanged).from_select(names, select(*of_table, texts)))


def forget(conn: Connection, pipeline: str, table: Relation, until: int) -> None:
    """Forget those of transactions up to one: their deltas are not told apart any more, so nobody goes by them."""
    c, (schema, name) = exchanged.c, table
    conn.execute(delete(exchanged).where(c.pipeline == pipeline, c.schema == schema, c.name == name, c.txid <= until))
