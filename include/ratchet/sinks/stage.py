"""The stage: where results are written and no reader looks, one exact table per transaction, epoch and sink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy import Connection, Select, Table, cast, delete, func, insert, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.schema import DropTable

from ratchet.ledger.schema import STAGE_SCHEMA, stages
from ratchet.ledger.work import OffsetRange, SinkVote, SliceToken, Tag
from ratchet.sinks.port import Sink, Tagged
from ratchet.sinks.types import sql_column
from ratchet.spec.columns import Column
from ratchet.spec.types import BIGINT, INT

TAGS = (
    Column("_slice", INT, False),
    Column("_try", INT, False),
    Column("_task_partition", INT, False),
    Column("_task_attempt", BIGINT, False),
)


@lru_cache(maxsize=256)
def table(relation: str, sink: Sink) -> Table:
    """The stage of a sink.

    The same object while it is in use, so that SQLAlchemy compiles a statement about it once; every epoch has new ones.
    """
    return Table(relation, sa.MetaData(), *map(sql_column, (*TAGS, *sink.staged)), schema=STAGE_SCHEMA)


def create(conn: Connection, pipeline: str, sinks: Sequence[Sink], txid: int, epoch: int) -> None:
    """Make the epoch's stages if they are not there; the caller holds the transaction's lock.

    They are ordinary logged tables: an unlogged one is empty after a crash, and a vote would stand for nothing.
    """
    if relations(conn, pipeline, txid, epoch):
        return
    for number, sink in enumerate(sinks):
        relation = f"{pipeline}_{txid}_{epoch}_{number}"
        table(relation, sink).create(conn)
        values = {"pipeline": pipeline, "txid": txid, "epoch": epoch, "sink": sink.name, "relation": relation}
        conn.execute(insert(stages).values(values))


def relations(conn: Connection, pipeline: str, txid: int, epoch: int) -> dict[str, str]:
    """{sink: the exact name of its stage} of an epoch."""
    rows = conn.execute(
        select(stages.c.sink, stages.c.relation).where(
            stages.c.pipeline == pipeline, stages.c.txid == txid, stages.c.epoch == epoch
        )
    )
    return {row.sink: row.relation for row in rows}


def drop(conn: Connection, relation: str) -> None:
    """Discard one stage by its exact name, together with its row in the ledger."""
    # Another commit may be dropping it at this moment: PostgreSQL, not a look beforehand, must see that it is gone.
    conn.execute(DropTable(sa.Table(relation, sa.MetaData(), schema=STAGE_SCHEMA), if_exists=True))
    conn.execute(delete(stages).where(stages.c.relation == relation))


def voted(staged: Table, votes: Tagged, *columns: sa.ColumnElement) -> Select:
    """SELECT `columns` of exactly the rows whose tags the votes name; other attempts' rows are not part of it."""
    tags = [(number, attempt, tag.partition, tag.attempt) for number, attempt, vote in votes for tag in vote.tags]
    kinds = (sa.Integer, sa.Integer, sa.Integer, sa.BigInteger)
    names = [c.name for c in TAGS]
    arrays = [
        cast(list(values), ARRAY(kind))
        for values, kind in zip(zip(*tags, strict=True) if tags else [()] * 4, kinds, strict=True)
    ]
    named = func.unnest(*arrays).table_valued(*(sa.column(n, k) for n, k in zip(names, kinds, strict=True)))
    named = named.render_derived(name="voted")
    on = sa.and_(*(staged.c[n] == named.c[n] for n in names))
    return select(*columns).select_from(staged.join(named, on))


def count(conn: Connection, staged: Table, votes: Tagged) -> int:
    """How many staged rows the votes name."""
    return conn.execute(voted(staged, votes, func.count())).scalar_one()


def count_fault(conn: Connection, staged: Table, token: SliceToken, vote: SinkVote) -> str | None:
    """Whether a slice staged another number of rows than it voted for, in a line; None when it did not."""
    found = count(conn, staged, [(token.slice, token.try_number, vote)]) if vote.rows else 0
    return None if found == vote.rows else f"{found:,} rows are staged, the vote says {vote.rows:,}"


def position_fault(
    conn: Connection,
    staged: Table,
    token: SliceToken,
    vote: SinkVote,
    ranges: Iterable[OffsetRange],
    position: tuple[str, ...],
) -> str | None:
    """What is wrong with rows that are told apart by `position`, in a line: their number, their place, repetition."""
    if not vote.rows:
        return None
    c = [staged.c[name] for name in position]
    mine: Tagged = [(token.slice, token.try_number, vote)]
    unique = voted(staged, mine, *c, func.count().label("times")).group_by(*c).subquery()
    found = conn.execute(
        select(
            unique.c._partition,
            func.min(unique.c._offset),
            func.max(unique.c._offset),
            func.sum(unique.c.times),
            func.count(),
        ).group_by(unique.c._partition)
    ).all()
    if sum(row[3] for row in found) != vote.rows:
        return f"{sum(row[3] for row in found):,} rows are staged, the vote says {vote.rows:,}"
    spans: dict[int, list[OffsetRange]] = {}
    for r in ranges:
        spans.setdefault(r.partition, []).append(r)
    for partition, lowest, highest, rows, distinct in found:
        allowed = spans.get(partition, [])
        if not allowed or lowest < allowed[0].from_offset or highest >= allowed[-1].until_offset:
            return f"rows of partition {partition}, offsets {lowest} to {highest}, are not of this slice"
        if rows != distinct:
            return (
                f"{rows - distinct:,} rows of partition {partition} repeat a (_partition, _offset, _n); a transform "
                "that makes several rows of one record numbers them in _n, and must not multiply records in a join"
            )
    return None


def overlap(conn: Connection, staged: Table, votes: Tagged, dead: Table, letters: Tagged) -> str | None:
    """A record that is staged both as a row and as a dead letter, in a line; None when there is none.

    One that was summed, or replaced by a later one of its key, has left no position behind and is not found.
    """
    mine = voted(staged, votes, staged.c._partition, staged.c._offset).subquery()
    given_up = voted(dead, letters, dead.c._partition, dead.c._offset).subquery()
    same = sa.and_(mine.c._partition == given_up.c._partition, mine.c._offset == given_up.c._offset)
    both = conn.execute(select(given_up).select_from(given_up.join(mine, same)).limit(1)).first()
    if both is None:
        return None
    return f"partition {both[0]}, offset {both[1]} is a row and a dead letter; the transform must make it one of them"


def vote_to_json(vote: SinkVote) -> dict:
    """The stored form of a sink's part of a vote; the checksum as text, since JSON numbers are not 64 bits wide."""
    tags = [[tag.partition, tag.attempt] for tag in vote.tags]
    return {"tags": tags, "rows": vote.rows, "checksum": str(vote.checksum)}


def vote_from_json(said: dict) -> SinkVote:
    """The sink's part of a vote from its stored form."""
    return SinkVote(tuple(Tag(*tag) for tag in said["tags"]), said["rows"], int(said["checksum"]))
