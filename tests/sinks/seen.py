"""A sink of one's own, as an example: how often each key was seen. One file, and a case in the suite."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection, FromClause, Table, func, insert, literal, select
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.sinks import stage
from ratchet.sinks.keyed import Keyed
from ratchet.sinks.port import Tagged
from ratchet.spec.columns import Column, parse_columns
from ratchet.spec.types import BIGINT

TIMES = Column("times", BIGINT, False)


class Seen(Keyed, frozen=True):
    """How many rows there were of each key."""

    has_positions = False
    kind: Literal["seen"] = "seen"
    key: str

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return parse_columns(self.key)

    @property
    def needed(self) -> tuple[Column, ...]:
        return self.key_columns

    @property
    def staged(self) -> tuple[Column, ...]:
        return (*self.key_columns, TIMES)

    @property
    def state(self) -> tuple[Column, ...]:
        return self.staged

    @property
    def described(self) -> str:
        return f"how often each `{self.key}` was seen"

    def combine(self, rows: pa.Table) -> pa.Table:
        grouped = rows.select(self.key_names).group_by(self.key_names, use_threads=False).aggregate([([], "count_all")])
        return grouped.rename_columns([*self.key_names, TIMES.name])

    def folded(self, deltas: FromClause) -> sa.Select:
        keys = [deltas.c[name] for name in self.key_names]
        times = sa.cast(func.sum(deltas.c.times), sa.BigInteger).label(TIMES.name)
        return select(*keys, times, func.max(deltas.c._txid).label("_txid")).group_by(*keys)

    def _merged(self, base: Table) -> sa.Select:
        return self.folded(base)

    def _store(self, conn: Connection, staged: Table, txid: int, votes: Tagged) -> None:
        keys = [staged.c[name] for name in self.key_names]
        times = sa.cast(func.sum(staged.c.times), sa.BigInteger)
        rows = stage.voted(staged, votes, *keys, times, literal(txid, sa.BigInteger)).group_by(*keys)
        conn.execute(insert(self.delta).from_select([*self.key_names, TIMES.name, "_txid"], rows))

    def _fold_in(self, conn: Connection, txid: int) -> None:
        names = [*self.key_names, TIMES.name, "_txid"]
        mine = select(*(self.delta.c[name] for name in names)).where(self.delta.c._txid == txid)
        folding = upsert(self.target).from_select(names, mine)
        times = self.target.c.times + folding.excluded.times
        changed = {TIMES.name: times, "_txid": folding.excluded._txid}
        conn.execute(folding.on_conflict_do_update(index_elements=self.key_names, set_=changed))
