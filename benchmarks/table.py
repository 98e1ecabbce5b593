"""The target table of a contestant: made as `ratchet migrate` makes it, checked against the plan, dropped."""

from __future__ import annotations

import psycopg
from psycopg import sql

from benchmarks.backlog import COLUMNS
from ratchet import Append, Json, Pipeline, Topic
from ratchet.errors import StageMismatch
from ratchet.ledger.work import OffsetRange
from ratchet.operate.migrate import migrate

TABLE = "bench_rows"
CAP = 500_000
SLICE = 250_000


def spec_of(name: str, topic: str, transform: str | None = None) -> Pipeline:
    """The measured pipeline: Append of five columns."""
    return Pipeline(
        name=name,
        source=Topic(topic, value=Json(COLUMNS)),
        transform=transform,
        sinks=[Append(TABLE, columns=COLUMNS)],
        max_records=CAP,
        slice_records=SLICE,
        max_in_flight=2,
    )


def renew(ledger_url: str, spec: Pipeline) -> None:
    """An empty target, and a checkpoint, so that no contestant pays for the writes of the one before."""
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        conn.execute(sql.SQL("drop table if exists {}").format(sql.Identifier(TABLE)))
    migrate(ledger_url, [spec])
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        conn.execute("checkpoint")


def verify(ledger_url: str, planned: list[list[OffsetRange]]) -> None:
    """StageMismatch unless the table holds every planned (partition, offset) exactly once."""
    ranges = [r for plan in planned for r in plan]
    partitions = sorted({r.partition for r in ranges})
    wanted = []
    for partition in partitions:
        mine = [r for r in ranges if r.partition == partition]
        low, until = min(r.from_offset for r in mine), max(r.until_offset for r in mine)
        count = until - low
        wanted.append((partition, count, count, (low + until - 1) * count // 2, low, until - 1))
    query = sql.SQL(
        "select _partition, sum(n)::bigint, count(*), sum(n * _offset)::bigint, min(_offset), max(_offset) "
        "from (select _partition, _offset, count(*) as n from {} group by 1, 2) as seen group by 1 order by 1"
    ).format(sql.Identifier(TABLE))
    with psycopg.connect(ledger_url) as conn:
        conn.execute("set work_mem = '512MB'")
        found = conn.execute(query).fetchall()
    if found != wanted:
        raise StageMismatch(f"(partition, rows, distinct, sum, min, max) are {found}, planned were {wanted}")
