"""Folding keys anew from all their deltas; merging old deltas into a base; holding a state against its deltas."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import Connection, FromClause, Table, and_, cast, delete, func, insert, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.sinks.tables import delta, key_names, target
from ratchet.spec.pipeline import Accumulate, Upsert

Keyed = Accumulate | Upsert


def part_of(measure: str, sink: Accumulate) -> str:
    """Which of sum, min and max a measure is; a count is a sum of ones."""
    for part in ("min", "max"):
        if any(measure == f"{c.name}_{part}" for c in sink.columns_of(part)):
            return part
    return "sum"


def same_keys(one: FromClause, other: FromClause, keys: list[str]) -> list[sa.ColumnElement[bool]]:
    """Conditions that together pick the pairs of one key, a null being like another.

    The first is for keys without nulls, and an index serves it, which none does for IS NOT DISTINCT FROM; the second
    is for the others, and is left out where the columns allow no null. By IS NOT DISTINCT FROM alone PostgreSQL would
    compare all with all, so rows are matched by their hash first.
    """
    conditions = [and_(*(one.c[k] == other.c[k] for k in keys))]
    if any(one.c[k].nullable and other.c[k].nullable for k in keys):
        some_null = or_(*(one.c[k].is_(None) for k in keys))
        # In the declared types, whatever a table has come to have: 5 as a bigint and as a numeric have two hashes.
        one_hash, other_hash = (record_hash(cast(of.c[k], of.c[k].type) for k in keys) for of in (one, other))
        conditions.append(
            and_(some_null, one_hash == other_hash, *(one.c[k].is_not_distinct_from(other.c[k]) for k in keys))
        )
    return conditions


def record_hash(columns: Iterable[sa.ColumnElement]) -> sa.ColumnElement[int]:
    """PostgreSQL's 64-bit hash of these values in this order; a null is hashed like any other."""
    return func.hash_record_extended(func.row(*columns), 0)


def touched(conn: Connection, sink: Keyed) -> Table:
    """An empty table of keys, for this database transaction."""
    into = target(sink)
    return _temporary(conn, f"touched_{into.name}", [into.c[k] for k in key_names(sink)])


def touch(conn: Connection, keys: Table, deltas: Table, txid: int) -> None:
    """Add the keys of one delta."""
    names = [c.name for c in keys.columns]
    conn.execute(insert(keys).from_select(names, select(*(deltas.c[n] for n in names)).where(deltas.c._txid == txid)))


def keys(conn: Connection, sink: Keyed, of: Table) -> None:
    """Fold these keys from all their deltas: what comes out replaces the state, a key without any is deleted."""
    into, deltas, names = target(sink), delta(sink), key_names(sink)
    wanted = select(*(of.c[n] for n in names)).distinct().subquery("wanted")
    anew = _temporary(conn, f"anew_{into.name}", into.columns)
    columns = [c.name for c in into.columns]
    for same_key in same_keys(deltas, wanted, names):
        rows = folded(sink, select(deltas).join(wanted, same_key).subquery("chosen"))
        conn.execute(insert(anew).from_select([c.name for c in rows.selected_columns], rows))
    folding = upsert(into).from_select(columns, select(*(anew.c[c] for c in columns)))
    new = {c: folding.excluded[c] for c in columns if c not in names}
    conn.execute(folding.on_conflict_do_update(index_elements=names, set_=new))
    # EXCEPT takes a null for another, and hashes.
    gone = select(*(of.c[n] for n in names)).except_(select(*(anew.c[n] for n in names))).subquery("gone")
    for same_key in same_keys(into, gone, names):
        conn.execute(delete(into).where(same_key))
    anew.drop(conn)


def folded(sink: Keyed, deltas: FromClause) -> sa.Select:
    """What deltas fold to: the columns of the target, one row a key."""
    names, into = key_names(sink), target(sink)
    if isinstance(sink, Accumulate):
        measures = [cast(getattr(func, part_of(m, sink))(deltas.c[m]), into.c[m].type).label(m) for m in sink.measures]
        columns = [*(deltas.c[n] for n in names), *measures, func.max(deltas.c._txid).label("_txid")]
        return select(*columns).group_by(*(deltas.c[n] for n in names))
    last = _last(sink, deltas)
    return select(*(last.c[c.name] for c in into.columns)).where(~last.c._deleted)


def _last(sink: Upsert, deltas: FromClause) -> sa.Subquery:
    """The delta row of each key that its state comes from: the greatest order, then the latest transaction."""
    keys = [deltas.c[n] for n in key_names(sink)]
    order = [deltas.c[sink.order].desc().nulls_last()] if sink.order else []
    chosen = select(deltas).ext(distinct_on(*keys)).order_by(*keys, *order, deltas.c._txid.desc())
    return chosen.subquery("last")


def unlike(conn: Connection, sink: Keyed) -> int:
    """How many rows the state has otherwise than its deltas fold to, or only one of them has."""
    into = target(sink)
    anew = folded(sink, delta(sink)).subquery("anew")
    names = [c.name for c in into.columns]
    state, fold = select(*(into.c[n] for n in names)), select(*(anew.c[n] for n in names))
    missing, surplus = fold.except_all(state).subquery("missing"), state.except_all(fold).subquery("surplus")
    counts = [conn.execute(select(func.count()).select_from(rows)).scalar_one() for rows in (missing, surplus)]
    return max(counts)


def merge(conn: Connection, sink: Keyed, after: int, until: int) -> int:
    """Merge the deltas up to `until` into one row a key, where `after` is up to where that was done before.

    The row keeps the greatest txid of those that it stands for, so the fold of the deltas stays what it was. Returns
    how many rows went.
    """
    deltas, names = delta(sink), key_names(sink)
    columns = [c.name for c in deltas.columns]
    fresh = select(*(deltas.c[n] for n in names)).where(deltas.c._txid > after, deltas.c._txid <= until).distinct()
    fresh = fresh.subquery("fresh")
    base = _temporary(conn, f"base_{deltas.name}", deltas.columns)
    for same_key in same_keys(deltas, fresh, names):
        old = select(*(deltas.c[c] for c in columns)).join(fresh, same_key).where(deltas.c._txid <= until)
        conn.execute(insert(base).from_select(columns, old))
    gone = 0
    for same_key in same_keys(deltas, base, names):
        same = and_(same_key, deltas.c._txid == base.c._txid)
        gone += conn.execute(delete(deltas).where(same)).rowcount
    rows = _merged(sink, base)
    kept = conn.execute(insert(deltas).from_select(columns, rows).execution_options(preserve_rowcount=True)).rowcount
    base.drop(conn)
    return gone - kept


def _temporary(conn: Connection, name: str, like: Iterable[sa.Column]) -> Table:
    """An empty table with these columns, for this database transaction."""
    columns = [sa.Column(c.name, c.type, nullable=c.nullable) for c in like]
    made = Table(name[:63], sa.MetaData(), *columns, prefixes=["TEMPORARY"], postgresql_on_commit="DROP")
    made.create(conn)
    return made


def _merged(sink: Keyed, base: Table) -> sa.Select:
    """One row a key with the columns of the deltas; a deletion before which nothing is kept is nothing."""
    if isinstance(sink, Accumulate):
        return folded(sink, base)
    last = _last(sink, base)
    return select(*last.columns).where(~last.c._deleted)
