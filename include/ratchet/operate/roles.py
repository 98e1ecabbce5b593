"""Roles: what the pipelines and the readers may do in the database that one owner migrates, and no more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from sqlalchemy import Connection, text

from ratchet.errors import SettingsError
from ratchet.ledger.schema import DELTA_SCHEMA, SCHEMA, STAGE_SCHEMA
from ratchet.ledger.work import Relation, counted
from ratchet.sinks import owned
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.owned import Rights
from ratchet.spec.pipeline import Pipeline

APPEND_ONLY = ("SELECT", "INSERT")
"""What the pipelines may do with a table of the ledger that is not named below: add to it."""
RIGHTS: dict[str, tuple[str, ...]] = {
    "pipelines": ("SELECT", "INSERT", "UPDATE"),
    "transactions": ("SELECT", "INSERT", "UPDATE"),
    "runs": ("SELECT", "INSERT", "UPDATE"),
    "slices": ("SELECT", "INSERT", "UPDATE"),
    "stages": ("SELECT", "INSERT", "DELETE"),
    "heads": ("SELECT", "INSERT", "UPDATE"),
    "writers": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "leader_epochs": ("SELECT", "INSERT", "DELETE"),
    "sources": ("SELECT", "INSERT", "UPDATE"),
    "topics": ("SELECT", "INSERT"),
    "dead_letters": ("SELECT",),
    "destinations": ("SELECT", "INSERT", "UPDATE"),
    "exchanged": ("SELECT", "INSERT", "DELETE"),
    "replays": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "expired": ("SELECT", "INSERT", "UPDATE"),
    "drops": ("SELECT",),
    "prunes": ("SELECT",),
    "legal_moves": ("SELECT",),
    "targets": ("SELECT",),
    "alembic_version": ("SELECT",),
}
"""What the pipelines may do with the other tables of the ledger."""
_SCHEMAS = {SCHEMA: "USAGE", DELTA_SCHEMA: "USAGE", STAGE_SCHEMA: "USAGE, CREATE"}
"""What they may do with ratchet's own schemas."""


@dataclass(frozen=True)
class Granted:
    """What a role may do now: the pipelines' what runs and operators do, the readers' to read, on so many tables."""

    role: str
    is_reader: bool
    tables: int
    lacks: tuple[str, ...] = ()
    """Rights on tables of lines that are not migrated now, which nobody here could give."""

    def __str__(self) -> str:
        may = (
            f"may read {counted(self.tables, 'table')}"
            if self.is_reader
            else f"may do what runs do, on {counted(self.tables, 'table')}"
        )
        lacks = f"; could not be given {', '.join(self.lacks)}" if self.lacks else ""
        return f"role {self.role}: {may}{lacks}"


def grant(
    conn: Connection, specs: Iterable[Pipeline], pipeline_role: str | None = None, reader_role: str | None = None
) -> list[Granted]:
    """Give each role that is named exactly its rights, and take any others within ratchet's schemas from it.

    The pipelines' role does what runs and operators do: all moves of the ledger, and making and dropping stages.
    The readers' role reads views and states of sinks, which the head limits, and the ledger, dead letters among it;
    never a delta table, in which rows stand that are not committed. Both may so with every line that the ledger knows,
    whichever checkout has its spec. The caller owns all of that. Raises SettingsError where a role is missing, could do
    everything anyway, or would not get what it needs for `specs`; what it lacks for other lines is in the answer.
    """
    if pipeline_role is not None and pipeline_role == reader_role:
        raise SettingsError(f"role {pipeline_role!r} is named for the pipelines and for readers; use one role for each")
    granted: list[Granted] = []
    ledger = _relations(conn, SCHEMA)
    on_sinks, to_read = owned.rights(conn)
    may_lack = (on_sinks.keys() | to_read.keys()) - {sink.table for spec in specs for sink in sinks_of(spec)}
    if pipeline_role is not None:
        _check_role(conn, pipeline_role)
        wanted = _wanted(conn) | on_sinks
        lacks = _give(conn, pipeline_role, _SCHEMAS, wanted, may_lack)
        # Keys of a fold lie in temporary tables.
        _execute(conn, "GRANT TEMPORARY ON DATABASE {} TO {}", _database(conn), pipeline_role)
        _hand_over_stages(conn, pipeline_role)
        granted.append(Granted(pipeline_role, is_reader=False, tables=len(wanted), lacks=lacks))
    if reader_role is not None:
        _check_role(conn, reader_role)
        wanted = {(SCHEMA, name): ("SELECT",) for name in ledger} | to_read
        lacks = _give(conn, reader_role, {SCHEMA: "USAGE"}, wanted, may_lack)
        granted.append(Granted(reader_role, is_reader=True, tables=len(wanted), lacks=lacks))
    return granted


def lacking(conn: Connection) -> list[str]:
    """What the connection's own role lacks of the pipelines' rights, such as `INSERT on ratchet.runs`."""
    asked = [("schema", schema, right) for schema, rights in _SCHEMAS.items() for right in rights.split(", ")]
    wanted = _wanted(conn) | owned.rights(conn)[0]
    named = {sql.Identifier(*table).as_string(None): rights for table, rights in wanted.items()}
    asked += [("table", table, right) for table, rights in named.items() for right in rights]
    asked.append(("database", _database(conn), "TEMPORARY"))
    has = text(
        "select name, held from unnest(cast(:kinds as text[]), cast(:names as text[]), cast(:rights as text[])) "
        "with ordinality as asked (kind, name, held, number) where not case kind "
        "when 'schema' then has_schema_privilege(name, held) "
        "when 'table' then has_table_privilege(name, held) "
        "else has_database_privilege(name, held) end order by number"
    )
    kinds, names, rights = map(list, zip(*asked, strict=True))
    found = conn.execute(has, {"kinds": kinds, "names": names, "rights": rights}).all()
    return [f"{right} on {name}" for name, right in found]


