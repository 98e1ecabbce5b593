"""Where a record is, and where a row comes from: offset → transaction and rows, row → transactions and offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, func, select, text, true
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError

from ratchet.errors import SettingsError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, Transaction
from ratchet.ledger.schema import losses, ranges, sources, transactions
from ratchet.ledger.states import State
from ratchet.ledger.topics import of_kafka
from ratchet.ledger.transactions import newest_revision, read_line
from ratchet.operate.naming import TOPIC, key_in_line, partition_of
from ratchet.sinks import delta, retention
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.sinks.types import POSITION, TXID
from ratchet.spec.pipeline import Pipeline
from ratchet.values.plain import plain

_CANCELED = "57014"
MOST = 100
"""So many rows, and so many places that rows come from, are told at most."""


class Unknown(StrEnum):
    """Why a sink's rows of a record are not told."""

    NOT_COMMITTED = "not_committed"
    """Nobody sees rows of the transaction yet, or it is voided."""
    COMBINED = "combined"
    """A row stands for many records, as in an Accumulate."""
    MERGED = "merged"
    """The transaction's deltas are merged into a base, which keeps the last row of each key."""
    REPLACED = "replaced"
    """There is none: the transform gave none, or a later record of its key in the same transaction replaced it."""
    EXPIRED = "expired"
    """The rows were older than the sink keeps them."""


@dataclass(frozen=True)
class Found:
    """What a sink has of a record: its rows, {column: value}, or why that is not known."""

    sink: str
    rows: tuple[Mapping[str, object], ...]
    unknown: Unknown | None


@dataclass(frozen=True)
class Place:
    """The transaction that has an offset of one source; `lost_why` where a person took the offset out of the plan."""

    source: int
    topic: str
    txid: int
    revision: int
    state: State
    from_offset: int
    until_offset: int
    lost_why: str | None
    sinks: tuple[Found, ...]


@dataclass(frozen=True)
class Where:
    """Where a record is; `topic` is None where the line has not begun.

    `planned_until` is up to where the partition is planned, None where nothing of it is.
    """

    pipeline: str
    topic: str | None
    partition: int
    offset: int
    planned_from: int | None
    planned_until: int | None
    places: tuple[Place, ...]
    is_of_several: bool = False
    """Whether the line has other topics besides."""


@dataclass(frozen=True)
class Made:
    """A transaction that has made a row, and the record, where rows name theirs; else `topic` names all."""

    txid: int
    revision: int
    topic: str
    partition: int | None
    offset: int | None


@dataclass(frozen=True)
class Origins:
    """What has made the rows of a sink in which columns have some values; `more` where that is not all.

    Up to `merged` a transaction stands for itself and for those before it.
    """

    pipeline: str
    sink: str
    columns: tuple[str, ...]
    made: tuple[Made, ...]
    more: bool
    merged: int


def where(ledger: Ledger, spec: Pipeline, partition: int, offset: int, topic: str | None = None) -> Where:
    """Which transactions have the record at an offset, one for each source of the line, and its rows in each sink.

    Of a line of several topics `topic` says of which one; SettingsError where it is not said, or is none of them.
    """
    with ledger.snapshot() as conn:
        line = read_line(conn, spec.name)
        if line is None:
            return Where(spec.name, topic, partition, offset, None, None, ())
        at = partition_of(spec.name, line.topics, topic, partition)
        r, s = ranges.c, sources.c
        # Ranges follow one another: the first that ends behind the offset is the only one that can have it.
        mine = (r.pipeline == s.pipeline, r.source == s.source, r.partition == at, r.until_offset > offset)
        holds = select(ranges).where(*mine).order_by(r.until_offset).limit(1).lateral("holds")
        query = select(s.source, holds.c.txid, holds.c.from_offset, holds.c.until_offset)
        query = query.join(holds, true()).where(s.pipeline == spec.name, holds.c.from_offset <= offset)
        rows = conn.execute(query.order_by(s.source)).all()
        places = tuple(_place(conn, spec, line, at, offset, *row) for row in rows)
        return Where(
            spec.name, line.topics.name(at), partition, offset, *_planned(conn, line, at), places, len(line.topics) > 1
        )


