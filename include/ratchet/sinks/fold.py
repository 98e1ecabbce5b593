"""Making a transaction's delta part of each sink's visible state, inside the commit's database transaction."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection, Table, and_, case, cast, delete, func, insert, literal, or_, select
from sqlalchemy.dialects.postgresql import JSON, aggregate_order_by, distinct_on
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.errors import Refused, StageMismatch
from ratchet.ledger.schema import dead_letters
from ratchet.sinks import refold, stage
from ratchet.sinks.refold import part_of, same_keys
from ratchet.sinks.stage import Tagged
from ratchet.sinks.tables import AnySink, delta, key_names, target
from ratchet.spec.pipeline import Accumulate, Append, Upsert


@dataclass(frozen=True)
class Delta:
    """What one transaction's commit is about to apply: where it is staged is said sink by sink."""

    pipeline: str
    topic: str
    topic_id: str
    txid: int
    replaces: bool
    """Whether an older revision's delta is to give way to this one."""


def apply(conn: Connection, of: Delta, sink: AnySink | None, relation: str, votes: Tagged) -> dict[str, object]:
    """Fold what the votes name of one stage into its sink (None: the dead letters).

    Returns `{"rows": staged rows, "fingerprint": of the delta, where deltas have a table of their own}`. Raises
    StageMismatch when the stage does not hold the rows that were voted, Refused when the delta breaks a rule of the
    sink. The caller rolls back to its savepoint then.
    """
    staged = stage.table(relation, sink)
    expected = sum(vote.rows for _, _, vote in votes)
    match sink:
        case None:
            found = _dead_letters(conn, of, staged, votes)
        case Append():
            found = _append(conn, of, sink, staged, votes)
        case Accumulate() | Upsert():
            found = _keyed(conn, of, sink, staged, votes)
    if found != expected:
        name = sink.name if sink else "dead_letters"
        raise StageMismatch(
            f"{of.pipeline}: transaction {of.txid}, {name}: {found:,} rows are staged, the votes say {expected:,}"
        )
    said: dict[str, object] = {"rows": found}
    if isinstance(sink, Accumulate | Upsert):
        said["fingerprint"] = fingerprint(conn, sink, of.txid)
    return said


def _dead_letters(conn: Connection, of: Delta, staged: Table, votes: Tagged) -> int:
    if of.replaces:
        conn.execute(delete(dead_letters).where(dead_letters.c.pipeline == of.pipeline, dead_letters.c.txid == of.txid))
    c = staged.c
    rows = stage.voted(
        staged,
        votes,
        literal(of.pipeline),
        literal(of.topic),
        literal(of.topic_id),
        c._partition,
        c._offset,
        literal(of.txid, sa.BigInteger),
        c.error,
        c.key,
        c.value,
        cast(c.headers, JSON),
    )
    names = ["pipeline", "topic", "topic_id", "partition", "offset", "txid", "error", "key", "value", "headers"]
    return _insert(conn, dead_letters, names, rows)


def _append(conn: Connection, of: Delta, sink: Append, staged: Table, votes: Tagged) -> int:
    into = target(sink)
    if of.replaces:
        conn.execute(delete(into).where(into.c._txid == of.txid))
    names = [c.name for c in into.columns]
    given = {"_topic": literal(of.topic), "_txid": literal(of.txid, sa.BigInteger)}
    rows = stage.voted(staged, votes, *(given.get(n, staged.c.get(n)) for n in names))
    return _insert(conn, into, names, rows)


def _insert(conn: Connection, into: Table, names: list[str], rows: sa.Select) -> int:
    """INSERT … SELECT; returns how many rows it wrote."""
    inserting = insert(into).from_select(names, rows).execution_options(preserve_rowcount=True)
    return conn.execute(inserting).rowcount


def _keyed(conn: Connection, of: Delta, sink: Accumulate | Upsert, staged: Table, votes: Tagged) -> int:
    """Store the delta of a sink with keys, and fold it: a live one into the state, a replacement by folding anew."""
    found = stage.count(conn, staged, votes)
    deltas = delta(sink)
    touched = _forget(conn, sink, deltas, of.txid) if of.replaces else None
    if isinstance(sink, Accumulate):
        _merge(conn, sink, staged, deltas, of.txid, votes)
    else:
        if sink.order is None:
            _check_one_partition(conn, sink, staged, deltas, of.txid, votes)
        _choose_last(conn, sink, staged, deltas, of.txid, votes)
    if touched is not None:
        refold.touch(conn, touched, deltas, of.txid)
        refold.keys(conn, sink, touched)
        touched.drop(conn)
    elif isinstance(sink, Accumulate):
        _accumulate(conn, sink, deltas, of.txid)
    else:
        _upsert(conn, sink, deltas, of.txid)
    return found