def check_owner(conn: Connection, does: str) -> None:
    """SettingsError where the caller does not own the ledger, and so may not do what only its owner `does`."""
    owned = text(
        "select pg_get_userbyid(nspowner), pg_has_role(nspowner, 'member') from pg_namespace where nspname = :of"
    )
    owner, may = conn.execute(owned, {"of": DELTA_SCHEMA}).one()
    if not may:
        raise SettingsError(f"only the ledger's owner {does}; connect as {owner}; nothing was changed")


def _check_role(conn: Connection, role: str) -> None:
    found = conn.execute(
        text("select rolsuper, pg_has_role(oid, current_user, 'member') from pg_roles where rolname = :role"),
        {"role": role},
    ).one_or_none()
    if found is None:
        raise SettingsError(f"there is no role {role!r} in PostgreSQL; create it: CREATE ROLE … LOGIN PASSWORD …")
    is_super, is_owner = found
    if is_super or is_owner:
        why = "is a superuser" if is_super else "is the ledger's owner, or a member of it"
        raise SettingsError(f"role {role!r} {why}, so no grant limits it; name an ordinary role of its own")


def _give(
    conn: Connection, role: str, schemas: dict[str, str], wanted: Rights, may_lack: set[Relation]
) -> tuple[str, ...]:
    """Exactly these rights within ratchet's own schemas; elsewhere these beside what the role has already.

    Returns what could not be given of those that it may lack.
    """
    lacks: list[str] = []
    for schema in (SCHEMA, DELTA_SCHEMA, STAGE_SCHEMA):
        if schema != STAGE_SCHEMA:
            # The stages are the pipelines' own.
            _execute(conn, "REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM {}", schema, role)
        _execute(conn, "REVOKE ALL ON SCHEMA {} FROM {}", schema, role)
    for schema, rights in {**dict.fromkeys((s for s, _ in wanted), "USAGE"), **schemas}.items():
        _execute(conn, f"GRANT {rights} ON SCHEMA {{}} TO {{}}", schema, role)
    for (schema, table), rights in wanted.items():
        missing = _give_table(conn, role, sql.Identifier(schema, table), rights)
        if missing and (schema, table) in may_lack:
            lacks.append(f"{missing} on {schema}.{table}")
        elif missing:
            raise SettingsError(
                f"role {role!r} cannot be given {missing} on {schema}.{table}, which another role owns; let that role "
                "grant it, with grant option, to the one that migrates, or make that one the table's owner"
            )
    return tuple(lacks)


def _give_table(conn: Connection, role: str, table: sql.Identifier, rights: tuple[str, ...]) -> str | None:
    """The right that could not be given, if any: who may not grant is told so by an error or a mere warning."""

    def missing() -> list[str]:
        has = text("select has_table_privilege(:role, :table, :right)")
        asked = {"role": role, "table": table.as_string(None)}
        return [right for right in rights if not conn.execute(has, {**asked, "right": right}).scalar_one()]

    if not missing():
        # Also where the table's owner has granted them, and whoever migrates could not.
        return None
    try:
        with conn.begin_nested():
            _execute(conn, f"GRANT {', '.join(rights)} ON TABLE {{}} TO {{}}", table, role)
    except InsufficientPrivilege:
        return ", ".join(rights)
    return ", ".join(missing()) or None


def _hand_over_stages(conn: Connection, role: str) -> None:
    """Stages that were made before there was this role; it must be able to drop them."""
    left = conn.execute(
        text("select tablename from pg_tables where schemaname = :schema and tableowner <> :role"),
        {"schema": STAGE_SCHEMA, "role": role},
    ).scalars()
    for table in left.all():
        try:
            _execute(conn, "ALTER TABLE {} OWNER TO {}", sql.Identifier(STAGE_SCHEMA, table), role)
        except InsufficientPrivilege as error:
            raise SettingsError(
                f"unfinished transactions have stages of another owner than role {role!r}, and they cannot be handed "
                f"over ({error}); as a superuser, GRANT that role to the ledger's owner, and migrate again"
            ) from error


def _relations(conn: Connection, schema: str) -> list[str]:
    """The tables and views of a schema."""
    found = conn.execute(
        text(
            "select tablename from pg_tables where schemaname = :schema union all "
            "select viewname from pg_views where schemaname = :schema order by 1"
        ),
        {"schema": schema},
    )
    return list(found.scalars())


def _wanted(conn: Connection) -> Rights:
    """What the pipelines do with the tables of the ledger and with deltas."""
    deltas = {(DELTA_SCHEMA, name): ("SELECT", "INSERT", "DELETE") for name in _relations(conn, DELTA_SCHEMA)}
    return {(SCHEMA, name): RIGHTS.get(name, APPEND_ONLY) for name in _relations(conn, SCHEMA)} | deltas


def _database(conn: Connection) -> str:
    return conn.execute(text("select current_database()")).scalar_one()


def _execute(conn: Connection, statement: str, *names: str | sql.Identifier) -> None:
    """A statement about these names, on the driver itself, since SQLAlchemy has no form for a grant."""
    quoted = [name if isinstance(name, sql.Identifier) else sql.Identifier(name) for name in names]
    driver = conn.connection.driver_connection
    assert driver is not None, "the connection is open"
    # What varies in a statement beside the names is the rights, which are constants.
    driver.execute(sql.SQL(statement).format(*quoted))  # pyright: ignore[reportArgumentType]
