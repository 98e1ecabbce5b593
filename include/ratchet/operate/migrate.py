"""`ratchet migrate`: bring the ledger's schema up to date, and create the sinks' tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, ProgrammingError, SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from ratchet.errors import NotMigrated
from ratchet.ledger import migrations
from ratchet.ledger.connection import Ledger, be_patient
from ratchet.ledger.history import record_migration
from ratchet.ledger.migrations import REVISION
from ratchet.ledger.schema import DELTA_SCHEMA, SCHEMA, STAGE_SCHEMA
from ratchet.ledger.work import Relation
from ratchet.operate.locks import patiently
from ratchet.operate.roles import Granted, grant
from ratchet.sinks import catalog, indexes, tables
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.sinks.tables import Made
from ratchet.spec.pipeline import Pipeline

_LOCK = 7_268_352_071
"""The advisory lock that keeps two migrations apart; a number of this project's own."""
BUILDING = _LOCK + 1
"""That of the one which builds indexes."""


@dataclass(frozen=True)
class Refused:
    """A pipeline of whose tables none was changed, and why."""

    pipeline: str
    why: str


@dataclass(frozen=True)
class Migrated:
    """What a migration has done or, when `dry_run`, would do."""

    before: str | None
    """The ledger's schema as it was found: a revision of its migrations, None where there was no ledger."""
    after: str | None
    sinks: tuple[Made, ...]
    roles: tuple[Granted, ...]
    refused: tuple[Refused, ...] = ()
    dry_run: bool = False

    @property
    def indexes(self) -> list[tuple[str, str]]:
        """(table, index) that tables which were there have gained."""
        return [index for made in self.sinks for index in made.indexes]


class PartlyMigrated(NotMigrated):
    """What some pipelines have does not fit; all else is done."""

    def __init__(self, done: Migrated):
        said = "; ".join(f"{refused.pipeline}: {refused.why}" for refused in done.refused)
        rest = "would be" if done.dry_run else "is"
        super().__init__(
            f"{said}; nothing of {'it' if len(done.refused) == 1 else 'these'} was changed, all else {rest} done"
        )
        self.done = done


def lines_of(done: Migrated) -> list[str]:
    """What a person reads of it."""
    if done.before is None:
        ledger = f"created, at {done.after}"
    else:
        ledger = "up to date" if done.before == done.after else f"upgraded from {done.before} to {done.after}"
    said = [f"ledger: {ledger}", *map(str, done.sinks), *map(str, done.roles)]
    return [*said, "this was a dry run: nothing was changed"] if done.dry_run else said


def migrate(
    ledger_url: str,
    specs: Iterable[Pipeline],
    pipeline_role: str | None = None,
    reader_role: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    *,
    who: str = "ratchet migrate",
    dry_run: bool = False,
    tries: int | None = None,
) -> Migrated:
    """Upgrade the ledger, create what the specs declare, and grant each role its rights.

    Missing tables, columns and indexes are made; nothing is dropped or changed. What is changed of tables that were
    there is in the pipeline's history, with `who`. A pipeline is done wholly or not at all, and one whose tables do not
    fit its spec holds up no other: PartlyMigrated, in the end, names those. Indexes of
    tables that are there are built after all else, one by one, beside those who read and write; `say` is told of each,
    and what breaks off there is gone on with by the next migration: NotMigrated. Raises Locked where somebody has a
    table locked at each of so many `tries`, SettingsError where a role is missing or cannot be given what it needs;
    then nothing is changed.
    """
    specs = list(specs)
    with Ledger(ledger_url, name="ratchet migrate", waits=False) as ledger:
        change = partial(_migrate, specs=specs, pipeline_role=pipeline_role, reader_role=reader_role, who=who)
        done = replace(patiently(ledger, change, say, dry_run=dry_run, tries=tries), dry_run=dry_run)
        if done.indexes and not dry_run:
            refused = {each.pipeline for each in done.refused}
            _build_indexes(ledger, [spec for spec in specs if spec.name not in refused], say)
    if done.refused:
        raise PartlyMigrated(done)
    return done


def _migrate(
    conn: Connection, specs: list[Pipeline], pipeline_role: str | None, reader_role: str | None, who: str
) -> Migrated:
    conn.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    for schema in (SCHEMA, STAGE_SCHEMA, DELTA_SCHEMA):
        conn.execute(CreateSchema(schema, if_not_exists=True))
    before = _revision(conn)
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = conn
    if before not in (None, REVISION):
        raise NotMigrated(
            f"the ledger's schema is {before}, this version of ratchet has {REVISION}, and no migration leads there "
            "from what another version has made; nothing was changed; use that version, or give this one a database of "
            "its own (what the demo has stored is forgotten by `make clean`)"
        )
    command.upgrade(config, "head")
    made: list[Made] = []
    refused: list[Refused] = []
    for spec in specs:
        try:
            with conn.begin_nested():
                made += _bring(conn, spec, who)
        except (NotMigrated, psycopg.Error, SQLAlchemyError) as error:
            # Statements about names are the driver's own, and so is what they say.
            cause = getattr(error, "orig", None) or error
            if isinstance(cause, psycopg.OperationalError) or getattr(error, "connection_invalidated", False):
                # A lock that somebody else has, or a connection that is lost.
                raise
            refused.append(Refused(spec.name, str(cause).splitlines()[0]))
    granted = grant(conn, specs, pipeline_role, reader_role)
    return Migrated(before, _revision(conn), tuple(made), tuple(granted), tuple(refused))