def origins(ledger: Ledger, spec: Pipeline, sink: str, key: Mapping[str, str], seconds: float = 0) -> Origins:
    """Which transactions and records have made the visible rows of a sink in which columns have these values.

    With `seconds` no query takes longer. Raises SettingsError where there is no such sink or column, a value is none of
    its type, a key is not whole, a partition may be of several topics, or the time is over.
    """
    of = _sink(spec, sink, key)
    with ledger.snapshot() as conn:
        line = read_line(conn, spec.name)
        if line is None:
            return Origins(spec.name, sink, tuple(key), (), False, 0)
        # A moment without a zone is the same one everywhere.
        conn.execute(text("set local timezone to 'UTC'"))
        conn.execute(text(f"set local statement_timeout to {int(seconds * 1000)}"))
        try:
            named = key if of.key_names else key_in_line(spec.name, line.topics, key)
            rows = conn.execute(of.made_by(spec.name, named, line.head).limit(MOST + 1)).all()
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != _CANCELED:
                raise
            raise SettingsError(
                f"{spec.name}: {sink}: the search took longer than {seconds:g} s; give the sink an index of these "
                "columns, or look with `ratchet origin`, which waits"
            ) from None
        except (DataError, ProgrammingError) as error:
            state = getattr(error.orig, "sqlstate", None)
            raise SettingsError(
                f"{spec.name}: {sink}: a value is none of its column's type, or PostgreSQL does not compare that type "
                f"({state})"
            ) from None
        names = ", ".join(line.topics.names)
        seen = {txid: _applied(conn, spec.name, txid) for txid in {row[0] for row in rows}}
        made = sorted({(row[0], row[1], row[2]) for row in rows[:MOST]}, key=lambda at: (at[0], at[1] or 0, at[2] or 0))
        return Origins(
            spec.name,
            sink,
            tuple(key),
            tuple(
                Made(txid, seen[txid], *(line.topics.place(p) if p is not None else (names, None)), o)
                for txid, p, o in made
            ),
            len(rows) > MOST,
            line.compacted if of.is_compacted else 0,
        )


def _place(
    conn: Connection,
    spec: Pipeline,
    line: Line,
    partition: int,
    offset: int,
    source: int,
    txid: int,
    from_offset: int,
    until_offset: int,
) -> Place:
    row = _shown(conn, spec.name, txid)
    c = losses.c
    mine = (c.pipeline == spec.name, c.txid == txid, c.source == source, c.partition == partition)
    lost = select(c.reason).where(*mine, c.from_offset <= offset, c.until_offset > offset).limit(1)
    return Place(
        source,
        line.topics.name(partition),
        txid,
        row.revision,
        row.state,
        from_offset,
        until_offset,
        conn.execute(lost).scalar_one_or_none(),
        tuple(_found(conn, spec, line, sink, row, partition, offset) for sink in sinks_of(spec)),
    )


def _found(
    conn: Connection, spec: Pipeline, line: Line, sink: Sink, row: Transaction, partition: int, offset: int
) -> Found:
    query = sink.rows_at(spec.name, row.txid, partition, offset)
    if row.state != State.COMMITTED:
        return Found(sink.name, (), Unknown.NOT_COMMITTED)
    if query is None:
        return Found(sink.name, (), Unknown.COMBINED)
    # Where revisions have moved rows about, PostgreSQL would read the whole table.
    with delta.by_index(conn):
        cells = conn.execute(query.limit(MOST)).mappings().all()
    # Readers see Kafka's number of a partition, and the topic beside it.
    shown = (
        {name: of_kafka(value) if name == POSITION[0].name else value for name, value in each.items()} for each in cells
    )
    rows = tuple({name: plain(value) for name, value in each.items()} for each in shown)
    if rows:
        return Found(sink.name, rows, None)
    if row.txid <= retention.until(conn, spec.name, [sink.table]):
        return Found(sink.name, (), Unknown.EXPIRED)
    if sink.is_compacted:
        return Found(sink.name, (), Unknown.MERGED if row.txid <= line.compacted else Unknown.REPLACED)
    return Found(sink.name, (), None)


def _shown(conn: Connection, pipeline: str, txid: int) -> Transaction:
    """The revision that sinks show; where none does, the newest one."""
    c = transactions.c
    mine = (c.pipeline == pipeline, c.txid == txid, c.state == State.COMMITTED)
    applied = select(transactions).where(*mine).order_by(c.revision.desc()).limit(1)
    return Transaction.one_or_none(conn.execute(applied)) or newest_revision(conn, pipeline, txid)


def _applied(conn: Connection, pipeline: str, txid: int) -> int:
    """The revision that sinks show; 0 where its rows are pruned."""
    c = transactions.c
    mine = (c.pipeline == pipeline, c.txid == txid, c.state == State.COMMITTED)
    return conn.execute(select(func.coalesce(func.max(c.revision), 0)).where(*mine)).scalar_one()


def _planned(conn: Connection, line: Line, partition: int) -> tuple[int | None, int | None]:
    """From where and up to where a partition of the present source is planned."""
    r = ranges.c
    mine = (r.pipeline == line.pipeline, r.source == line.source, r.partition == partition)
    ends = select(r.until_offset).where(*mine)
    first = conn.execute(ends.order_by(r.until_offset).limit(1)).scalar_one_or_none()
    last = conn.execute(ends.order_by(r.until_offset.desc()).limit(1)).scalar_one_or_none()
    return first, last


def _sink(spec: Pipeline, name: str, key: Mapping[str, str]) -> Sink:
    sinks = {sink.name: sink for sink in sinks_of(spec)}
    if name not in sinks:
        raise SettingsError(f"{spec.name}: there is no sink {name!r}; it has {', '.join(sinks)}")
    of = sinks[name]
    columns = of.key_names or [*(column.name for column in (*of.written, TXID)), TOPIC]
    for column in key:
        if column not in columns:
            raise SettingsError(f"{spec.name}: {name} has no column {column!r} to look by; it has {', '.join(columns)}")
    if of.key_names and set(key) != set(of.key_names) or not key:
        raise SettingsError(f"{spec.name}: {name} is looked up by its whole key: {', '.join(columns)}")
    return of
