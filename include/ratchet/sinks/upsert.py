"""Upsert: the last row of each key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NoReturn

import sqlalchemy as sa
from pydantic import field_validator, model_validator
from sqlalchemy import CTE, Connection, FromClause, Table, and_, case, delete, func, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.sql.selectable import LateralFromClause

from ratchet.errors import Refused, StageMismatch
from ratchet.ledger.work import OffsetRange
from ratchet.sinks import delta
from ratchet.sinks.keyed import Keyed
from ratchet.sinks.keys import same_keys, txid_of_key
from ratchet.sinks.port import Delta, Rows
from ratchet.sinks.types import DELETED, POSITION, TXID
from ratchet.spec.columns import Column, parse_columns
from ratchet.spec.declaration import sink_columns
from ratchet.spec.source import Topic
from ratchet.spec.types import is_scalar

if TYPE_CHECKING:
    import pyarrow as pa


class Upsert(Keyed, frozen=True):
    """The last row of each key.

    Of records with equal orders in two partitions none is the later, but by transaction and by offset. Where a person
    has said from where on keys are in other partitions, a record from there on is later than every one before.
    """

    kind: Literal["upsert"] = "upsert"
    key: str
    """The columns that make a key, as `"id bigint"`."""
    columns: str
    """The columns beside the key."""
    order: str | None = None
    """The column whose greatest value tells the last row; of equal ones the later record counts. Without it the key
    must be the Kafka key, whose records Kafka keeps in order in one partition; then, and only then, a tombstone deletes
    the row."""
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
    def takes_deletions(self) -> bool:
        return True

    @property
    def needed(self) -> tuple[Column, ...]:
        return (*self.key_columns, *self.fields)

    @property
    def written(self) -> tuple[Column, ...]:
        # A deletion has a key, an order where there is one, and no other values, whatever their declaration says.
        return (*self.key_columns, *(replace(c, nullable=True) for c in self.fields), DELETED, *POSITION)

    @property
    def state(self) -> tuple[Column, ...]:
        return (*self.key_columns, *self.fields, *(c for c in POSITION if c.name != "_n"))

    @property
    def meaning(self) -> dict[str, object]:
        return {**super().meaning, "order": self.order}

    def index(self, table: Table) -> None:
        if not self.order:
            super().index(table)
            return
        order = table.c[self.order]
        # Read backwards it has the last one first.
        self._index_keys(table, "last", order.nulls_first(), table.c._txid)
        sa.Index(f"{table.name}_txid", table.c._txid)
        # Of deletions, against which each record of a lesser order is held.
        self._index_keys(table, "gone", order, where=table.c._deleted)

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
        by = [*order, "_offset", "_partition", "_n"]
        return combine.last(rows, self.name, self.written, groups, by, required, self.order)

    def fault(self, conn: Connection, rows: Rows, ranges: Iterable[OffsetRange]) -> str | None:
        return delta.position_fault(conn, self, rows, ranges, [c.name for c in POSITION])

    def reduced(self, deltas: FromClause, names: Sequence[str]) -> sa.Select:
        """The greatest order, then the latest transaction, then the latest record."""
        keys = [deltas.c[n] for n in self.key_names]
        picked = [deltas.c[name] for name in (*names, TXID.name)]
        return select(*picked).ext(distinct_on(*keys)).order_by(*keys, *self._last_first(deltas, deltas.c._txid))

    def _last_first(self, deltas: FromClause, txid: sa.ColumnElement[int]) -> list[sa.UnaryExpression]:
        by = [deltas.c[self.order].desc().nulls_last()] if self.order else []
        return [*by, txid.desc(), *(deltas.c[name].desc() for name in ("_offset", "_partition", "_n"))]

    def _last(self, *are: sa.ColumnElement[bool]) -> LateralFromClause:
        """The last one of those rows of deltas that are so; an index has it, however many there are."""
        txid = self.delta.c._txid if self.order else txid_of_key(self.delta)
        return select(self.delta).where(*are).order_by(*self._last_first(self.delta, txid)).limit(1).lateral()

    def _fold_up_to(self, conn: Connection, folded: Table, wanted: FromClause, head: int) -> None:
        """Fold these keys from the last row of each, which stands for all."""
        with delta.in_index_order(conn):
            for same_key in same_keys(self.delta, wanted, self.key_names):
                last = self._last(same_key, txid_of_key(self.delta) <= head)
                self._add(conn, folded, select(last).select_from(wanted.join(last, sa.true())))

    def living(self, reduced: FromClause) -> sa.Select:
        return super().living(reduced).where(~reduced.c._deleted)

    def kept_in_base(self, reduced: FromClause) -> sa.Select:
        """By an order column a deletion has to be remembered: a record of a lesser order may still come."""
        kept = super().kept_in_base(reduced)
        return kept if self.order else kept.where(~reduced.c._deleted)

    def _changes(self, conn: Connection, merged: CTE, of: Delta) -> list[CTE]:
        into, keys = self.target, self.key_names
        goes = [_is_later(into.c[self.order], merged.c[self.order])] if self.order else []
        # Step 1: deletions.
        deletions = [
            delete(into).where(merged.c._deleted, same_key, *goes).returning(into.c._txid).cte(f"deleted_{n}")
            for n, same_key in enumerate(same_keys(into, merged, keys))
        ]
        # Step 2: the rows that live.
        names = [c.name for c in into.columns]
        living = self.living(merged)
        # Where nothing was ever deleted, no row has to be held against that.
        if self.order and self._has_deleted(conn, of.txid):
            living = self._not_deleted_later(living, merged, self.order, of.txid)
        folding = upsert(into).from_select(names, living)
        new = folding.excluded
        follows = or_(into.c._partition == new._partition, into.c._txid < of.since)
        wins = _is_later(into.c[self.order], new[self.order]) if self.order else follows
        folding = folding.on_conflict_do_update(
            index_elements=keys, set_={n: new[n] for n in names if n not in keys}, where=wins
        )
        return [*deletions, folding.returning(into.c._txid).cte("folded")]

    def _has_deleted(self, conn: Connection, txid: int) -> bool:
        """Whether an earlier transaction has deleted anything."""
        deltas = self.delta.c
        # In the order of the index of deletions: PostgreSQL would else look for one through the whole table.
        any_one = select(deltas._txid).where(deltas._deleted, deltas._txid < txid)
        any_one = any_one.order_by(*(deltas[k] for k in self.key_names)).limit(1)
        with delta.in_index_order(conn):
            return conn.execute(any_one).first() is not None

    def _not_deleted_later(self, living: sa.Select, merged: CTE, order: str, txid: int) -> sa.Select:
        """Those of these rows whose key no earlier transaction has deleted with a greater order; null is least."""
        deltas, joined = self.delta.c, merged
        for same_key in same_keys(self.delta, merged, self.key_names):
            over_null = and_(merged.c[order].is_(None), deltas[order].is_not(None))
            # One after the other, as no index serves both at once.
            for is_greater in (deltas[order] > merged.c[order], over_null):
                gone = select(deltas._txid).where(same_key, is_greater, deltas._deleted, deltas._txid < txid)
                # In the order of the index of deletions: PostgreSQL would else look through the whole table for any.
                gone = gone.order_by(deltas[order].desc()).limit(1).lateral()
                joined = joined.outerjoin(gone, sa.true())
                living = living.where(gone.c._txid.is_(None))
        return living.select_from(joined)

    def _check_delta(self, conn: Connection, of: Delta) -> None:
        """Without an order column only Kafka's order within a partition says which row is the last."""
        if self.order is not None:
            return
        mine = self._mine(of)
        keys = [mine.c[k] for k in self.key_names]
        two = select(*keys).group_by(*keys).having(func.min(mine.c._partition) != func.max(mine.c._partition))
        clash = conn.execute(two.limit(1)).one_or_none()
        if clash is not None:
            self._refuse(conn, of, tuple(clash))
        if of.replaces:
            self._check_earlier(conn, of)
        else:
            self._check_deletions(conn, of)

    def _mine(self, of: Delta) -> CTE:
        """A transaction's rows: for the first row of a result PostgreSQL would else go through all keys there are."""
        return select(self.delta).where(self.delta.c._txid == of.txid).cte("mine").prefix_with("MATERIALIZED")

    def _check_folded(self, conn: Connection, of: Delta, living: int, changed: int) -> None:
        if self.order is None and living != changed:
            self._check_earlier(conn, of)
            raise StageMismatch(
                f"{of.pipeline}: transaction {of.txid}, {self.name}: {changed:,} of {living:,} rows were folded; "
                "the state is not what its deltas fold to, as `ratchet verify` tells"
            )

    def _check_deletions(self, conn: Connection, of: Delta) -> None:
        """A deletion of a row that came from another partition; other rows are counted as they are folded."""
        mine, into = self._mine(of), self.target
        for same_key in same_keys(mine, into, self.key_names):
            other = and_(same_key, mine.c._partition != into.c._partition, into.c._txid >= of.since)
            found = select(*(mine.c[k] for k in self.key_names)).join_from(mine, into, other).where(mine.c._deleted)
            clash = conn.execute(found.limit(1)).one_or_none()
            if clash is not None:
                self._refuse(conn, of, tuple(clash))

    def _check_earlier(self, conn: Connection, of: Delta) -> None:
        """A key whose last row of an earlier transaction came from another partition, and was no deletion."""
        mine, keys = self._mine(of), self.key_names
        for same_key in same_keys(self.delta, mine, keys):
            last = self._last(same_key, txid_of_key(self.delta).between(of.since, of.txid - 1))
            is_other = and_(~last.c._deleted, last.c._partition != mine.c._partition)
            found = select(*(mine.c[k] for k in keys)).join_from(mine, last, is_other)
            with delta.in_index_order(conn):
                clash = conn.execute(found.limit(1)).one_or_none()
            if clash is not None:
                self._refuse(conn, of, tuple(clash))

    def _check_later(self, conn: Connection, of: Delta, wanted: FromClause, head: int) -> None:
        """A key whose last row up to a revision lives, and whose next one came from another partition.

        The last row may be of before: what the revision has no more may be the deletion that kept them apart.
        """
        if self.order is not None:
            return
        deltas, txid = self.delta, txid_of_key(self.delta)
        last = head if of.until is None else min(head, of.until - 1)
        for same_key in same_keys(deltas, wanted, self.key_names):
            before = self._last(same_key, txid.between(of.since, of.txid))
            following = select(deltas).where(same_key, txid.between(of.txid + 1, last))
            following = following.order_by(txid).limit(1).lateral()
            is_other = and_(~before.c._deleted, before.c._partition != following.c._partition)
            joined = wanted.join(before, sa.true()).join(following, is_other)
            found = select(*(wanted.c[k] for k in self.key_names)).select_from(joined)
            with delta.in_index_order(conn):
                clash = conn.execute(found.limit(1)).one_or_none()
            if clash is not None:
                self._refuse(conn, of, tuple(clash), last)

    def _refuse(self, conn: Connection, of: Delta, key: tuple[object, ...], until: int | None = None) -> NoReturn:
        """Refused, with the positions of a key that is in two partitions."""
        deltas = self.delta
        is_key = [deltas.c[name].is_not_distinct_from(value) for name, value in zip(self.key_names, key, strict=True)]
        latest = (
            select(deltas.c._partition, deltas.c._offset)
            .where(deltas.c._txid.between(of.since, until or of.txid), *is_key)
            .ext(distinct_on(deltas.c._partition))
            .order_by(deltas.c._partition, deltas.c._txid.desc(), deltas.c._offset.desc())
            .limit(2)
        )
        (p, o), (p2, o2) = conn.execute(latest).all()
        shown = "a key" if of.private else f"key {', '.join(map(str, key))}"
        advice = (
            f"where producers give keys to other partitions since a time, `ratchet repartitioned {of.pipeline} --at "
            "TIME --reason …` lets what came since follow what came before; else give the sink an order column, or "
            "produce every key to one partition"
        )
        if of.replaces:
            advice = (
                "`ratchet repartitioned` changes nothing of what is committed; let the transform give no key from two "
                "partitions without a deletion between, or replay into another table, by an Upsert with an order column"
            )
        raise Refused(
            f"{self.name}: {shown} is in partition {p} at offset {o} and in partition {p2} at "
            f"offset {o2}, so no order says which is the last; {advice}"
        )


def _is_later(old: sa.ColumnElement, new: sa.ColumnElement) -> sa.ColumnElement:
    """Whether the new row wins: a greater order, or the same in a later transaction; null is least."""
    return or_(old.is_(None), case((new.is_(None), False), else_=new >= old))
