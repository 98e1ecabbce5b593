"""A table in another PostgreSQL database, and its mark, which change together."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql
from sqlalchemy import (
    BigInteger,
    Connection,
    DateTime,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    create_engine,
    func,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy import (
    Column as SqlColumn,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.schema import CreateSchema

from ratchet.destinations.content import UTF8, Change, Content, Puts
from ratchet.destinations.port import Mark, Outside, Owner, no_answer
from ratchet.errors import DestinationRefused, DestinationUnreachable, SettingsError
from ratchet.ledger.connection import BY_A_POOLER, IDLE_SECONDS, PATIENCE, bound, driver_of
from ratchet.ledger.work import Relation, counted
from ratchet.sinks import catalog
from ratchet.sinks.types import POSITION, TXID, sql_column, sql_type
from ratchet.spec.columns import Column
from ratchet.values.withheld import postgres_said

SCHEMA = "ratchet_marks"

marks = Table(
    "marks",
    MetaData(schema=SCHEMA),
    SqlColumn("schema", Text, primary_key=True),
    SqlColumn("name", Text, primary_key=True),
    SqlColumn("pipeline", Text, nullable=False),
    SqlColumn("sink", Text, nullable=False),
    SqlColumn("destination", Text, nullable=False, comment="the address by which the pipeline knows the table"),
    SqlColumn("step", BigInteger, nullable=False, comment="the last that the table has taken"),
    SqlColumn("token", BigInteger, nullable=False, comment="that step's random number"),
    SqlColumn("txid", BigInteger, comment="the transaction of that step; null before the first"),
    SqlColumn("at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    comment="what each table that ratchet writes has taken; changed in the same transaction as the table",
)

_MAKE_PUTS = "create temp table ratchet_puts on commit drop as select {columns} from {place} with no data"
_DELETE = "delete from {place} at using {puts} puts where puts._txid is null and at._txid is not null and {same}"
_INSERT = (
    "insert into {place} as at ({columns}) select {columns} from {puts} puts where _txid is not null "
    "on conflict ({keys}) do update set {new} where at._txid is not null"
)
_COUNT = "select count(*) from {puts} where _txid is not null"


class Elsewhere(Outside):
    """The table, in its database."""

    def __init__(self, address: str, place: Relation, owner: Owner, engine: Engine):
        self._address, self._relation, self._owner, self._engine = address, place, owner, engine
        self._mine = (marks.c.schema == place[0], marks.c.name == place[1])

    @classmethod
    @contextmanager
    def connected(cls, address: str, place: Relation, owner: Owner, url: str) -> Generator[Elsewhere]:
        """The table, by the database's libpq URL."""
        try:
            engine = create_engine(
                make_url(url).set(drivername="postgresql+psycopg"),
                pool_size=1,
                connect_args={"application_name": "ratchet destination", **BY_A_POOLER, **PATIENCE},
            )
        except (ArgumentError, ValueError):
            # Not shown: it may hold a password.
            raise SettingsError(f"{owner}: the URL of {address} cannot be read") from None
        try:
            yield cls(address, place, owner, engine)
        finally:
            engine.dispose()

    def mark(self) -> Mark | None:
        with self._begin() as conn:
            if catalog.kind_of(conn, SCHEMA, marks.name) is None:
                return None
            return self._held(conn)

    def start(self, mark: Mark) -> None:
        with self._begin() as conn:
            self._make_marks(conn)
            if self._held(conn) is not None:
                return
            self._make_table(conn)
            self._own(conn, mark)

    def apply(self, at: Mark, to: Mark, change: Change | Puts) -> bool:
        with self._begin() as conn:
            # Whoever else does the same waits here, and finds another mark.
            if self._held(conn, lock=True) != at:
                return False
            self._fit(conn, change.columns)
            if isinstance(change, Puts):
                self._put(conn, change)
            else:
                self._add(conn, change)
            moved = {"step": to.step, "token": to.token, "txid": change.until, "at": func.clock_timestamp()}
            conn.execute(update(marks).where(*self._mine).values(moved))
        return True

    def counted(self) -> list[tuple[int, int]]:
        with self._begin() as conn:
            asked = sql.SQL("select _txid, count(*) from {} where _txid is not null group by 1").format(self._place)
            return driver_of(conn).execute(asked).fetchall()

    def restart(self, at: Mark | None, to: Mark, content: Content | None) -> bool:
        with self._begin() as conn:
            self._make_marks(conn)
            if self._held(conn, lock=True) != at:
                return False
            if content is not None:
                if catalog.kind_of(conn, *self._relation) is None:
                    self._make_table(conn)
                self._fit(conn, content.columns)
                # What is a person's own has no txid.
                driver_of(conn).execute(sql.SQL("delete from {} where _txid is not null").format(self._place))
                self._copy(conn, content, self._place)
            self._own(conn, to)
        return True

    def _held(self, conn: Connection, *, lock: bool = False) -> Mark | None:
        """The mark; DestinationRefused where it is another destination's: its steps say nothing of these rows."""
        query = select(marks.c.step, marks.c.token, marks.c.pipeline, marks.c.sink, marks.c.destination)
        query = query.where(*self._mine)
        found = conn.execute(query.with_for_update() if lock else query).one_or_none()
        if found is None:
            return None
        step, token, *whose = found
        if whose != [self._owner.pipeline, self._owner.sink, self._address]:
            pipeline, sink, destination = whose
            raise DestinationRefused(
                f"{self._where} is the destination {destination} of {pipeline}: {sink} already; name another table, or "
                f"delete its row from {SCHEMA}.{marks.name} where that is over, and its rows"
            )
        return Mark(step, token)

    @property
    def _place(self) -> sql.Identifier:
        return sql.Identifier(*self._relation)

    def _make_marks(self, conn: Connection) -> None:
        # Two that make the same schema at once would meet in the catalog, and of two that start one comes first.
        conn.execute(text("select pg_advisory_xact_lock(hashtext('ratchet marks'))"))
        if catalog.kind_of(conn, SCHEMA, marks.name) is None:
            _make_schema(conn, SCHEMA)
            marks.create(conn)

    def _own(self, conn: Connection, mark: Mark) -> None:
        """Make the mark the pipeline's own, whosever it was."""
        schema, name = self._relation
        now = {"pipeline": self._owner.pipeline, "sink": self._owner.sink, "destination": self._address}
        now |= {"step": mark.step, "token": mark.token, "txid": None, "at": func.clock_timestamp()}
        mine = insert(marks).values(schema=schema, name=name, **now)
        conn.execute(mine.on_conflict_do_update(index_elements=["schema", "name"], set_=now))

    def _add(self, conn: Connection, change: Change) -> None:
        """Add rows, in place of those of their transaction where they replace these."""
        if change.replaces:
            gone = sql.SQL("delete from {} where _txid = {}").format(self._place, change.txid)
            driver_of(conn).execute(gone)
        kept = self._copy(conn, change, self._place)
        if kept != change.rows:
            raise DestinationRefused(
                f"{self._where}: PostgreSQL has kept {kept:,} of {counted(change.rows, 'row')}; a trigger on the "
                "table must leave them alone; nothing was sent"
            )

    def _put(self, conn: Connection, puts: Puts) -> None:
        """Put the rows of keys in place of what stands under these. A person's own row, without a txid, is left."""
        self._check_unique(conn)
        columns, keys = _names(puts.columns), _names(puts.key)
        parts = {
            "place": self._place,
            "puts": sql.Identifier("pg_temp", "ratchet_puts"),
            "columns": sql.SQL(", ").join(columns),
            "keys": sql.SQL(", ").join(keys),
            "same": sql.SQL(" and ").join(sql.SQL("at.{0} = puts.{0}").format(key) for key in keys),
            "new": sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(column) for column in columns if column not in keys
            ),
        }
        statements = [sql.SQL(each).format(**parts) for each in (_MAKE_PUTS, _DELETE, _INSERT, _COUNT)]
        make, remove, insert_all, number = statements
        driver = driver_of(conn)
        # Of a key that has no row any more the columns are null.
        driver.execute(make)
        self._copy(conn, puts, parts["puts"])
        driver.execute(remove)
        kept = driver.execute(insert_all).rowcount
        (rows,) = driver.execute(number).fetchone() or (0,)
        if kept != rows:
            raise DestinationRefused(
                f"{self._where}: PostgreSQL has kept {kept:,} of {counted(rows, 'row')}; a trigger on the table must "
                "leave them alone, and a row of your own, without a _txid, must not have a key of theirs; nothing was "
                "sent"
            )

    def _check_unique(self, conn: Connection) -> None:
        """DestinationRefused unless the keys are unique in the table, and compared as in the ledger."""
        names = [column.name for column in self._owner.key]
        if not catalog.are_unique(conn, self._relation, names):
            raise DestinationRefused(
                f"{self._where} has no unique index of {', '.join(names)} alone; nothing was sent; `create unique "
                "index` there, without a condition, and not deferrable"
            )
        alike = catalog.with_other_likeness(conn, self._relation, names)
        if alike:
            raise DestinationRefused(
                f"{self._where}: column {alike[0]} has a collation by which unlike texts are the same key; nothing was "
                "sent; give it another one there"
            )

    def _copy(self, conn: Connection, content: Content, into: sql.Composable) -> int:
        """Send the rows as PostgreSQL itself has written them: no value is read on the way. How many were kept."""
        columns = _names(content.columns)
        writing = sql.SQL("copy {} ({}) from stdin (format binary)").format(into, sql.SQL(", ").join(columns))
        with driver_of(conn).cursor() as cursor:
            with cursor.copy(writing) as copying:
                for block in content.copied(columns):
                    copying.write(block)
            return cursor.rowcount

    def _make_table(self, conn: Connection) -> None:
        """Make the table; or look whether one that is there has no rows of anybody's."""
        schema, name = self._relation
        kind = catalog.kind_of(conn, schema, name)
        if kind is None:
            _make_schema(conn, schema)
            key = PrimaryKeyConstraint(*(c.name for c in self._owner.key or (TXID, *POSITION)))
            columns = map(sql_column, self._owner.columns)
            Table(name, MetaData(), *columns, key, schema=schema).create(conn)
        elif kind not in catalog.TABLES:
            raise DestinationRefused(f"{self._where} is there already, and is no table; name another one")
        elif catalog.has_rows(conn, self._relation):
            raise DestinationRefused(
                f"{self._where} has rows already, and none is this pipeline's; name another table, or empty it"
            )

    def _fit(self, conn: Connection, columns: Sequence[Column]) -> None:
        """See that the table has the columns that are sent, each of the very type; one that is new is added."""
        held = catalog.columns(conn, self._relation)
        if not held:
            raise DestinationRefused(f"{self._where} does not exist; its mark does, so somebody has dropped it")
        renamed = dict(self._owner.renamed)
        for column in columns:
            name, kind = column.name, sql_type(column.type)
            if name not in held and renamed.get(name) in held:
                raise DestinationRefused(
                    f"{self._where} has no column {name}, which was {renamed[name]}; rename it there too"
                )
            if name not in held:
                added = sql.SQL("alter table {} add column {} {}")
                # A type of our own, and no text of anybody's.
                kind_said = sql.SQL(catalog.type_of(conn, kind))  # pyright: ignore[reportArgumentType]
                driver_of(conn).execute(added.format(self._place, sql.Identifier(name), kind_said))
            elif not catalog.is_type(conn, held[name], kind):
                raise DestinationRefused(
                    f"{self._where}: column {name} is {held[name].type.lower()}, and is written as "
                    f"{catalog.type_of(conn, kind).lower()}; alter it there"
                )

    @property
    def _where(self) -> str:
        return f"{self._owner}: {self._address}"

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        """One database transaction there."""
        try:
            with self._engine.begin() as conn:
                # A process that is stopped must not keep others from the mark for ever, and no limit of the role is
                # for a step.
                bound(conn, IDLE_SECONDS, "local")
                conn.exec_driver_sql(UTF8)
                yield conn
        except (DBAPIError, psycopg.Error) as error:
            raise self._told(getattr(error, "orig", None) or error) from error

    def _told(self, error: BaseException) -> DestinationUnreachable | DestinationRefused:
        said = " ".join(postgres_said(error, private=self._owner.private).split())
        passes = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError)
        # A key too long for its index and the like, which psycopg counts among what passes.
        passes = passes and not str(getattr(error, "sqlstate", None) or "").startswith("54")
        if passes:
            return no_answer(self._where, said)
        return DestinationRefused(
            f"{self._where}: {said}; nothing was sent; correct that there, or `ratchet detach "
            f"{self._owner.pipeline} {self._address}`"
        )


def _names(columns: Sequence[Column]) -> list[sql.Identifier]:
    return [sql.Identifier(column.name) for column in columns]


def _make_schema(conn: Connection, name: str) -> None:
    """Make a schema, unless it is there: the right to make one is asked for before that is looked at."""
    asked = text("select exists (select from pg_namespace where nspname = :name)")
    if not conn.execute(asked, {"name": name}).scalar_one():
        conn.execute(CreateSchema(name))
