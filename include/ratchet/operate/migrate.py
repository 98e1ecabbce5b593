"""`ratchet migrate`: bring the ledger's schema up to date, and create the sinks' tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import text
from sqlalchemy.schema import CreateSchema

from ratchet.ledger import migrations
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import DELTA_SCHEMA, SCHEMA, STAGE_SCHEMA
from ratchet.operate.roles import grant
from ratchet.sinks import tables
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.pipeline import Pipeline

_LOCK = 7_268_352_071
"""The advisory lock that keeps two migrations apart; a number of this project's own."""


def migrate(
    ledger_url: str, specs: Iterable[Pipeline], pipeline_role: str | None = None, reader_role: str | None = None
) -> list[str]:
    """Upgrade the ledger, create what the specs declare, and grant each role its rights; a line for each thing done.

    Everything happens in one database transaction: it is done wholly or not at all. Raises NotMigrated where a
    table that exists does not fit its spec; existing tables are checked and never altered. Raises SettingsError
    where a role is missing or cannot be given what it needs.
    """
    with Ledger(ledger_url) as ledger, ledger.begin() as conn:
        conn.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        for schema in (SCHEMA, STAGE_SCHEMA, DELTA_SCHEMA):
            conn.execute(CreateSchema(schema, if_not_exists=True))
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = conn
        command.upgrade(config, "head")
        specs = list(specs)
        declared = [(spec.name, sink) for spec in specs for sink in sinks_of(spec) if sink.tables]
        made = [f"{name}: {tables.create(conn, name, sink)}" for name, sink in declared]
        return ["ledger: up to date", *made, *grant(conn, specs, pipeline_role, reader_role)]