def _forget(conn: Connection, sink: Accumulate | Upsert, deltas: Table, txid: int) -> Table:
    """Delete the older delta; returns the table of the keys that it had touched."""
    touched = refold.touched(conn, sink)
    refold.touch(conn, touched, deltas, txid)
    conn.execute(delete(deltas).where(deltas.c._txid == txid))
    return touched


def fingerprint(conn: Connection, sink: Accumulate | Upsert, txid: int) -> str:
    """The sum modulo 2^64 of PostgreSQL's hash of each row of a delta, as it stands in its table."""
    deltas = delta(sink)
    whole = func.coalesce(func.sum(cast(refold.record_hash(deltas.columns), sa.Numeric)), 0)
    total = conn.execute(select(whole).where(deltas.c._txid == txid)).scalar_one()
    return str(int(total) % 2**64)


def _merge(conn: Connection, sink: Accumulate, staged: Table, deltas: Table, txid: int, votes: Tagged) -> None:
    """The delta: rows of one key from several slices are merged, so a key is folded once a transaction."""
    keys = key_names(sink)
    merged = [
        cast(getattr(func, part_of(measure, sink))(staged.c[measure]), deltas.c[measure].type).label(measure)
        for measure in sink.measures
    ]
    rows = stage.voted(staged, votes, *(staged.c[k] for k in keys), *merged, literal(txid, sa.BigInteger))
    names = [*keys, *sink.measures, "_txid"]
    conn.execute(insert(deltas).from_select(names, rows.group_by(*(staged.c[k] for k in keys))))


def _accumulate(conn: Connection, sink: Accumulate, deltas: Table, txid: int) -> None:
    into, keys = target(sink), key_names(sink)
    names = [*keys, *sink.measures, "_txid"]
    mine = select(*(deltas.c[n] for n in names)).where(deltas.c._txid == txid)
    folding = upsert(into).from_select(names, mine)
    new = folding.excluded
    changed = {m: _join(part_of(m, sink), into.c[m], new[m]) for m in sink.measures}
    conn.execute(folding.on_conflict_do_update(index_elements=keys, set_={**changed, "_txid": new._txid}))


def _join(part: str, old: sa.ColumnElement, new: sa.ColumnElement) -> sa.ColumnElement:
    """State ⊕ delta; a null is a measure without values, and does not count."""
    match part:
        case "min":
            return func.least(old, new)
        case "max":
            return func.greatest(old, new)
    return func.coalesce(old + new, old, new)


def _choose_last(conn: Connection, sink: Upsert, staged: Table, deltas: Table, txid: int, votes: Tagged) -> None:
    """The delta: the last row of each key."""
    names, keys = [c.name for c in deltas.columns], key_names(sink)
    last = [staged.c._offset.desc(), staged.c._partition.desc(), staged.c._n.desc()]
    if sink.order is not None:
        last.insert(0, staged.c[sink.order].desc().nulls_last())
    key_columns = [staged.c[k] for k in keys]
    given = {"_txid": literal(txid, sa.BigInteger).label("_txid")}
    chosen = [given.get(n, staged.c.get(n)) for n in names]
    rows = stage.voted(staged, votes, *chosen).ext(distinct_on(*key_columns)).order_by(*key_columns, *last)
    conn.execute(insert(deltas).from_select(names, rows))


def _upsert(conn: Connection, sink: Upsert, deltas: Table, txid: int) -> None:
    into, keys = target(sink), key_names(sink)
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
            where=_is_later(into.c[sink.order], new[sink.order]) if sink.order else None,
        )
    )


def _is_later(old: sa.ColumnElement, new: sa.ColumnElement) -> sa.ColumnElement:
    """Whether the new row wins: a greater order, or the same in a later transaction; null is least."""
    return or_(old.is_(None), case((new.is_(None), False), else_=new >= old))


def _check_one_partition(
    conn: Connection, sink: Upsert, staged: Table, deltas: Table, txid: int, votes: Tagged
) -> None:
    """Without an order column only Kafka's order within a partition says which row is the last."""
    keys, c = key_names(sink), staged.c
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
    # Grouped, not joined with itself: of a stage PostgreSQL has no statistics, and would compare all keys with all.
    partitions, offsets = (
        func.array_agg(aggregate_order_by(column, seen.c._partition)) for column in (seen.c._partition, seen.c._offset)
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
            *key, p, o, p2, o2 = clash
            raise Refused(
                f"{sink.name}: key {', '.join(map(str, key))} is in partition {p} at offset {o} and in partition {p2} "
                f"at offset {o2}, so no order says which is the last; give the sink an order column, or produce "
                "every key to one partition"
            )
