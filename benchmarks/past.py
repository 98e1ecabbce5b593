"""A long past: a line's first transaction repeated, as if so many had been begun, processed and committed.

Rows are put straight into the ledger's tables, all that a real transaction leaves there and with hashes that hold, in
minutes for what takes real runs days. The repeated ones have given no rows, so that sinks stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import DictRow, dict_row

from ratchet.ledger import history

FIRST = 1
"""The transaction that is repeated; those that follow it must have ranges of the same lengths."""
STEP = 10_000
"""So many transactions are added in one database transaction."""
_REPEATED: dict[str, dict[str, LiteralString]] = {
    # The columns that are others than the first one's; n is how many come after it.
    "transactions": {
        "txid": "txid + n",
        "run_id": "run_id || '+' || n",
        "applied": """(select jsonb_object_agg(key, value || '{"rows": 0}') from jsonb_each(applied))""",
    },
    "runs": {"txid": "txid + n", "run_id": "run_id || '+' || n"},
    "ranges": {
        "txid": "txid + n",
        "from_offset": "from_offset + n * (until_offset - from_offset)",
        "until_offset": "until_offset + n * (until_offset - from_offset)",
    },
    "slices": {
        "txid": "txid + n",
        "sinks": """(
            select jsonb_object_agg(key, '{"writers": [], "rows": 0, "checksum": "0"}'::jsonb) from jsonb_each(sinks)
        )""",
        "ranges": """(
            select jsonb_agg(jsonb_build_array(p, start + n * (until - start), until + n * (until - start)))
            from (
                select r->0 as p, (r->>1)::bigint as start, (r->>2)::bigint as until
                from jsonb_array_elements(ranges) r
            ) as of_slice
        )""",
    },
}
_EVENT = ("pipeline", "txid", "revision", "seq", "at", "who", "move", "epoch", "detail", "previous_hash")


def grow(ledger_url: str, pipeline: str, transactions: int) -> None:
    """Make a line so many transactions long; nothing of it is unfinished."""
    with psycopg.connect(ledger_url, row_factory=dict_row) as conn:
        # Transactions come in their last state, and ranges in any order.
        conn.execute("set session_replication_role = replica")
        last = _one(conn, "select last_txid as it from ratchet.pipelines where pipeline = %s", pipeline)
        commit = (
            "select hash as it from ratchet.events where pipeline = %s and move = 'COMMITTED' order by id desc limit 1"
        )
        mine = "select * from ratchet.events where pipeline = %s and txid = %s and revision = 0 order by id"
        first = conn.execute(mine, [pipeline, FIRST]).fetchall()
        past = _events(first, last, _one(conn, commit, pipeline))
        for after in range(last, transactions, STEP):
            until = min(after + STEP, transactions)
            for table, others in _REPEATED.items():
                _repeat(conn, table, others, pipeline, after, until)
            with conn.cursor().copy(f"copy ratchet.events ({', '.join(_EVENT)}, hash) from stdin") as copy:
                for _ in range(after, until):
                    for event in next(past):
                        copy.write_row(event)
            conn.execute("update ratchet.pipelines set last_txid = %s where pipeline = %s", [until, pipeline])
            conn.execute("update ratchet.heads set txid = %s where pipeline = %s", [until, pipeline])
            conn.commit()


def _one(conn: psycopg.Connection[DictRow], query: LiteralString, pipeline: str) -> Any:
    found = conn.execute(query, [pipeline]).fetchone()
    assert found is not None, "the line has a transaction that can be repeated"
    return found["it"]


def _repeat(
    conn: psycopg.Connection[DictRow],
    table: str,
    others: dict[str, LiteralString],
    pipeline: str,
    after: int,
    until: int,
) -> None:
    """Add the rows that one table has of the transactions from `after` + 1 to `until`."""
    columns = "select column_name as name from information_schema.columns where table_schema = %s and table_name = %s"
    names = [row["name"] for row in conn.execute(columns, ["ratchet", table])]
    query = sql.SQL(
        "insert into {table} ({names}) select {given} from {table}, generate_series({after}, {until}) n "
        "where pipeline = {pipeline} and txid = {first}"
    )
    conn.execute(
        query.format(
            table=sql.Identifier("ratchet", table),
            names=sql.SQL(", ").join(map(sql.Identifier, names)),
            given=sql.SQL(", ").join(sql.SQL(others[n]) if n in others else sql.Identifier(n) for n in names),
            after=sql.Literal(after + 1 - FIRST),
            until=sql.Literal(until - FIRST),
            pipeline=sql.Literal(pipeline),
            first=sql.Literal(FIRST),
        )
    )


def _events(first: list[DictRow], last: int, commit: str) -> Iterator[list[tuple[Any, ...]]]:
    """The events of each transaction after the `last` one, each event chained to the one before."""
    while True:
        last, previous = last + 1, ""
        repeated: list[tuple[Any, ...]] = []
        for row in first:
            event = {name: row[name] for name in _EVENT}
            event |= {"txid": last, "previous_hash": previous, "at": datetime.now(UTC)}
            if event["move"] == "COMMITTED":
                event["detail"] = {**event["detail"], "previous_commit": commit}
            previous = history.hash_of(event)
            if event["move"] == "COMMITTED":
                commit = previous
            repeated.append((*(json.dumps(event[n]) if n == "detail" else event[n] for n in _EVENT), previous))
        yield repeated
