"""The database of the schedules: a real PostgreSQL whose clock the schedule moves, emptied before each one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql
from psycopg.errors import LockNotAvailable

from ratchet.ledger.schema import DELTA_SCHEMA, SCHEMA, STAGE_SCHEMA, metadata
from ratchet.operate.migrate import migrate
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.pipeline import Pipeline
from tests.proof.simulate import sending
from tests.proof.simulate.shapes import MAKE_OWN, NAME, SHAPES

_CLOCK = """
    create schema schedule;
    create sequence schedule.seconds minvalue -1000000000 start 0;
    create function schedule.clock_timestamp() returns timestamptz language sql volatile as
    $$ select pg_catalog.clock_timestamp() + make_interval(secs => (select last_value from schedule.seconds)) $$;
"""
_SETTINGS = {
    # What is not qualified is looked for there first: the ledger's clock.
    "search_path": "schedule, pg_catalog, public",
    "synchronous_commit": "off",
    "deadlock_timeout": "100ms",
}


@dataclass(frozen=True)
class Saved:
    """What a database was like at a moment; its rows are in a schema of this name."""

    schema: str
    tables: tuple[str, ...]
    clock: datetime


class Database:
    """One database of a schedule after another."""

    def __init__(self, url: str):
        self._url = url
        self._conn = psycopg.connect(url, autocommit=True)
        self._conn.execute(MAKE_OWN)
        specs = [shape.specs[0] for shape in SHAPES.values()]
        migrate(url, specs)
        sending.make(url)
        # Each schedule says for itself whether it has one.
        self._conn.execute("delete from ratchet.destinations")
        self._conn.execute(_CLOCK)
        for name, value in _SETTINGS.items():
            values = sql.SQL(", ").join(map(sql.Literal, value.split(", ")))
            database = sql.Identifier(self._conn.info.dbname)
            self._conn.execute(sql.SQL("alter database {} set {} to {}").format(database, sql.Identifier(name), values))
        # The checks of the tables would not let the history go.
        self._conn.execute("set session_replication_role = replica")
        own = [table for table in metadata.sorted_tables if table.name not in ("legal_moves", "targets")]
        self._of_ledger = [table.name for table in own]
        tables = [*own, *(table for spec in specs for sink in sinks_of(spec) for table in sink.tables)]
        self._tables = {table.name: sql.Identifier(table.schema or "public", table.name) for table in tables}
        assert len(self._tables) == len({(table.schema, table.name) for table in tables})
        self._tables |= sending.TABLES
        self._shared = {table.name: table for table in tables if "pipeline" in table.columns}
        """Where every line of a ledger has its rows; but for the dead letters, of which other lines have none."""
        empty = [sql.SQL("delete from {}{}").format(table, self._mine(name)) for name, table in self._tables.items()]
        self._empty = sql.SQL("; ").join(empty)

    def register(self, shape: str) -> None:
        """Let the ledger know the destinations of a shape, as its migration does."""
        migrate(self._url, [SHAPES[shape].specs[0]])

    def unmigrate(self, shape: str) -> None:
        """Make the tables of a shape's sinks anew, as they are before any migration."""
        for name in SHAPES[shape].sinks(len(SHAPES[shape].specs)):
            for relation in (("public", name), (DELTA_SCHEMA, f"public.{name}")):
                asked = "select relkind = 'v' from pg_class where oid = to_regclass(%s)"
                found = self._conn.execute(asked, [sql.Identifier(*relation).as_string()]).fetchone()
                if found:
                    drop = sql.SQL("drop view {}") if found[0] else sql.SQL("drop table {}")
                    self._conn.execute(drop.format(sql.Identifier(*relation)))
            self._conn.execute("delete from ratchet.targets where name = %s", [name])
        migrate(self._url, [SHAPES[shape].specs[0]])

    def reset(self) -> None:
        """Forget the schedule before."""
        self._clear()
        self._conn.execute("select setval('schedule.seconds', 0)")

    def _clear(self) -> None:
        for name in self._stages():
            self._conn.execute(sql.SQL("drop table {}").format(sql.Identifier(STAGE_SCHEMA, name)))
        self._conn.execute(self._empty)

    def _stages(self) -> list[str]:
        found = self._conn.execute("select tablename from pg_tables where schemaname = %s", [STAGE_SCHEMA])
        return [name for (name,) in found]

    def back_up(self, spec: Pipeline) -> Saved | None:
        """Keep what is committed now of a pipeline, in the midst of its work, stages included.

        None where somebody is about to drop a stage, and the backup before stays.
        """
        with suppress(LockNotAvailable), self._conn.transaction():
            self._conn.execute("set transaction isolation level repeatable read")
            self._conn.execute("set local lock_timeout = '2ms'")
            self._conn.execute("drop schema if exists backup, backup_stages cascade")
            saved = self._save("backup", spec)
            self._conn.execute("create schema backup_stages")
            for name in self._stages():
                copied = sql.Identifier("backup_stages", name), sql.Identifier(STAGE_SCHEMA, name)
                self._conn.execute(sql.SQL("create table {} as select * from {}").format(*copied))
            return saved
        return None

    def bring_back(self, saved: Saved) -> None:
        """Put a backup in the place of all that there is of the pipeline; the clock goes on."""
        with self._conn.transaction():
            self._clear()
            self._copy(saved)
            stages = self._conn.execute("select tablename from pg_tables where schemaname = 'backup_stages'")
            for (name,) in stages.fetchall():
                copied = sql.Identifier(STAGE_SCHEMA, name), sql.Identifier("backup_stages", name)
                self._conn.execute(sql.SQL("create table {} as select * from {}").format(*copied))

    def save(self, schema: str, spec: Pipeline) -> Saved:
        """Keep what there is now of a pipeline, between two runs; `restore` brings it back."""
        assert self.left() == []
        return self._save(schema, spec)

    def _save(self, schema: str, spec: Pipeline) -> Saved:
        self._conn.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        tables = (*self._of_ledger, *sending.TABLES, *(table.name for sink in sinks_of(spec) for table in sink.tables))
        for name in tables:
            saved, table = sql.Identifier(schema, name), self._tables[name]
            self._conn.execute(sql.SQL("create table {} as select * from {}{}").format(saved, table, self._mine(name)))
        (now,) = self._conn.execute("select schedule.clock_timestamp()").fetchone()
        return Saved(schema, tables, now)

    def restore(self, saved: Saved) -> None:
        """Put what was saved into an empty database, and the clock to where it was then, to the second after."""
        self._copy(saved)
        self._conn.execute(
            "select setval('schedule.seconds', ceil(extract(epoch from %s - pg_catalog.clock_timestamp()))::bigint)",
            [saved.clock],
        )

    def _copy(self, saved: Saved) -> None:
        query = sql.SQL("insert into {} overriding system value table {}")
        self._conn.execute("delete from ratchet.destinations where pipeline = %s", [NAME])
        copies = [query.format(self._tables[name], sql.Identifier(saved.schema, name)) for name in saved.tables]
        self._conn.execute(sql.SQL("; ").join(copies))

    def add_neighbour(self, name: str, *, is_halted: bool) -> None:
        """Another line, which has come as far as this one, with runs and stages of its own; and is halted there."""
        for shared, table in self._shared.items():
            copied = [column.name for column in table.columns if column.identity is None]
            other = {"pipeline": sql.Literal(name), "dag_id": sql.Literal(name)}
            other["relation"] = sql.SQL("{} || relation").format(sql.Literal(name))
            other["writer"] = sql.SQL("writer # abs(hashtext({})::bigint)").format(sql.Literal(name))
            query = sql.SQL("insert into {} ({}) select {} from {}{}").format(
                self._tables[shared],
                sql.SQL(", ").join(map(sql.Identifier, copied)),
                sql.SQL(", ").join(other.get(column, sql.Identifier(column)) for column in copied),
                self._tables[shared],
                self._mine(shared),
            )
            self._conn.execute(query)
        if is_halted:
            halt = "update ratchet.transactions set halted_at = now() where pipeline = %s and state = 'OPEN'"
            assert self._conn.execute(halt, [name]).rowcount == 1

    def neighbours(self) -> dict[str, list[str]]:
        """All that the ledger says of other lines."""
        query = sql.SQL("select t::text from {} t where pipeline <> {} order by 1")
        found = {name: self._conn.execute(query.format(self._tables[name], NAME)) for name in self._shared}
        return {name: [row for (row,) in rows] for name, rows in found.items()}

    def pass_time(self, seconds: int) -> None:
        """Move the database's clock on, for everybody and at once."""
        self._conn.execute("select setval('schedule.seconds', nextval('schedule.seconds') - 1 + %s)", [seconds])

    def dump(self) -> dict[str, list[str]]:
        """All that the ledger, its stages and its sinks hold, but for whose run has ended when."""
        tables = self._conn.execute(
            "select schemaname, tablename from pg_tables where schemaname = any(%s) and tablename <> 'runs'",
            [["public", SCHEMA, STAGE_SCHEMA, DELTA_SCHEMA]],
        ).fetchall()
        query = sql.SQL("select t::text from {} t order by 1")
        return {
            ".".join(table): [row for (row,) in self._conn.execute(query.format(sql.Identifier(*table)))]
            for table in tables
        }

    def left(self) -> list[str]:
        """What is left of work that is done: stages, writers, and sessions in the midst of something."""
        tables = self._conn.execute("select tablename from pg_tables where schemaname = %s", [STAGE_SCHEMA])
        sessions = self._conn.execute(
            "select 'session ' || pid || ' is ' || state from pg_stat_activity "
            "where datname = current_database() and state like 'idle in transaction%' and pid <> pg_backend_pid()"
        )
        writers = self._conn.execute(
            "select 'writer ' || writer || ' of ' || sink from ratchet.writers where pipeline = %s", [NAME]
        )
        return [said for (said,) in (*tables.fetchall(), *sessions.fetchall(), *writers.fetchall())]

    def ended(self) -> set[tuple[str, int]]:
        """The runs of this line, by id and clear number, that have ended for the ledger."""
        query = "select run_id, clear_number from ratchet.runs where pipeline = %s and ended_at is not null"
        return set(self._conn.execute(query, [NAME]).fetchall())

    def unmerged(self, spec: Pipeline) -> list[tuple]:
        """The keys that have more than one row of deltas, up to where compaction has merged them."""
        query = sql.SQL(
            "select k from {} where _txid <= (select merged from ratchet.pipelines where pipeline = {}) "
            "group by k having count(*) > 1"
        )
        merged = [sink.tables[1] for sink in sinks_of(spec) if sink.is_compacted]
        deltas = [sql.Identifier(table.schema, table.name) for table in merged]
        return [row for table in deltas for row in self._conn.execute(query.format(table, NAME))]

    def _mine(self, table: str) -> sql.Composable:
        """The condition for this line's rows of a table that it may share."""
        return sql.SQL(" where pipeline = {}").format(NAME) if table in self._shared else sql.SQL("")
