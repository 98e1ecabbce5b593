"""How many rows and entries of indexes of the ledger each statement looks at, whatever else the server does."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from ratchet.ledger.connection import Ledger

_COUNT = """
    select coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid)), 0)::bigint
    from pg_class c where c.relnamespace = 'ratchet'::regnamespace and c.relkind in ('r', 'i')
"""


@dataclass
class Looked:
    """What was looked at so far, and the statement that looked at most."""

    rows: int = 0
    most: int = 0
    by: str = ""
    statements: list[tuple[int, str]] = field(default_factory=list)


@contextmanager
def looked_at(ledger: Ledger) -> Generator[Looked]:
    """Count while the block goes on, of this ledger's own sessions."""
    found, before = Looked(), 0

    def start(conn: Any, cursor: Any, statement: str, *_: object) -> None:
        nonlocal before
        before = _counted(cursor)

    def end(conn: Any, cursor: Any, statement: str, *_: object) -> None:
        rows = _counted(cursor) - before
        found.rows += rows
        found.statements.append((rows, statement))
        if rows > found.most:
            found.most, found.by = rows, statement

    event.listen(ledger.engine, "before_cursor_execute", start)
    event.listen(ledger.engine, "after_cursor_execute", end)
    try:
        yield found
    finally:
        event.remove(ledger.engine, "before_cursor_execute", start)
        event.remove(ledger.engine, "after_cursor_execute", end)


def _counted(cursor: Any) -> int:
    with cursor.connection.cursor() as asking:
        return asking.execute(_COUNT).fetchone()[0]
