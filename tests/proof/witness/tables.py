"""A few records, and what the campaign's tables should hold of them: written out by hand, computed by nothing."""

from __future__ import annotations

import json
from importlib import import_module

import psycopg
from psycopg import sql

from ratchet.operate.migrate import migrate
from ratchet.sinks.lookup import sinks_of

from .comparison import Testimony, compare
from .console import Record

NASTY = "tab\t, back\\slash, \\N\n"


def said(**value: object) -> bytes:
    return json.dumps(value).encode()


RECORDS: dict[str, list[Record]] = {
    "orders": [
        (0, 0, None, said(k="a", v=1, note="x")),
        (0, 1, b"", b"no JSON"),
        (1, 0, None, said(k="a", v=-5, note=None)),
        (1, 2, None, said(k=NASTY, note="\\N")),
        (3, 7, None, None),
        (3, 8, b"\x00\xff", b""),
    ],
    "accounts": [
        (0, 0, b"2", said(owner="o", balance=5)),
        (0, 1, b"2", said(owner="p", balance=7)),
        (1, 0, b"1", said(owner="o", balance=1)),
        (1, 1, b"1", None),
        (1, 2, None, None),
        (1, 3, b"x", said(owner="o", balance=1)),
        (1, 4, b"3", b"{}"),
    ],
    "events": [
        (0, 0, b"e", said(k="a", at=10, times=2, v=4)),
        (1, 0, None, said(k="a", at=9, times=3, v=0)),
        (1, 1, None, said(k="b", at=11, times=0, v=1)),
        (2, 5, b"", said(k="b", at=12, times=7, v=1)),
        (2, 6, None, b"\xff\x00"),
    ],
    "archive": [(0, 0, b"", said(id=1, body="b")), (0, 3, None, b"[1]")],
}
ROWS: dict[str, dict[str, list[tuple]]] = {
    "orders": {
        "orders_rows": [
            ("a", 1, "x", "t", 0, 0, 0, 1),
            ("a", -5, None, "t", 1, 0, 0, 1),
            (NASTY, None, "\\N", "t", 1, 2, 0, 2),
        ],
        "orders_sums": [("a", -4, -5, 1, 2, 1), (NASTY, None, None, None, 1, 2)],
        "dead_letters": [(0, 1, b"", b"no JSON"), (3, 7, None, None), (3, 8, b"\x00\xff", b"")],
    },
    "accounts": {
        "accounts_last": [(2, "p", 7, 0, 1, 1), (3, None, None, 1, 4, 2)],
        "accounts_sums": [("o", 6, 1, 5, 2, 1), ("p", 7, 7, 7, 1, 1), (None, None, None, None, 1, 2)],
        "dead_letters": [(1, 2, None, None), (1, 3, b"x", said(owner="o", balance=1))],
    },
    "events": {
        "events_rows": [("a", 10, 4 + n, "t", 0, 0, n, 1) for n in range(2)]
        + [("a", 9, n, "t", 1, 0, n, 1) for n in range(3)],
        "events_sums": [("a", 0, 6, 10, 2, 1), ("a", 1, 6, 10, 2, 1)],
        "events_last": [("a", 10, 5, 0, 0, 1)],
        "dead_letters": [(2, 5, b"", said(k="b", at=12, times=7, v=1)), (2, 6, None, b"\xff\x00")],
    },
    "archive": {"archive_rows": [(1, "b", "t", 0, 0, 0, 1)], "dead_letters": [(0, 3, None, b"[1]")]},
}


class Tables:
    """The tables of a pipeline, as it should have left them."""

    def __init__(self, ledger_url: str, name: str, topic: str = "t"):
        spec = import_module(f"tests.proof.campaign.pipelines.{name}").PIPELINE
        self.spec = spec.model_copy(update={"source": spec.source.model_copy(update={"name": topic})})
        self.url = ledger_url
        migrate(ledger_url, [self.spec])
        with psycopg.connect(ledger_url) as conn:
            # What readers see is filled here, and a view cannot be.
            for sink in sinks_of(self.spec):
                if sink.is_view:
                    view, table = sql.Identifier(*sink.table), sql.Identifier(sink.table[0], "filled")
                    conn.execute(sql.SQL("create table {} as table {} with no data").format(table, view))
                    conn.execute(sql.SQL("drop view {}").format(view))
                    name = sql.Identifier(sink.table[1])
                    conn.execute(sql.SQL("alter table {} rename to {}").format(table, name))

    def say(self, *statements: str) -> None:
        with psycopg.connect(self.url) as conn:
            for statement in statements:
                assert conn.execute(statement).rowcount == 1, statement

    def fill(self, rows: dict[str, list[tuple]]) -> None:
        """Nothing but these rows; dead letters are (partition, offset, key, value)."""
        with psycopg.connect(self.url) as conn, conn.cursor() as cursor:
            for table, lines in rows.items():
                into = sql.Identifier(table)
                if table == "dead_letters":
                    topic = self.spec.source.name
                    into = sql.Identifier("ratchet", table)
                    lines = [
                        (self.spec.name, "an id", p, o, topic, None, 1, "why", key, value) for p, o, key, value in lines
                    ]
                cursor.execute(sql.SQL("truncate {}").format(into))
                marks = sql.SQL(", ").join(sql.Placeholder() * len(lines[0]))
                cursor.executemany(sql.SQL("insert into {} values ({})").format(into, marks), lines)

    def compare(self, records: list[Record]) -> Testimony:
        return compare(self.spec, iter(records), self.url)
