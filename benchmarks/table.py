"""The tables that contestants write into: made empty, looked at, held against what the backlog adds up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString, cast

import psycopg
from psycopg import sql

from benchmarks.backlog import COLUMNS, Backlog
from ratchet import Append, Pipeline, Topic
from ratchet.errors import StageMismatch
from ratchet.ledger.work import OffsetRange, Relation
from ratchet.operate.migrate import migrate
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.parts import DeclaredSink

SLICE = 250_000
ALL = slice(None)
PLAIN_COLUMNS = "id bigint, account text, amount float8, score int, kind text, _partition int, _offset bigint"
"""What a contestant without ratchet keeps of a record: its columns, and where it comes from."""


def spec_of(name: str, backlog: Backlog, *sinks: DeclaredSink, transform: str | None = None) -> Pipeline:
    """A measured pipeline over a backlog."""
    return Pipeline(
        name=name,
        source=Topic(backlog.topic, value=backlog.format),
        transform=transform,
        sinks=list(sinks),
        max_records=backlog.cap,
        slice_records=SLICE,
        max_in_flight=2,
    )


def append(name: str = "bench_append") -> Append:
    """An Append of every column."""
    return Append(name, columns=COLUMNS)


def renew(ledger_url: str, spec: Pipeline) -> None:
    """Empty tables of a pipeline that nobody has run, and a checkpoint, so that no contestant pays for another."""
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        # The last one is the dead letters, whose table all pipelines share.
        for sink in sinks_of(spec)[:-1]:
            if sink.is_view:
                conn.execute(sql.SQL("drop view if exists {}").format(sql.Identifier(*sink.table)))
            for table in sink.tables:
                relation = sql.Identifier(str(table.schema), table.name)
                conn.execute(sql.SQL("drop table if exists {}").format(relation))
    migrate(ledger_url, [spec])
    checkpoint(ledger_url)


def make(ledger_url: str, tables: dict[str, str]) -> None:
    """Empty plain tables, {name: what stands between its parentheses}, and a checkpoint."""
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        for name, columns in tables.items():
            named = sql.Identifier(name)
            conn.execute(sql.SQL("drop table if exists {}").format(named))
            # The columns are this package's own words.
            conn.execute(sql.SQL("create table {} ({})").format(named, sql.SQL(cast("LiteralString", columns))))
    checkpoint(ledger_url)


def empty(ledger_url: str, relation: Relation) -> None:
    """Take every row out of a delta table."""
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        conn.execute(sql.SQL("truncate {}").format(sql.Identifier(*relation)))


def checkpoint(ledger_url: str) -> None:
    """Have PostgreSQL write out what earlier work has left in its buffers."""
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        conn.execute("checkpoint")


def check_rows(ledger_url: str, table: str, backlog: Backlog) -> None:
    """StageMismatch unless a table has every record of the backlog once, at its position, with its values."""
    check_positions(ledger_url, table, [r for ranges in backlog.plans for r in ranges])
    check_sums(ledger_url, table, backlog, slice(0, backlog.records))


def check_positions(ledger_url: str, table: str, ranges: Sequence[OffsetRange]) -> None:
    """StageMismatch unless a table has every (partition, offset) of the ranges exactly once."""
    wanted = []
    for partition in sorted({r.partition for r in ranges}):
        mine = [r for r in ranges if r.partition == partition]
        low, until = min(r.from_offset for r in mine), max(r.until_offset for r in mine)
        count = until - low
        wanted.append((partition, count, count, (low + until - 1) * count // 2, low, until - 1))
    query = sql.SQL(
        "select _partition, sum(n)::bigint, count(*), sum(n * _offset)::bigint, min(_offset), max(_offset) "
        "from (select _partition, _offset, count(*) as n from {} group by 1, 2) as seen group by 1 order by 1"
    ).format(sql.Identifier(table))
    found = _asked(ledger_url, query)
    if found != wanted:
        raise StageMismatch(f"{table}: (partition, rows, distinct, sum, min, max) are {found}, planned were {wanted}")


def check_range(ledger_url: str, table: str, begun: dict[int, int], ended: dict[int, int]) -> None:
    """The same for {partition: offset}, from where each range begins to where it ends."""
    check_positions(ledger_url, table, [OffsetRange(table, p, begun[p], ended[p]) for p in begun])


def check_sums(ledger_url: str, table: str, backlog: Backlog, of: slice = ALL) -> None:
    """StageMismatch unless a table holds these records of the backlog, by their number and the sums of their values."""
    query = sql.SQL(
        "select count(*), count(distinct id), sum(id)::bigint, sum(score)::bigint, sum((amount * 100)::bigint)::bigint "
        "from {}"
    ).format(sql.Identifier(table))
    ids = backlog.ids[of]
    sums = (int(numbers.sum()) for numbers in (ids, backlog.scores[of], backlog.cents[of]))
    _same(table, _asked(ledger_url, query), [(len(ids), min(backlog.part, len(ids)), *sums)])


def check_same(ledger_url: str, table: str, columns: Sequence[str], wanted: list[tuple]) -> None:
    """StageMismatch unless these columns of a table are exactly these rows, in whatever order."""
    query = sql.SQL("select {} from {}").format(sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(table))
    _same(table, sorted(_asked(ledger_url, query)), sorted(wanted))


def _asked(ledger_url: str, query: sql.Composed) -> list[tuple]:
    with psycopg.connect(ledger_url) as conn:
        conn.execute("set work_mem = '512MB'")
        return conn.execute(query).fetchall()


def _same(table: str, found: list[tuple], wanted: list[tuple]) -> None:
    if found != wanted:
        unlike = [pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]]
        other = unlike[0] if unlike else (len(found), len(wanted))
        raise StageMismatch(f"{table}: what is there and what should be there differ: {other}")