def differences(conn: Connection, spec: Pipeline) -> list[Made]:
    """What a migration would make for a pipeline, by the catalog alone: nothing is tried, and nobody is held up.

    Where there is no ledger yet it is left out, and so is a sink of whose tables this role would have to see rows, and
    may not: `unseen` names those. Raises NotMigrated where a migration would refuse.
    """
    sinks = [sink for _, sink in _declared([spec])]
    if _revision(conn) is None:
        return [tables.anew(spec.name, sink) for sink in sinks]
    migrations.check(conn)
    hidden = unseen(conn, spec)
    found: list[Made] = []
    for sink in sinks:
        try:
            with conn.begin_nested():
                found.append(tables.differences(conn, spec.name, sink))
        except ProgrammingError as error:
            if not (isinstance(error.orig, psycopg.errors.InsufficientPrivilege) and _is_of(sink, hidden)):
                raise
    return found


def unseen(conn: Connection, spec: Pipeline) -> dict[Relation, list[str]]:
    """{table of a sink: the grants that this role lacks to see its rows}, of those tables that are there."""
    of = [catalog.place(table) for _, sink in _declared([spec]) for table in sink.tables]
    return catalog.unseen(conn, of) if of else {}


def _is_of(sink: Sink, relations: Iterable[Relation]) -> bool:
    return not {catalog.place(table) for table in sink.tables}.isdisjoint(relations)


def has_ledger(conn: Connection) -> bool:
    """Whether a migration has made one in this database."""
    return _revision(conn) is not None


def _bring(conn: Connection, spec: Pipeline, who: str) -> list[Made]:
    """Bring a pipeline's tables to its spec; its history has how those that were there have changed."""
    sinks = [sink for _, sink in _declared([spec])]
    before = _columns(conn, sinks)
    made = [tables.create(conn, spec.name, sink) for sink in sinks]
    after = _columns(conn, sinks)
    changed = {of: {"before": held, "after": after[of]} for of, held in before.items() if after.get(of) != held}
    if changed:
        why = "; ".join(str(each).removeprefix(f"{spec.name}: ") for each in made if each.is_change)
        record_migration(conn, spec.name, who=who, detail={"why": why, "tables": changed})
    return made


def _columns(conn: Connection, sinks: list[Sink]) -> dict[str, list[str]]:
    """{table: its columns as PostgreSQL has them}, of those tables that are there."""
    found = catalog.columns_of(conn, [catalog.place(table) for sink in sinks for table in sink.tables])
    return {
        ".".join(of): [f"{name} {held.type}{'' if held.nullable else ' NOT NULL'}" for name, held in columns.items()]
        for of, columns in found.items()
    }


def _declared(specs: list[Pipeline]) -> list[tuple[Pipeline, Sink]]:
    return [(spec, sink) for spec in specs for sink in sinks_of(spec) if sink.tables]


def _revision(conn: Connection) -> str | None:
    return MigrationContext.configure(conn, opts={"version_table_schema": SCHEMA}).get_current_revision()


def _build_indexes(ledger: Ledger, specs: list[Pipeline], say: Callable[[str], None]) -> None:
    # The lock is a database transaction's, since behind a pooler a session is not kept.
    with ledger.begin() as guard, ledger.alone() as conn:
        be_patient(guard)
        # Not waited for: who waits has a snapshot, and an index is done when all who have an older one are gone.
        # Asked without a parameter: else the guard would keep its snapshot until its next statement.
        alone = guard.execute(text(f"select pg_try_advisory_xact_lock({BUILDING})")).scalar_one()
        if not alone:
            raise NotMigrated(
                "another migration builds indexes, so none was built here; all else is done; migrate again after it"
            )
        for table in [table for _, sink in _declared(specs) if not sink.brings_table for table in sink.tables]:
            for name in indexes.lacking(conn, table):
                where = f"{table.schema}.{table.name}"
                say(f"{where}: building index {name}; readers and writers go on meanwhile")
                try:
                    indexes.build(conn, table, name)
                except DBAPIError as error:
                    raise NotMigrated(
                        f"{where}: index {name} was not built: {str(error.orig).splitlines()[0]}; all else is done; "
                        "migrate again to build it"
                    ) from error
