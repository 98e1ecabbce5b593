"""Making a transaction's delta part of each sink's visible state, inside the commit's database transaction."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection, Table, and_, case, cast, delete, func, insert, literal, or_, select
from sqlalchemy.dialects.postgresql import JSONB, distinct_on
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.errors import Refused, StageMismatch
from ratchet.pipeline import Accumulate, Append, Topic, Upsert
from ratchet.schema import dead_letters
from ratchet.sinks import stage
from ratchet.sinks.stage import Tagged
from ratchet.sinks.tables import AnySink, delta, key_names, target


def apply(
    conn: Connection,
    pipeline: str,
    topic: Topic,
    topic_id: str,
    sink: AnySink | None,
    relation: str,
    txid: int,
    votes: Tagged,
) -> int:
    """Fold what the votes name of one stage into its sink (None: the dead letters), and return the rows staged.

    Raises StageMismatch when the stage does not hold the rows that were voted, Refused when the delta breaks a
    rule of the sink. The caller rolls back to its savepoint then.
    """
    staged = stage.table(relation, sink)
    expected = sum(vote.rows for _, _, vote in votes)
    match sink:
        case None:
            found = _dead_letters(conn, pipeline, topic.name, topic_id, staged, txid, votes)
        case Append():
            found = _append(conn, topic.name, sink, staged, txid, votes)
        case Accumulate():
            found = _accumulate(conn, sink, staged, txid, votes)
        case Upsert():
            found = _upsert(conn, sink, staged, txid, votes)
    if found != expected:
        name = sink.name if sink else "dead_letters"
        raise StageMismatch(
            f"{pipeline}: transaction {txid}, {name}: {found:,} rows are staged, the votes say {expected:,}"
        )
    return found


def _dead_letters(
    conn: Connection, pipeline: str, topic: str, topic_id: str, staged: Table, txid: int, votes: Tagged
) -> int:
    c = staged.c
    rows = stage.voted(
        staged,
        votes,
        literal(pipeline),
        literal(topic),
        literal(topic_id),
        c._partition,
        c._offset,
        literal(txid, sa.BigInteger),
        c.error,
        c.key,
        c.value,
        cast(c.headers, JSONB),
    )
    names = ["pipeline", "topic", "topic_id", "partition", "offset", "txid", "error", "key", "value", "headers"]
    return _insert(conn, dead_letters, names, rows)


def _append(conn: Connection, topic: str, sink: Append, staged: Table, txid: int, votes: Tagged) -> int:
    into = target(sink)
    names = [c.name for c in into.columns]
    given = {"_topic": literal(topic), "_txid": literal(txid, sa.BigInteger)}
    rows = stage.voted(staged, votes, *(given.get(n, staged.c.get(n)) for n in names))
    return _insert(conn, into, names, rows)


def _insert(conn: Connection, into: Table, names: list[str], rows: sa.Select) -> int:
    """INSERT … SELECT; returns how many rows it wrote."""
    inserting = insert(into).from_select(names, rows).execution_options(preserve_rowcount=True)
    return conn.execute(inserting).rowcount


def _accumulate(conn: Connection, sink: Accumulate, staged: Table, txid: int, votes: Tagged) -> int:
    found = stage.count(conn, staged, votes)
    into, deltas, keys = target(sink), delta(sink), key_names(sink)
    # Rows of one key from several slices are merged first: a key is folded once a transaction.
    merged = [
        cast(getattr(func, _part(measure, sink))(staged.c[measure]), deltas.c[measure].type).label(measure)
        for measure in sink.measures
    ]
    rows = stage.voted(staged, votes, *(staged.c[k] for k in keys), *merged, literal(txid, sa.BigInteger))
    names = [*keys, *sink.measures, "_txid"]
    conn.execute(insert(deltas).from_select(names, rows.group_by(*(staged.c[k] for k in keys))))
    mine = select(*(deltas.c[n] for n in names)).where(deltas.c._txid == txid)
    folding = upsert(into).from_select(names, mine)
    new = folding.excluded
    changed = {m: _join(_part(m, sink), into.c[m], new[m]) for m in sink.measures}
    conn.execute(folding.on_conflict_do_update(index_elements=keys, set_={**changed, "_txid": new._txid}))
    return found


def _part(measure: str, sink: Accumulate) -> str:
    """Which of sum, min and max a measure is; a count is a sum of ones."""
    for part in ("min", "max"):
        if any(measure == f"{c.name}_{part}" for c in sink.columns_of(part)):
            return part
    return "sum"


def _join(part: str, old: sa.ColumnElement, new: sa.ColumnElement) -> sa.ColumnElement:
    """State ⊕ delta; a null is a measure without values, and does not count."""
    match part:
        case "min":
            return func.least(old, new)
        case "max":
            return func.greatest(old, new)
    return func.coalesce(old + new, old, new)


def _upsert(conn: Connection, sink: Upsert, staged: Table, txid: int, votes: Tagged) -> int:
    found = stage.count(conn, staged, votes)
    into, deltas, keys = target(sink), delta(sink), key_names(sink)
    if sink.order is None:
        _check_one_partition(conn, sink, staged, into, votes)
    # Step 1: the delta, the last row of each key.
    names = [c.name for c in deltas.columns]
    last = [staged.c._offset.desc(), staged.c._partition.desc(), staged.c._n.desc()]
    if sink.order is not None:
        last.insert(0, staged.c[sink.order].desc().nulls_last())
    key_columns = [staged.c[k] for k in keys]
    given = {"_txid": literal(txid, sa.BigInteger).label("_txid")}
    chosen = [given.get(n, staged.c.get(n)) for n in names]
    rows = stage.voted(staged, votes, *chosen).ext(distinct_on(*key_columns)).order_by(*key_columns, *last)
    conn.execute(insert(deltas).from_select(names, rows))
    # Step 2: deletions.
    same_key = and_(*(into.c[k].is_not_distinct_from(deltas.c[k]) for k in keys))
    mine = deltas.c._txid == txid
    conn.execute(delete(into).where(mine, deltas.c._deleted, same_key))
    # Step 3: the rows that live.
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
    return found


def _is_later(old: sa.ColumnElement, new: sa.ColumnElement) -> sa.ColumnElement:
    """Whether the new row wins: a greater order, or the same in a later transaction; null is least."""
    return or_(old.is_(None), case((new.is_(None), False), else_=new >= old))


def _check_one_partition(conn: Connection, sink: Upsert, staged: Table, into: Table, votes: Tagged) -> None:
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
    other = seen.alias("other")
    pairs = [(seen, other), (seen, into)]
    for one, two in pairs:
        same_key = and_(*(one.c[k].is_not_distinct_from(two.c[k]) for k in keys))
        clash = conn.execute(
            select(*(one.c[k] for k in keys), one.c._partition, one.c._offset, two.c._partition, two.c._offset)
            .join_from(one, two, and_(same_key, one.c._partition != two.c._partition))
            .limit(1)
        ).one_or_none()
        if clash:
            *key, p, o, p2, o2 = clash
            raise Refused(
                f"{sink.name}: key {', '.join(map(str, key))} is in partition {p} at offset {o} and in partition {p2} "
                f"at offset {o2}, so no order says which is the last; give the sink an order column, or produce "
                "every key to one partition"
            )
