"""`ratchet migrate`: bring the ledger's schema up to date, and create the sinks' tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from alembic import command
from alembic.config import Config
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateSchema

from ratchet.errors import NotMigrated
from ratchet.ledger import migrations
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import DELTA_SCHEMA, SCHEMA, STAGE_SCHEMA
from ratchet.ledger.work import utc
from ratchet.operate.roles import grant
from ratchet.sinks import tables
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.pipeline import Pipeline

WAIT_SECONDS = 1
"""So long a lock is waited for."""
TRIES = 300
"""So often all is tried before it is given up, which is minutes."""
_LOCK = 7_268_352_071
"""The advisory lock that keeps two migrations apart; a number of this project's own."""


def migrate(
    ledger_url: str,
    specs: Iterable[Pipeline],
    pipeline_role: str | None = None,
    reader_role: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Upgrade the ledger, create what the specs declare, and grant each role its rights; a line for each thing done.

    Everything happens in one database transaction: it is done wholly or not at all. Missing tables, columns and
    indexes are made; nothing is dropped or changed. Raises NotMigrated where a table that exists does not fit its spec,
    or stays locked by somebody. Raises SettingsError where a role is missing or cannot be given what it needs.

    Who waits for a lock on a table holds up all who come after. So each lock is waited for a second, `say` is told who
    holds it, and everything is tried again.
    """
    specs = list(specs)
    with Ledger(ledger_url, name="ratchet migrate") as ledger:
        holders = ""
        for _ in range(TRIES):
            try:
                with ledger.begin() as conn:
                    return _migrate(conn, specs, pipeline_role, reader_role)
            except (OperationalError, LockNotAvailable, DeadlockDetected) as error:
                # Statements about names are the driver's own, and so is what they say.
                if not isinstance(getattr(error, "orig", error), (LockNotAvailable, DeadlockDetected)):
                    raise
            holders = _holders(ledger)
            say(f"a table is locked by {holders}; trying again")
        raise NotMigrated(f"a table stays locked by {holders}; nothing was changed; end that, and migrate again")


def _migrate(conn: Connection, specs: list[Pipeline], pipeline_role: str | None, reader_role: str | None) -> list[str]:
    conn.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    conn.execute(text("select set_config('lock_timeout', :limit, true)"), {"limit": f"{WAIT_SECONDS}s"})
    for schema in (SCHEMA, STAGE_SCHEMA, DELTA_SCHEMA):
        conn.execute(CreateSchema(schema, if_not_exists=True))
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = conn
    command.upgrade(config, "head")
    declared = [(spec.name, sink) for spec in specs for sink in sinks_of(spec) if sink.tables]
    made = [f"{name}: {tables.create(conn, name, sink)}" for name, sink in declared]
    return ["ledger: up to date", *made, *grant(conn, specs, pipeline_role, reader_role)]


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
