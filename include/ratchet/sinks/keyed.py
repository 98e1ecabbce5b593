"""Sinks with one row a key: a table of deltas beside the state, and the state folded from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Self

import sqlalchemy as sa
from pydantic import model_validator
from sqlalchemy import CTE, Connection, FromClause, MetaData, Select, Table, and_, delete, func, insert, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.errors import StageMismatch
from ratchet.ledger.faults import Faults
from ratchet.sinks import delta, exchanged
from ratchet.sinks.checksum import MODULUS, row_hash
from ratchet.sinks.keys import count_rows, has_null, key_hash, record_hash, same_keys, temporary, txid_of_key
from ratchet.sinks.port import Applied, Check, Delta, Sink, Stretch, Taken, Touched, Voted
from ratchet.sinks.types import TXID, as_hashed, sql_column, sql_name
from ratchet.spec.columns import Column
from ratchet.spec.destination import DeclaredDestination, To, listed, misfit_of_keys

WORK_BYTES = 64 * 2**20
"""What a fold may use of the server's memory for each sort and each set of rows that it keeps."""
_TOLD_EVERY = 10_000
_AT_ONCE = 500
"""The deltas of so many transactions are looked at by one query."""


class Keyed(Sink, frozen=True):
    """A sink whose state has one row for each key, folded from what each transaction contributed to it.

    A transaction may have several rows of one key, of several writers or of one; the fold makes one of them first.
    """

    to: To = ()
    """Where the rows of its keys go besides, commit by commit: a `Table` in another database, a `KafkaTopic`, a
    `DeltaLake`, an `Iceberg`, or a list of such. The key must be `not null`."""

    @model_validator(mode="after")
    def _can_be_sent(self) -> Self:
        misfit = misfit_of_keys(self.key_columns) if self.to else None
        for destination in self.destinations:
            misfit = misfit or destination.misfit(self.declared, self.key_columns)
        if misfit:
            raise ValueError(f"to: {misfit}")
        return self

    @property
    def destinations(self) -> tuple[DeclaredDestination, ...]:
        return listed(self.to)

    @property
    @abstractmethod
    def key_columns(self) -> tuple[Column, ...]:
        """The columns that make a row of the state one of its kind."""

    @property
    @abstractmethod
    def state(self) -> tuple[Column, ...]:
        """The columns of the state, without the txid."""

    @abstractmethod
    def reduced(self, deltas: FromClause, names: Sequence[str]) -> sa.Select:
        """One row a key, with the columns of these names and `_txid`, that stands for all these rows of deltas."""

    @abstractmethod
    def _changes(self, conn: Connection, merged: CTE, of: Delta) -> list[CTE]:
        """The statements that fold a transaction's delta, one row a key, into the state; the last inserts."""

    def living(self, reduced: FromClause) -> sa.Select:
        """The rows of the state, with the columns of the target, that come from these, which are one a key."""
        return select(*(reduced.c[c.name] for c in self.target.columns))

    def kept_in_base(self, reduced: FromClause) -> sa.Select:
        """Those of these rows, which are one a key, that a base has to keep."""
        return select(*reduced.c)

    def _check_delta(self, conn: Connection, of: Delta) -> None:
        """Refused where a delta, which stands in its table, breaks a rule of the sink."""

    def _check_later(self, conn: Connection, of: Delta, wanted: FromClause, head: int) -> None:
        """Refused where these keys, as a revision leaves them, do not go before those of later transactions."""

    def _check_folded(self, conn: Connection, of: Delta, living: int, changed: int) -> None:
        """Refused where so few rows were changed in the state, of so many that live, that a rule was broken."""

    def index(self, table: Table) -> None:
        """Give the delta table its indexes; none is unique, as two attempts of one task write the same rows."""
        # For the fold of one key over all txids.
        self._index_keys(table, "keys", txid_of_key(table))
        sa.Index(f"{table.name}_txid", table.c._txid)

    def _index_keys(
        self, table: Table, ending: str, *then: sa.ColumnElement, where: sa.ColumnElement[bool] | None = None
    ) -> None:
        """An index by key and then by these columns; keys that have a null are found in another one, by their hash."""
        keys = self.key_names
        sa.Index(f"{table.name}_{ending}", *(table.c[k] for k in keys), *then, postgresql_where=where)
        if any(table.c[k].nullable for k in keys):
            name, some_null = delta.index_name(table.name, f"{ending}_null"), has_null(table, keys)
            some_null = some_null if where is None else and_(some_null, where)
            sa.Index(name, key_hash(table, keys), *then, postgresql_where=some_null)

    @property
    def sent(self) -> tuple[Column, ...]:
        return (*(c for c in self.state if c.name.startswith("_")), TXID)

    @property
    def meaning(self) -> dict[str, object]:
        return {**super().meaning, "key": list(map(str, self.key_columns)), "columns": [c.name for c in self.declared]}

    @property
    def target(self) -> Table:
        """The table that readers see; every row carries the txid that last touched it."""
        return _target(self)

    @property
    def delta(self) -> Table:
        """What each transaction contributed to each key, also what is above the head."""
        return _delta(self)

    @property
    def tables(self) -> tuple[Table, ...]:
        return (self.target, self.delta)

    @property
    def unique(self) -> tuple[tuple[str, ...], ...]:
        return (tuple(self.key_names), ())

    @property
    def is_compacted(self) -> bool:
        return True

    def rows_at(self, pipeline: str, txid: int, partition: int, offset: int) -> sa.Select | None:
        if not self.has_positions:
            return None
        of = self.delta
        picked = (of.c[c.name] for c in self.written)
        return select(*picked).where(of.c._txid == txid, of.c._partition == partition, of.c._offset == offset)

    def made_by(self, pipeline: str, key: Mapping[str, str], head: int) -> sa.Select:
        of, nothing = self.delta, sa.null()
        at = (of.c._partition, of.c._offset) if self.has_positions else (nothing, nothing)
        picked = (of.c._txid, at[0].label("_partition"), at[1].label("_offset"))
        return select(*picked).where(of.c._txid <= head, *delta.having(self, key)).distinct()

    @property
    def _names(self) -> list[str]:
        return [c.name for c in self.written]

    def fold(self, conn: Connection, of: Delta) -> Applied:
        _make_room(conn)
        self._check_delta(conn, of)
        mine = select(self.delta).where(self.delta.c._txid == of.txid)
        merged = self.reduced(mine.subquery("mine"), self._names).cte("merged").prefix_with("MATERIALIZED")
        changes = self._changes(conn, merged, of)
        asked = select(
            self._fingerprint(merged, self._names),
            select(func.count()).select_from(mine.subquery()).scalar_subquery(),
            select(func.count()).select_from(self.living(merged).subquery()).scalar_subquery(),
            select(func.count()).select_from(changes[-1]).scalar_subquery(),
        ).add_cte(*changes)
        fingerprint, found, living, changed = conn.execute(asked).one()
        delta.counted(of, self, found)
        self._check_folded(conn, of, living, changed)
        return self._noted(of, fingerprint)

    def replace(self, conn: Connection, of: Delta, head: int) -> Touched:
        _make_room(conn)
        touched = temporary(conn, self._named("touched"), [self.target.c[k] for k in self.key_names])
        into, columns = self.delta, [c.name for c in self.stored]
        if of.release is None:
            older = select(into).where(into.c._txid == of.txid)
            if of.awaited_as is not None:
                keys = older.with_only_columns(*(into.c[k] for k in self.key_names))
                exchanged.note(conn, of.pipeline, self.table, (of.txid, of.awaited_as), keys)
            self._touch(conn, touched, older)
            conn.execute(delete(into).where(into.c._txid == of.txid))
        elif of.release.before is not None:
            self._check_before(conn, of, of.release.before)
        self._touch(conn, touched, delta.named(of.rows, self))
        copying = insert(into).from_select(columns, delta.named(of.rows, self, *columns))
        delta.counted(of, self, conn.execute(copying.execution_options(preserve_rowcount=True)).rowcount)
        self._check_delta(conn, of)
        count_rows(conn, touched)
        folded = temporary(conn, self._named("folded"), [into.c[n] for n in (*self._names, TXID.name)])
        self._fold_up_to(conn, folded, _distinct(touched), head)
        return Touched(touched, folded, head)

    def refold(self, conn: Connection, of: Delta, left: Touched | Taken | None, head: int) -> Applied:
        """Add to the touched keys what was committed since they were folded; what comes out replaces the state."""
        assert isinstance(left, Touched), "replace has made it"
        deltas, wanted = self.delta, _distinct(left.keys)
        self._check_later(conn, of, wanted, head)
        if head > left.head:
            since = select(deltas).where(deltas.c._txid > left.head, deltas.c._txid <= head)
            since = since.cte("since").prefix_with("MATERIALIZED")
            for same_key in same_keys(since, wanted, self.key_names):
                self._add(conn, left.folded, select(since).join(wanted, same_key))
        self._put(conn, left)
        return self._noted(of, self.fingerprint(conn, of.txid, self.written))

    def fingerprint(self, conn: Connection, txid: int, columns: Sequence[Column]) -> int:
        """The sum of PostgreSQL's hash of each row of a delta, one a key, by the columns that it was written with."""
        return conn.execute(select(self._fingerprint_of(sa.literal(txid, sa.BigInteger), columns))).scalar_one()

    def _fingerprint_of(self, txid: sa.ColumnElement[int], columns: Sequence[Column]) -> sa.ScalarSelect:
        names = [c.name for c in columns]
        # Also those that the spec has no more: migrate drops none.
        known = {c.name: c for c in (*self.stored, *columns)}
        deltas = sa.table(self.delta.name, *map(sql_name, known.values()), schema=self.delta.schema)
        mine = select(deltas).where(deltas.c._txid == txid).correlate_except(deltas).subquery("mine")
        return self._fingerprint(self.reduced(mine, names).subquery("merged"), names)

    @property
    def identity(self) -> tuple[str, ...]:
        return tuple(self.key_names)

    def rows_of(self, pipeline: str, txid: int) -> sa.Select:
        return select(self.delta).where(self.delta.c._txid == txid)

    def one_each(self, rows: FromClause) -> sa.Select:
        reduced = self.reduced(rows, self._names).subquery("reduced")
        return select(*(reduced.c[name] for name in self._names))

    def txids(self, pipeline: str, since: int, head: int) -> Select[tuple[int]]:
        seen = select(self.target.c._txid).distinct()
        return seen.where(self.target.c._txid >= since) if since > 1 else seen

    def verify(self, conn: Connection, of: Stretch, voted: Iterable[Voted]) -> Check:
        faults = Faults()
        held: list[Voted] = []
        for one in voted:
            if not one.txid % _TOLD_EVERY:
                of.say(f"{of.pipeline}: {self.name}, transaction {one.txid:,}")
            # Of when the sink was of another kind, whose tables had no row when they were made anew, there is none.
            if one.txid <= of.compacted or "fingerprint" not in (one.applied or {}):
                continue
            if held and (len(held) == _AT_ONCE or self._written_with(held[0]) != self._written_with(one)):
                self._check_deltas(conn, held, faults)
                held = []
            held.append(one)
        self._check_deltas(conn, held, faults)
        rows = select(func.count()).select_from(self.delta).where(self.delta.c._txid.between(of.first, of.last))
        return Check(f"{self.name}: deltas", conn.execute(rows).scalar_one(), tuple(faults.lines))

    def verify_state(self, conn: Connection, since: int, head: int) -> Check:
        unlike = self.unlike(conn, head, since)
        faults = (f"{unlike:,} rows of the state are not what the deltas fold to",) if unlike else ()
        return Check(f"{self.name}: state", 1, faults)

    def contents(self, conn: Connection, of: Voted) -> tuple[int, int]:
        mine = select(self.delta).where(self.delta.c._txid == of.txid).subquery("mine")
        merged = self.reduced(mine, self._names).subquery("merged")
        query = select(*(as_hashed(column, merged.c[column.name]) for column in self.written))
        rows, checksum = 0, 0
        for cells in conn.execute(query, execution_options={"yield_per": 5_000}):
            rows, checksum = rows + 1, (checksum + row_hash(self.written, cells)) % MODULUS
        return rows, checksum

    def unlike(self, conn: Connection, head: int, since: int = 1) -> int:
        """How many rows the state has otherwise than its deltas fold to, or only one of them has.

        Of the keys alone that a delta, or a row of the state, of a transaction from `since` on has.
        """
        names = [c.name for c in self.target.columns]
        state: FromClause = self.target
        seen: FromClause = select(self.delta).where(self.delta.c._txid <= head).subquery("seen")
        if since > 1:
            state, seen = (self._touched_since(of, head, since) for of in (state, seen))
        anew = self.living(self.reduced(seen, self._names).subquery("reduced")).subquery("anew")
        is_, fold = select(*(state.c[n] for n in names)), select(*(anew.c[n] for n in names))
        missing, surplus = fold.except_all(is_).subquery("missing"), is_.except_all(fold).subquery("surplus")
        counts = [conn.execute(select(func.count()).select_from(rows)).scalar_one() for rows in (missing, surplus)]
        return max(counts)

    def _touched_since(self, rows: FromClause, head: int, since: int) -> FromClause:
        """Those rows, of the state or of deltas, whose keys a transaction from `since` on has touched."""
        deltas, into, keys = self.delta, self.target, self.key_names
        by_delta = select(*(deltas.c[k] for k in keys)).where(deltas.c._txid.between(since, head))
        in_state = select(*(into.c[k] for k in keys)).where(into.c._txid >= since)
        touched = by_delta.union(in_state).subquery("touched")
        parts = [select(*rows.c).join(touched, same) for same in same_keys(rows, touched, keys)]
        return sa.union_all(*parts).subquery()

    def merge(self, conn: Connection, after: int, until: int) -> int:
        """Merge the deltas up to `until` into one row a key, where `after` is up to where that was done before.

        The row keeps a txid of those that it stands for, so the fold of the deltas stays what it was. Returns how many
        rows went.
        """
        deltas, names = self.delta, self.key_names
        columns = [c.name for c in deltas.columns]
        fresh = select(*(deltas.c[n] for n in names)).where(deltas.c._txid > after, deltas.c._txid <= until).distinct()
        fresh = fresh.subquery("fresh")
        base = temporary(conn, self._named("base"), deltas.columns)
        for same_key in same_keys(deltas, fresh, names):
            old = select(*(deltas.c[c] for c in columns)).join(fresh, same_key).where(deltas.c._txid <= until)
            conn.execute(insert(base).from_select(columns, old))
        gone = 0
        for same_key in same_keys(deltas, base, names):
            same = and_(same_key, txid_of_key(deltas) == base.c._txid)
            gone += conn.execute(delete(deltas).where(same)).rowcount
        # What is merged is nobody's any more.
        others = [c for c in columns if c not in ("_txid", "_writer")]
        merged = self.kept_in_base(self.reduced(base, others).subquery("reduced"))
        given = {**{c.name: c for c in merged.selected_columns}, "_writer": sa.literal(0, sa.BigInteger)}
        merged = merged.with_only_columns(*(given[c] for c in columns))
        inserting = insert(deltas).from_select(columns, merged)
        kept = conn.execute(inserting.execution_options(preserve_rowcount=True)).rowcount
        base.drop(conn)
        return gone - kept

    def _named(self, what: str) -> str:
        """The name of a temporary table; two sinks of one name, in two schemas, have theirs at the same time."""
        return delta.index_name(what, "_".join(self.table))

    def _noted(self, of: Delta, fingerprint: int) -> Applied:
        return {**self.noted(of), "fingerprint": _modulo(fingerprint)}

    def _fingerprint(self, merged: FromClause, names: Sequence[str]) -> sa.ScalarSelect:
        # A sum of bigints is exact, and a numeric.
        hashed = record_hash(merged.c[name] for name in names)
        return select(func.coalesce(func.sum(hashed), 0)).select_from(merged).scalar_subquery()

    def _written_with(self, of: Voted) -> tuple[Column, ...]:
        """The columns of a delta, hidden ones behind the others; of an empty one those of tables that are anew."""
        hidden = (c for c in self.written if c.name.startswith("_"))
        return (*(of.columns if of.columns and of.rows else self.declared), *hidden)

    def _check_deltas(self, conn: Connection, held: Sequence[Voted], faults: Faults) -> None:
        """Hold the deltas of transactions that have written the same columns against what was committed."""
        if not held:
            return
        of = sa.cast([one.txid for one in held], ARRAY(sa.BigInteger))
        # No declared column begins with _, so none is taken for this one.
        txid = func.unnest(of).column_valued("_of")
        found = dict(map(tuple, conn.execute(select(txid, self._fingerprint_of(txid, self._written_with(held[0]))))))
        for one in held:
            if _modulo(found[one.txid]) != (one.applied or {}).get("fingerprint"):
                faults.add(f"{self.name}: the delta of transaction {one.txid} is not the one that was committed")

    def _check_before(self, conn: Connection, of: Delta, before: Voted) -> None:
        """StageMismatch where a delta is not as it was committed: by what it folds to together with a release's rows
        nobody could tell any more.
        """
        faults = Faults()
        # Of when the sink was of another kind there is nothing.
        if "fingerprint" in (before.applied or {}):
            self._check_deltas(conn, [before], faults)
        if faults.lines:
            raise StageMismatch(f"{of.pipeline}: {faults.lines[0]}, as `ratchet verify` tells; nothing is added to it")

    def _touch(self, conn: Connection, touched: Table, rows: sa.Select) -> None:
        """Add the keys of rows of deltas."""
        names, of = self.key_names, rows.subquery("of")
        conn.execute(insert(touched).from_select(names, select(*(of.c[n] for n in names)).distinct()))

    def _fold_up_to(self, conn: Connection, folded: Table, wanted: FromClause, head: int) -> None:
        """Fold these keys from all their deltas up to the head, where none can stand for others."""
        deltas = self.delta
        for same_key in same_keys(deltas, wanted, self.key_names):
            self._add(conn, folded, select(deltas).join(wanted, same_key).where(deltas.c._txid <= head))

    def _add(self, conn: Connection, folded: Table, rows: sa.Select) -> None:
        """Add to what keys fold to what these rows of deltas do."""
        reduced = self.reduced(rows.subquery("chosen"), self._names)
        conn.execute(insert(folded).from_select([c.name for c in reduced.selected_columns], reduced))

    def _put(self, conn: Connection, touched: Touched) -> None:
        """Put what the keys fold to in place of the state; a key that folds to nothing is deleted."""
        into, names = self.target, self.key_names
        anew = temporary(conn, self._named("anew"), into.columns)
        columns = [c.name for c in into.columns]
        rows = self.living(self.reduced(touched.folded, self._names).subquery("reduced"))
        conn.execute(insert(anew).from_select([c.name for c in rows.selected_columns], rows))
        folding = upsert(into).from_select(columns, select(*(anew.c[c] for c in columns)))
        new = {c: folding.excluded[c] for c in columns if c not in names}
        conn.execute(folding.on_conflict_do_update(index_elements=names, set_=new))
        # EXCEPT takes a null for another, and hashes.
        keys = touched.keys
        gone = select(*(keys.c[n] for n in names)).except_(select(*(anew.c[n] for n in names))).subquery("gone")
        for same_key in same_keys(into, gone, names):
            conn.execute(delete(into).where(same_key))
        for table in (keys, touched.folded, anew):
            table.drop(conn)


