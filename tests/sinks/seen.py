"""A sink of one's own, as an example: how often each key was seen. One file, and a case in the suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import CTE, Connection, FromClause, func, select
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.sinks.keyed import Keyed
from ratchet.sinks.port import Delta
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
    def written(self) -> tuple[Column, ...]:
        return (*self.key_columns, TIMES)

    @property
    def state(self) -> tuple[Column, ...]:
        return self.written

    @property
    def described(self) -> str:
        return f"how often each `{self.key}` was seen"

    def combine(self, rows: pa.Table) -> pa.Table:
        grouped = rows.select(self.key_names).group_by(self.key_names, use_threads=False).aggregate([([], "count_all")])
        return grouped.rename_columns([*self.key_names, TIMES.name])

    def reduced(self, deltas: FromClause, names: Sequence[str]) -> sa.Select:
        keys = [deltas.c[name] for name in self.key_names]
        times = sa.cast(func.sum(deltas.c.times), sa.BigInteger).label(TIMES.name)
        return select(*keys, times, func.max(deltas.c._txid).label("_txid")).group_by(*keys)

    def _changes(self, conn: Connection, merged: CTE, of: Delta) -> list[CTE]:
        names = [c.name for c in self.target.columns]
        folding = upsert(self.target).from_select(names, self.living(merged))
        times = self.target.c.times + folding.excluded.times
        changed = {TIMES.name: times, "_txid": folding.excluded._txid}
        folding = folding.on_conflict_do_update(index_elements=self.key_names, set_=changed)
        return [folding.returning(self.target.c._txid).cte("folded")]
