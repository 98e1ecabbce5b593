"""Changes of tables that others use: the locks that they need are waited for briefly, and who has them is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from ratchet.errors import Locked
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import utc

WAIT_SECONDS = 1
"""So long a lock is waited for."""
TRIES = 300
"""So often all is tried before it is given up, which is minutes."""

T = TypeVar("T")


def patiently(
    ledger: Ledger,
    change: Callable[[Connection], T],
    say: Callable[[str], None],
    *,
    dry_run: bool = False,
    tries: int | None = None,
) -> T:
    """Make a change in one database transaction, as soon as nobody else has locked what it needs.

    Who waits for a lock on a table holds up all who come after. So each lock is waited for a second, `say` is told who
    holds it, and everything is tried again. Raises Locked when that does not end.
    """
    holders = ""
    for _ in range(tries or TRIES):
        try:
            with ledger.begin(dry_run=dry_run) as conn:
                conn.execute(text("select set_config('lock_timeout', :limit, true)"), {"limit": f"{WAIT_SECONDS}s"})
                return change(conn)
        except (OperationalError, LockNotAvailable, DeadlockDetected) as error:
            # Statements about names are the driver's own, and so is what they say.
            if not isinstance(getattr(error, "orig", error), (LockNotAvailable, DeadlockDetected)):
                raise
        holders = _holders(ledger)
        say(f"a table is locked by {holders}; trying again")
    raise Locked(f"a table stays locked by {holders}; nothing was changed; end that, and try again")


def _holders(ledger: Ledger) -> str:
    """Who holds locks on tables of this database, in a few words; what they do may hold up a change of a table."""
    asked = text(
        "select distinct a.pid, a.usename, a.application_name, a.state, a.xact_start from pg_locks l "
        "join pg_stat_activity a on a.pid = l.pid join pg_class c on c.oid = l.relation "
        "join pg_namespace n on n.oid = c.relnamespace where l.granted and l.pid <> pg_backend_pid() "
        "and a.datname = current_database() and n.nspname not in ('pg_catalog', 'pg_toast') "
        "order by a.xact_start limit 3"
    )
    with ledger.begin() as conn:
        found = conn.execute(asked).all()
    said = [
        f"session {row.pid} ({row.application_name or row.usename}, {row.state}, since {utc(row.xact_start)})"
        for row in found
    ]
    return " and ".join(said) or "a session that has ended meanwhile"
