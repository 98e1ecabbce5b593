"""Sinks with one row a key: a table of deltas beside the state, and the state folded from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache

import sqlalchemy as sa
from sqlalchemy import Connection, FromClause, MetaData, Table, and_, cast, delete, func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.ledger.schema import DELTA_SCHEMA
from ratchet.ledger.work import OffsetRange, SinkVote, SliceToken
from ratchet.sinks import stage
from ratchet.sinks.checksum import MODULUS, row_hash
from ratchet.sinks.keys import record_hash, same_keys, temporary
from ratchet.sinks.port import Applied, Check, Delta, Sink, Tagged, Voted
from ratchet.sinks.rows import counted
from ratchet.sinks.types import TXID, as_hashed, sql_column
from ratchet.spec.columns import Column


class Keyed(Sink, frozen=True):
    """A sink whose state has one row for each key, folded from what each transaction contributed to it."""

    @property
    @abstractmethod
    def key_columns(self) -> tuple[Column, ...]:
        """The columns that make a row of the state one of its kind."""

    @property
    @abstractmethod
    def state(self) -> tuple[Column, ...]:
        """The columns of the state, without the txid."""

    @abstractmethod
    def folded(self, deltas: FromClause) -> sa.Select:
        """What deltas fold to: the columns of the target, one row a key."""

    @abstractmethod
    def _merged(self, base: Table) -> sa.Select:
        """One row a key with the columns of the deltas, which folds to what the rows of `base` fold to."""

    @abstractmethod
    def _store(self, conn: Connection, staged: Table, txid: int, votes: Tagged) -> None:
        """Store the delta, one row a key, from what slices have staged; Refused where it breaks a rule."""

    @abstractmethod
    def _fold_in(self, conn: Connection, txid: int) -> None:
        """Fold the delta of the newest transaction into the state."""

    @property
    def key_names(self) -> list[str]:
        return [c.name for c in self.key_columns]

    @property
    def kept(self) -> tuple[Column, ...]:
        return tuple(c for c in self.staged if c.name != "_n")

    @property
    def target(self) -> Table:
        """The table that readers see; every row carries the txid that last touched it."""
        return _target(self)

    @property
    def delta(self) -> Table:
        """What each transaction contributed to each key."""
        return _delta(self)

    @property
    def tables(self) -> tuple[Table, ...]:
        return (self.target, self.delta)

    @property
    def rights(self) -> tuple[tuple[str, ...], ...]:
        return (("SELECT", "INSERT", "UPDATE", "DELETE"), ("SELECT", "INSERT", "DELETE"))

    @property
    def unique(self) -> tuple[tuple[str, ...], ...]:
        keys = tuple(self.key_names)
        return (keys, (*keys, TXID.name))

    @property
    def is_compacted(self) -> bool:
        return True

    def fault(
        self, conn: Connection, relation: str, token: SliceToken, vote: SinkVote, ranges: Iterable[OffsetRange]
    ) -> str | None:
        return stage.count_fault(conn, stage.table(relation, self), token, vote)

    def fold(self, conn: Connection, of: Delta, relation: str, votes: Tagged) -> Applied:
        """Store the delta, and fold it: a live one into the state, a replacement by folding its keys anew."""
        staged = stage.table(relation, self)
        applied = counted(of, self.name, stage.count(conn, staged, votes), votes)
        touched = self._forget(conn, of.txid) if of.replaces else None
        self._store(conn, staged, of.txid, votes)
        if touched is None:
            self._fold_in(conn, of.txid)
        else:
            self._touch(conn, touched, of.txid)
            self._fold_anew(conn, touched)
            touched.drop(conn)
        return {**applied, "fingerprint": self.fingerprint(conn, of.txid)}

    def fingerprint(self, conn: Connection, txid: int) -> str:
        """The sum modulo 2^64 of PostgreSQL's hash of each row of a delta, as it stands in its table."""
        whole = func.coalesce(func.sum(cast(record_hash(self.delta.columns), sa.Numeric)), 0)
        total = conn.execute(select(whole).where(self.delta.c._txid == txid)).scalar_one()
        return str(int(total) % 2**64)

    def txids(self, conn: Connection, pipeline: str) -> Sequence[int]:
        return conn.execute(select(self.target.c._txid).distinct()).scalars().all()

    def verify(self, conn: Connection, pipeline: str, voted: Sequence[Voted], compacted: int) -> list[Check]:
        faults = [
            f"{self.name}: the delta of transaction {of.txid} is not the one that was committed"
            for of in voted
            if of.txid > compacted and of.applied and self.fingerprint(conn, of.txid) != of.applied["fingerprint"]
        ]
        count = conn.execute(select(func.count()).select_from(self.delta)).scalar_one()
        unlike = self.unlike(conn)
        state = (f"{unlike:,} rows of the state are not what the deltas fold to",) if unlike else ()
        return [Check(f"{self.name}: deltas", count, tuple(faults)), Check(f"{self.name}: state", 1, state)]

    def contents(self, conn: Connection, of: Voted) -> tuple[int, int]:
        c = self.delta.c
        query = select(*(as_hashed(column, c[column.name]) for column in self.kept)).where(c._txid == of.txid)
        rows, checksum = 0, 0
        for cells in conn.execution_options(yield_per=5_000).execute(query):
            rows, checksum = rows + 1, (checksum + row_hash(self.kept, cells)) % MODULUS
        return rows, checksum

    def unlike(self, conn: Connection) -> int:
        """How many rows the state has otherwise than its deltas fold to, or only one of them has."""
        into = self.target
        anew = self.folded(self.delta).subquery("anew")
        names = [c.name for c in into.columns]
        state, fold = select(*(into.c[n] for n in names)), select(*(anew.c[n] for n in names))
        missing, surplus = fold.except_all(state).subquery("missing"), state.except_all(fold).subquery("surplus")
        counts = [conn.execute(select(func.count()).select_from(rows)).scalar_one() for rows in (missing, surplus)]
        return max(counts)

    def merge(self, conn: Connection, after: int, until: int) -> int:
        """Merge the deltas up to `until` into one row a key, where `after` is up to where that was done before.

        The row keeps the greatest txid of those that it stands for, so the fold of the deltas stays what it was.
        Returns how many rows went.
        """
        deltas, names = self.delta, self.key_names
        columns = [c.name for c in deltas.columns]
        fresh = select(*(deltas.c[n] for n in names)).where(deltas.c._txid > after, deltas.c._txid <= until).distinct()
        fresh = fresh.subquery("fresh")
        base = temporary(conn, f"base_{deltas.name}", deltas.columns)
        for same_key in same_keys(deltas, fresh, names):
            old = select(*(deltas.c[c] for c in columns)).join(fresh, same_key).where(deltas.c._txid <= until)
            conn.execute(insert(base).from_select(columns, old))
        gone = 0
        for same_key in same_keys(deltas, base, names):
            same = and_(same_key, deltas.c._txid == base.c._txid)
            gone += conn.execute(delete(deltas).where(same)).rowcount
        inserting = insert(deltas).from_select(columns, self._merged(base))
        kept = conn.execute(inserting.execution_options(preserve_rowcount=True)).rowcount
        base.drop(conn)
        return gone - kept

    def _forget(self, conn: Connection, txid: int) -> Table:
        """Delete the older delta; returns the table of the keys that it had touched."""
        touched = temporary(conn, f"touched_{self.target.name}", [self.target.c[k] for k in self.key_names])
        self._touch(conn, touched, txid)
        conn.execute(delete(self.delta).where(self.delta.c._txid == txid))
        return touched

    def _touch(self, conn: Connection, touched: Table, txid: int) -> None:
        """Add the keys of one delta."""
        names, deltas = self.key_names, self.delta
        rows = select(*(deltas.c[n] for n in names)).where(deltas.c._txid == txid)
        conn.execute(insert(touched).from_select(names, rows))

    def _fold_anew(self, conn: Connection, touched: Table) -> None:
        """Fold these keys from all their deltas: what comes out replaces the state, a key without any is deleted."""
        into, deltas, names = self.target, self.delta, self.key_names
        wanted = select(*(touched.c[n] for n in names)).distinct().subquery("wanted")
        anew = temporary(conn, f"anew_{into.name}", into.columns)
        columns = [c.name for c in into.columns]
        for same_key in same_keys(deltas, wanted, names):
            rows = self.folded(select(deltas).join(wanted, same_key).subquery("chosen"))
            conn.execute(insert(anew).from_select([c.name for c in rows.selected_columns], rows))
        folding = upsert(into).from_select(columns, select(*(anew.c[c] for c in columns)))
        new = {c: folding.excluded[c] for c in columns if c not in names}
        conn.execute(folding.on_conflict_do_update(index_elements=names, set_=new))
        # EXCEPT takes a null for another, and hashes.
        gone = select(*(touched.c[n] for n in names)).except_(select(*(anew.c[n] for n in names))).subquery("gone")
        for same_key in same_keys(into, gone, names):
            conn.execute(delete(into).where(same_key))
        anew.drop(conn)


@cache
def _target(sink: Keyed) -> Table:
    """The same object each time, so that SQLAlchemy compiles a statement about it once."""
    schema, name = sink.table
    unique = sa.UniqueConstraint(*sink.key_names, name=f"{name}_key", postgresql_nulls_not_distinct=True)
    return Table(name, MetaData(), *map(sql_column, (*sink.state, TXID)), unique, schema=schema)


@cache
def _delta(sink: Keyed) -> Table:
    name = ".".join(sink.table)
    columns = (*sink.kept, TXID)
    # The constraint's index serves the fold of one key over all txids.
    once = sa.UniqueConstraint(*sink.key_names, "_txid", name=f"{name}_once", postgresql_nulls_not_distinct=True)
    by_txid = sa.Index(f"{name}_txid", "_txid")
    return Table(name, MetaData(), *map(sql_column, columns), once, by_txid, schema=DELTA_SCHEMA)
