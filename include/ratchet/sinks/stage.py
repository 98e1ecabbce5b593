"""Stages: where rows are written that may not stand in a delta table yet, one table per transaction, epoch and sink.

A revision's txid is below the head, so its rows would be seen before its commit; and a user's own table knows no head.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.schema import DropTable

from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import STAGE_SCHEMA, stages
from ratchet.ledger.work import Relation
from ratchet.sinks import delta
from ratchet.sinks.port import Sink


def is_staged(sink: Sink, row: Transaction) -> bool:
    """Whether the rows of a transaction, or of its revision, go to a stage."""
    return row.revision > 0 or sink.stages


def create(conn: Connection, sinks: Sequence[Sink], row: Transaction) -> None:
    """Make the stages of the row's epoch that are needed and not there; the caller holds the transaction's lock.

    They are ordinary logged tables: an unlogged one is empty after a crash, and a vote would stand for nothing.
    """
    if _made(conn, row):
        return
    for number, sink in enumerate(sinks):
        if not is_staged(sink, row):
            continue
        relation = f"{row.pipeline}_{row.txid}_{row.epoch}_{number}"
        delta.table((STAGE_SCHEMA, relation), sink).create(conn)
        values = {"pipeline": row.pipeline, "txid": row.txid, "epoch": row.epoch}
        conn.execute(insert(stages).values(**values, sink=sink.name, relation=relation))


def relations(conn: Connection, sinks: Sequence[Sink], row: Transaction) -> dict[str, Relation]:
    """{sink: the table that has the rows of the row's epoch}; without those whose stage is gone."""
    staged = {sink.name for sink in sinks if is_staged(sink, row)}
    homes = {sink.name: sink.home for sink in sinks if sink.name not in staged}
    made = _made(conn, row) if staged else {}
    return homes | {name: (STAGE_SCHEMA, relation) for name, relation in made.items()}


def drop(conn: Connection, relation: str) -> None:
    """Discard one stage by its exact name, together with its row in the ledger."""
    # Another commit may be dropping it at this moment: PostgreSQL, not a look beforehand, must see that it is gone.
    conn.execute(DropTable(sa.Table(relation, sa.MetaData(), schema=STAGE_SCHEMA), if_exists=True))
    conn.execute(delete(stages).where(stages.c.relation == relation))


def _made(conn: Connection, row: Transaction) -> dict[str, str]:
    """{sink: the exact name of its stage}, of those that there are."""
    found = conn.execute(
        select(stages.c.sink, stages.c.relation).where(
            stages.c.pipeline == row.pipeline, stages.c.txid == row.txid, stages.c.epoch == row.epoch
        )
    )
    return {made.sink: made.relation for made in found}
