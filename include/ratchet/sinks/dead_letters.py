"""The dead letters: records that give no row, with their bytes and the reason; a sink of every pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa
from sqlalchemy import Connection, Table, Text, cast, delete, insert, literal, select
from sqlalchemy.dialects.postgresql import JSON

from ratchet.ledger.schema import SCHEMA, dead_letters
from ratchet.ledger.work import OffsetRange, SinkVote, SliceToken
from ratchet.sinks import stage
from ratchet.sinks.checksum import row_hash
from ratchet.sinks.port import Applied, Check, Delta, Sink, Tagged, Voted
from ratchet.sinks.rows import check_rows, insert_rows
from ratchet.sinks.types import POSITION
from ratchet.spec.columns import Column
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.spec.types import BINARY, STRING

if TYPE_CHECKING:
    import pyarrow as pa

PLACE = POSITION[:2]
"""A record is one dead letter at most."""


class DeadLetters(Sink, frozen=True):
    """Records that give no row, with their bytes and the reason, in the ledger."""

    name: str = DEAD_LETTERS
    kind: Literal["dead_letters"] = "dead_letters"

    @property
    def table(self) -> tuple[str, str]:
        return SCHEMA, dead_letters.name

    @property
    def needed(self) -> tuple[Column, ...]:
        return (
            Column("key", BINARY),
            Column("value", BINARY),
            Column("headers", STRING),
            Column("error", STRING, False),
        )

    @property
    def staged(self) -> tuple[Column, ...]:
        return (*PLACE, *self.needed)

    @property
    def tables(self) -> tuple[Table, ...]:
        return ()

    @property
    def rights(self) -> tuple[tuple[str, ...], ...]:
        return ()

    @property
    def described(self) -> str:
        return "records that cannot be read or that the transform gives up, with the reason"

    def combine(self, rows: pa.Table) -> pa.Table:
        return rows.select([c.name for c in self.staged])

    def fault(
        self, conn: Connection, relation: str, token: SliceToken, vote: SinkVote, ranges: Iterable[OffsetRange]
    ) -> str | None:
        place = tuple(c.name for c in PLACE)
        return stage.position_fault(conn, stage.table(relation, self), token, vote, ranges, place)

    def fold(self, conn: Connection, of: Delta, relation: str, votes: Tagged) -> Applied:
        into, staged = dead_letters, stage.table(relation, self)
        if of.replaces:
            conn.execute(delete(into).where(into.c.pipeline == of.pipeline, into.c.txid == of.txid))
        c = staged.c
        given: dict[str, sa.ColumnElement] = {
            "pipeline": literal(of.pipeline),
            "topic": literal(of.topic),
            "topic_id": literal(of.topic_id),
            "partition": c._partition,
            "offset": c._offset,
            "txid": literal(of.txid, sa.BigInteger),
            "error": c.error,
            "key": c.key,
            "value": c.value,
            "headers": cast(c.headers, JSON),
        }
        rows = stage.voted(staged, votes, *given.values())
        return insert_rows(conn, of, self.name, insert(into).from_select(list(given), rows), votes)

    def txids(self, conn: Connection, pipeline: str) -> Sequence[int]:
        c = dead_letters.c
        return conn.execute(select(c.txid).where(c.pipeline == pipeline).distinct()).scalars().all()

    def verify(self, conn: Connection, pipeline: str, voted: Sequence[Voted], compacted: int) -> list[Check]:
        return [check_rows(self.name, self._hashes(conn, pipeline), voted)]

    def _hashes(self, conn: Connection, pipeline: str) -> Iterator[tuple[int, int]]:
        """(txid, hash) of every dead letter of the pipeline."""
        c = dead_letters.c
        query = select(c.txid, c.partition, c.offset, c.key, c.value, cast(c.headers, Text), c.error)
        rows = conn.execution_options(yield_per=5_000).execute(query.where(c.pipeline == pipeline))
        for txid, *cells in rows:
            yield txid, row_hash(self.staged, cells)