def _distinct(keys: Table) -> FromClause:
    """Each key once."""
    return select(*keys.columns).distinct().subquery("wanted")


@cache
def _target(sink: Keyed) -> Table:
    """The same object each time, so that SQLAlchemy compiles a statement about it once."""
    schema, name = sink.table
    unique = sa.UniqueConstraint(*sink.key_names, name=f"{name}_key", postgresql_nulls_not_distinct=True)
    # Room in each page, so that an update of a row does not touch the index.
    columns = map(sql_column, (*sink.state, TXID))
    return Table(name, MetaData(), *columns, unique, schema=schema, postgresql_with={"fillfactor": 80})


@cache
def _delta(sink: Keyed) -> Table:
    table = delta.table(sink.home, sink).to_metadata(MetaData())
    sink.index(table)
    return table


def _make_room(conn: Connection) -> None:
    """Let this database transaction sort and keep rows in memory, and not compile what it runs once."""
    # PostgreSQL's 4 MB are meant for many sessions at a time; of a pipeline's folds there is one.
    room = func.greatest(func.pg_size_bytes(func.current_setting("work_mem")), WORK_BYTES)
    conn.execute(select(func.set_config("work_mem", func.concat(room, "B"), True), func.set_config("jit", "off", True)))


def _modulo(fingerprint: int) -> str:
    """As text, since JSON numbers are not 64 bits wide."""
    return str(int(fingerprint) % 2**64)
