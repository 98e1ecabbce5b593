"""Upsert: the last row of each key."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa
from pydantic import field_validator, model_validator
from sqlalchemy import Connection, FromClause, Table, and_, case, delete, func, insert, literal, or_, select
from sqlalchemy.dialects.postgresql import aggregate_order_by, distinct_on
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.errors import Refused
from ratchet.ledger.work import OffsetRange, SinkVote, SliceToken
from ratchet.sinks import stage
from ratchet.sinks.keyed import Keyed
from ratchet.sinks.keys import same_keys
from ratchet.sinks.port import Tagged
from ratchet.sinks.types import DELETED, POSITION
from ratchet.spec.columns import Column, parse_columns
from ratchet.spec.declaration import sink_columns
from ratchet.spec.source import Topic
from ratchet.spec.types import is_scalar

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa


class Upsert(Keyed, frozen=True):
    """The last row of each key: the greatest `order` column, then the later record.

    Without `order` the key must be the Kafka key, whose records Kafka keeps in order in one partition;
    then, and only then, a tombstone deletes the row.
    """

    kind: Literal["upsert"] = "upsert"
    key: str
    columns: str
    order: str | None = None
    _check = field_validator("key", "columns")(sink_columns)

    @model_validator(mode="after")
    def _names_fit(self) -> Upsert:
        keys, values = {c.name for c in self.key_columns}, {c.name for c in self.fields}
        if keys & values:
            raise ValueError(f"columns: {', '.join(sorted(keys & values))} is in key too")
        if self.order is not None and self.order not in values:
            raise ValueError(f"order: {self.order!r} is not one of columns")
        for part, columns in (("key", self.key_columns), ("order", [c for c in self.fields if c.name == self.order])):
            for column in columns:
                if not is_scalar(column.type):
                    raise ValueError(f"{part}: {column.name!r} is a {column.type}, whose values have no order")
        return self

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return parse_columns(self.key)

    @property
    def fields(self) -> tuple[Column, ...]:
        """The declared columns beside the key."""
        return parse_columns(self.columns)

    @property
    def needs_key(self) -> bool:
        return self.order is None

    def misfit(self, source: Topic) -> str | None:
        if self.order is not None and source.tombstones == "delete":
            return (
                f"Upsert {self.name!r} has an order column, and tombstones have no order: "
                'leave order out, or let tombstones="dead_letter"'
            )
        if self.order is None and set(self.key_names) != {c.name for c in source.key_columns}:
            return (
                f"Upsert {self.name!r} has no order column, so its key must be the Kafka key: "
                "declare key in Topic with the same name, or give order"
            )
        return None

    @property
    def needed(self) -> tuple[Column, ...]:
        return (*self.key_columns, *self.fields)

    @property
    def staged(self) -> tuple[Column, ...]:
        # A deletion has a key and no values, whatever the values' declaration says.
        return (*self.key_columns, *(replace(c, nullable=True) for c in self.fields), DELETED, *POSITION)

    @property
    def state(self) -> tuple[Column, ...]:
        return (*self.key_columns, *self.fields, *(c for c in POSITION if c.name != "_n"))

    @property
    def described(self) -> str:
        order = f"the greatest `{self.order}`" if self.order else "the latest record"
        return f"the last row of each `{self.key}` ({order}): `{self.columns}`"

    def combine(self, rows: pa.Table) -> pa.Table:
        """The last row of each key; without an order column of each key and partition."""
        from ratchet.sinks import combine

        groups = self.key_names if self.order else [*self.key_names, "_partition"]
        order = [self.order] if self.order else []
        required = [c.name for c in self.fields if not c.nullable]
        return combine.last(rows, self.name, self.staged, groups, [*order, "_offset", "_partition", "_n"], required)

    def fault(
        self, conn: Connection, relation: str, token: SliceToken, vote: SinkVote, ranges: Iterable[OffsetRange]
    ) -> str | None:
        place = tuple(c.name for c in POSITION)
        return stage.position_fault(conn, stage.table(relation, self), token, vote, ranges, place)

    def folded(self, deltas: FromClause) -> sa.Select:
        last = self._last(deltas)
        return select(*(last.c[c.name] for c in self.target.columns)).where(~last.c._deleted)

    def _merged(self, base: Table) -> sa.Select:
        """A deletion before which nothing is kept is nothing."""
        last = self._last(base)
        return select(*last.columns).where(~last.c._deleted)

    def _last(self, deltas: FromClause) -> sa.Subquery:
        """The delta row of each key that its state comes from: the greatest order, then the latest transaction."""
        keys = [deltas.c[n] for n in self.key_names]
        order = [deltas.c[self.order].desc().nulls_last()] if self.order else []
        chosen = select(deltas).ext(distinct_on(*keys)).order_by(*keys, *order, deltas.c._txid.desc())
        return chosen.subquery("last")

    def _store(self, conn: Connection, staged: Table, txid: int, votes: Tagged) -> None:
        """The last row of each key."""
        if self.order is None:
            self._check_one_partition(conn, staged, txid, votes)
        deltas = self.delta
        names = [c.name for c in deltas.columns]
        last = [staged.c._offset.desc(), staged.c._partition.desc(), staged.c._n.desc()]
        if self.order is not None:
            last.insert(0, staged.c[self.order].desc().nulls_last())
        key_columns = [staged.c[k] for k in self.key_names]
        given = {"_txid": literal(txid, sa.BigInteger).label("_txid")}
        chosen = [given[n] if n in given else staged.c[n] for n in names]
        rows = stage.voted(staged, votes, *chosen).ext(distinct_on(*key_columns)).order_by(*key_columns, *last)
        conn.execute(insert(deltas).from_select(names, rows))

    def _fold_in(self, conn: Connection, txid: int) -> None:
        into, deltas, keys = self.target, self.delta, self.key_names
        mine = deltas.c._txid == txid
        # Step 1: deletions.
        for same_key in same_keys(into, deltas, keys):
            conn.execute(delete(into).where(mine, deltas.c._deleted, same_key))
        # Step 2: the rows that live.
        kept = [c.name for c in into.columns]
        living = select(*(deltas.c[n] for n in kept)).where(mine, ~deltas.c._deleted)
        folding = upsert(into).from_select(kept, living)
        new = folding.excluded
        conn.execute(
            folding.on_conflict_do_update(
                index_elements=keys,
                set_={n: new[n] for n in kept if n not in keys},
                where=_is_later(into.c[self.order], new[self.order]) if self.order else None,
            )
        )

    def _check_one_partition(self, conn: Connection, staged: Table, txid: int, votes: Tagged) -> None:
        """Without an order column only Kafka's order within a partition says which row is the last."""
        keys, c, deltas = self.key_names, staged.c, self.delta
        seen = (
            stage.voted(
                staged,
                votes,
                *(c[k] for k in keys),
                c._partition,
                func.max(c._offset).label("_offset"),
            )
            .group_by(*(c[k] for k in keys), c._partition)
            .cte("seen")
        )
        key_columns = [seen.c[k] for k in keys]
        # Grouped, not joined with itself: of a stage PostgreSQL has no statistics, and would compare all with all.
        partitions, offsets = (
            func.array_agg(aggregate_order_by(column, seen.c._partition))
            for column in (seen.c._partition, seen.c._offset)
        )
        two = [partitions[1], offsets[1], partitions[2], offsets[2]]
        pairs = [select(*key_columns, *two).group_by(*key_columns).having(func.count() > 1)]
        for same_key in same_keys(deltas, seen, keys):
            # The row that this transaction found: the last one of an earlier transaction.
            found = (
                select(
                    *key_columns,
                    seen.c._partition,
                    seen.c._offset,
                    deltas.c._partition.label("other_partition"),
                    deltas.c._offset.label("other_offset"),
                    deltas.c._deleted,
                )
                .join_from(seen, deltas, and_(same_key, deltas.c._txid < txid))
                .ext(distinct_on(*key_columns, seen.c._partition))
                .order_by(*key_columns, seen.c._partition, deltas.c._txid.desc())
                .subquery("found")
            )
            columns = list(found.columns)[:-1]
            pairs.append(select(*columns).where(~found.c._deleted, found.c._partition != found.c.other_partition))
        for pair in pairs:
            clash = conn.execute(pair.limit(1)).one_or_none()
            if clash:
                *key, p, o, p2, o2 = tuple(clash)
                raise Refused(
                    f"{self.name}: key {', '.join(map(str, key))} is in partition {p} at offset {o} and in partition "
                    f"{p2} at offset {o2}, so no order says which is the last; give the sink an order column, or "
                    "produce every key to one partition"
                )


def _is_later(old: sa.ColumnElement, new: sa.ColumnElement) -> sa.ColumnElement:
    """Whether the new row wins: a greater order, or the same in a later transaction; null is least."""
    return or_(old.is_(None), case((new.is_(None), False), else_=new >= old))
