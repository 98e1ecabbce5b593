"""Many lines beside a long one: copies of a line, some of them halted, put straight into the ledger's tables."""

from __future__ import annotations

import psycopg

from benchmarks.past import grow

LINES, SHORT, LONG = 200, 300, 100_000
_COPIED = ("pipelines", "heads", "sources", "transactions", "ranges", "slices", "events")
_COPY = """
    insert into ratchet.{table} (pipeline, {names})
    select %(name)s || lpad(n::text, 3, '0'), {names} from ratchet.{table}, generate_series(1, %(copies)s) n
    where pipeline = %(name)s
"""
_HALT = """
    update ratchet.heads set txid = 298 where pipeline > %(after)s;
    update ratchet.transactions set state = 'OPEN', halted_at = clock_timestamp(), reason = 'x'
        where pipeline > %(after)s and txid = 299;
    update ratchet.transactions set state = 'PREPARED' where pipeline > %(after)s and txid = 300;
"""


def names_of(name: str) -> list[str]:
    """The lines of a crowd; the first is the long one."""
    return [name, *(f"{name}{n:03}" for n in range(1, LINES))]


def crowd(ledger_url: str, name: str) -> None:
    """Of a line with one committed transaction: one of LONG, and copies of SHORT; half of these are halted near their
    end, with a transaction prepared behind.
    """
    grow(ledger_url, name, SHORT)
    with psycopg.connect(ledger_url, cursor_factory=psycopg.ClientCursor) as conn:
        conn.execute("set session_replication_role = replica")
        for table in _COPIED:
            of = "select string_agg(quote_ident(column_name), ', ') from information_schema.columns where "
            of += "table_schema = 'ratchet' and table_name = %s and column_name not in ('pipeline', 'id')"
            columns = conn.execute(of, [table]).fetchone()[0]
            conn.execute(_COPY.format(table=table, names=columns), {"name": name, "copies": LINES - 1})
        conn.execute(_HALT, {"after": f"{name}100"})
    grow(ledger_url, name, LONG)
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        conn.execute("vacuum analyze")
