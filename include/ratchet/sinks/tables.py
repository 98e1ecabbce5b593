"""The tables of a sink: its target, which readers see, and the deltas that the target is folded from."""

from __future__ import annotations

from functools import cache

import sqlalchemy as sa
from sqlalchemy import Connection, MetaData, Table
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, JSONB, REAL
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.schema import CreateSchema

from ratchet.errors import NotMigrated
from ratchet.ledger.schema import DELTA_SCHEMA, pipelines, targets
from ratchet.sinks.staged import POSITION, staged_columns
from ratchet.spec.columns import Column
from ratchet.spec.pipeline import Accumulate, Append, Pipeline, Upsert
from ratchet.spec.types import (
    BIGINT,
    STRING,
    Array,
    Binary,
    Boolean,
    Date,
    Decimal,
    Floating,
    Integer,
    Json,
    Map,
    String,
    Struct,
    Time,
    Timestamp,
    Type,
    Uuid,
    is_document,
)

AnySink = Append | Accumulate | Upsert

_TXID = Column("_txid", BIGINT, False)


def sql_type(kind: Type) -> sa.types.TypeEngine:
    """The PostgreSQL type of a declared one: documents are jsonb, arrays of scalars arrays."""
    match kind:
        case String():
            # Compared by bytes, as Spark does: else a last row or a greatest text depends on how a topic was sliced.
            return sa.Text(collation="C")
        case Array(String()):
            return ARRAY(sa.Text())
        case Array(element) if not is_document(kind):
            return ARRAY(sql_type(element))
        case Json() | Array() | Map() | Struct():
            return JSONB()
        case Boolean():
            return sa.Boolean()
        case Integer(bits):
            return {16: sa.SmallInteger(), 32: sa.Integer(), 64: sa.BigInteger()}[bits]
        case Floating(bits):
            return REAL() if bits == 32 else DOUBLE_PRECISION()
        case Decimal(precision, scale):
            return sa.Numeric(precision, scale)
        case Date():
            return sa.Date()
        case Time():
            return sa.Time()
        case Timestamp():
            return sa.DateTime(timezone=True)
        case Binary():
            return sa.LargeBinary()
        case Uuid():
            return sa.Uuid(as_uuid=False)


def sql_column(column: Column) -> sa.Column:
    """The SQLAlchemy column of a declared one."""
    return sa.Column(column.name, sql_type(column.type), nullable=column.nullable)


def key_names(sink: AnySink) -> list[str]:
    """The names of the columns that make a row of the target one of its kind; none for Append."""
    if isinstance(sink, Append):
        return []
    keys = sink.keys if isinstance(sink, Upsert) else sink.columns_of("key")
    return [c.name for c in keys]


@cache
def target(sink: AnySink) -> Table:
    """The table that readers see; every row carries the txid that last touched it.

    The same object each time, so that SQLAlchemy compiles a statement about it once.
    """
    schema, name = sink.table
    if isinstance(sink, Append):
        columns = (*sink.fields, Column("_topic", STRING, False), *POSITION, _TXID)
        # Block ranges suffice: rows of one transaction lie together. They make a revision's delete quick.
        extra = [sa.Index(f"{name}_txid", "_txid", postgresql_using="brin")]
    else:
        hidden = {"_deleted", "_n"}
        declared = {c.name: c for c in sink.fields} if isinstance(sink, Upsert) else {}
        staged = (c for c in staged_columns(sink) if c.name not in hidden)
        columns = (*(declared.get(c.name, c) for c in staged), _TXID)
        extra = [sa.UniqueConstraint(*key_names(sink), name=f"{name}_key", postgresql_nulls_not_distinct=True)]
    return Table(name, MetaData(), *map(sql_column, columns), *extra, schema=schema)


@cache
def delta(sink: Accumulate | Upsert) -> Table:
    """What each transaction contributed to each key; an Append's rows are their own deltas."""
    name = ".".join(sink.table)
    columns = (*(c for c in staged_columns(sink) if c.name != "_n"), _TXID)
    # The constraint's index serves the fold of one key over all txids.
    unique = sa.UniqueConstraint(*key_names(sink), "_txid", name=f"{name}_once", postgresql_nulls_not_distinct=True)
    by_txid = sa.Index(f"{name}_txid", "_txid")
    return Table(name, MetaData(), *map(sql_column, columns), unique, by_txid, schema=DELTA_SCHEMA)


def create(conn: Connection, pipeline: str, sink: AnySink) -> str:
    """Create what is missing of a sink; check, and never alter, what exists. Returns a line for the user.

    From then on the table is the pipeline's. Raises NotMigrated where it is another's, or does not fit.
    """
    existing, made = [], []
    for table in _tables(sink):
        conn.execute(CreateSchema(table.schema, if_not_exists=True))
        if sa.inspect(conn).has_table(table.name, table.schema):
            _check(conn, sink, table)
            existing.append(table)
        else:
            table.create(conn)
            made.append(f"{table.schema}.{table.name}")
    _own(conn, pipeline, sink, existing)
    return f"{sink.name}: created {', '.join(made)}" if made else f"{sink.name}: fits"


def probe(conn: Connection, spec: Pipeline) -> None:
    """NotMigrated if a table of a sink, or a column of one, is not there, or not the pipeline's; quick enough for every
    begin.
    """
    for sink in spec.sinks:
        for table in _tables(sink):
            try:
                conn.execute(sa.select(*table.columns).limit(0))
            except ProgrammingError as error:
                missing = str(error.orig).splitlines()[0]
                raise NotMigrated(
                    f"sink {sink.name!r}: {missing}; nothing was begun; `ratchet migrate` makes missing tables and "
                    "says what else does not fit"
                ) from error
    found = conn.execute(sa.select(targets.c.schema, targets.c.name).where(targets.c.pipeline == spec.name))
    own = {(schema, name) for schema, name in found}
    for sink in spec.sinks:
        if sink.table not in own:
            raise NotMigrated(
                f"sink {sink.name!r}: the ledger does not know its table as one of pipeline {spec.name!r}; nothing was "
                "begun; run `ratchet migrate`"
            )


def _tables(sink: AnySink) -> list[Table]:
    return [target(sink)] if isinstance(sink, Append) else [target(sink), delta(sink)]


def _own(conn: Connection, pipeline: str, sink: AnySink, existing: list[Table]) -> None:
    """Note whose the sink's table is. Txids of another line mean other transactions: a revision would replace them."""
    schema, name = sink.table
    owner = conn.execute(
        sa.select(targets.c.pipeline).where(targets.c.schema == schema, targets.c.name == name)
    ).scalar_one_or_none()
    if owner == pipeline:
        return
    where = f"sink {sink.name!r}: {schema}.{name}"
    has_line = conn.execute(sa.select(sa.exists().where(pipelines.c.pipeline == owner))).scalar_one()
    if existing and has_line:
        left = ", ".join(f"{table.schema}.{table.name}" for table in existing)
        raise NotMigrated(
            f"{where} is the table of pipeline {owner!r}, and a pipeline of another name is another line, with "
            "transactions of the same numbers; give the sink another table, and read both by a view, or drop "
            f"{left} if nobody needs what is in there"
        )
    for table in existing:
        if conn.execute(sa.select(sa.exists().where(table.c._txid > 0))).scalar_one():
            raise NotMigrated(
                f"{where}: {table.schema}.{table.name} holds rows of transactions that this ledger does not know; give "
                "the sink another table, and read both by a view"
            )
    conn.execute(
        upsert(targets)
        .values(schema=schema, name=name, pipeline=pipeline)
        .on_conflict_do_update(index_elements=["schema", "name"], set_={"pipeline": pipeline})
    )


def _check(conn: Connection, sink: AnySink, table: Table) -> None:
    inspected = sa.inspect(conn)
    found = {c["name"]: c for c in inspected.get_columns(table.name, table.schema)}
    dialect = conn.dialect
    for column in table.columns:
        where = f"sink {sink.name!r}: {table.schema}.{table.name}.{column.name}"
        wanted = column.type.compile(dialect)
        if column.name not in found:
            raise NotMigrated(
                f"{where} is missing; an existing table is never altered: "
                f"ALTER TABLE … ADD COLUMN {column.name} {wanted}, or give the sink another name"
            )
        actual = found[column.name]["type"].compile(dialect)
        if actual != wanted:
            raise NotMigrated(f"{where} is {actual}, the spec declares {wanted}; make the two agree")
    surplus = [
        name for name, c in found.items() if name not in table.columns and not c["nullable"] and not c["default"]
    ]
    if surplus:
        raise NotMigrated(
            f"sink {sink.name!r}: {table.schema}.{table.name} has the NOT NULL column {surplus[0]!r} without a "
            "default, which the spec does not fill; declare it, or give it a default"
        )
    keys = key_names(sink)
    if keys:
        if table.schema == DELTA_SCHEMA:
            keys = [*keys, "_txid"]
        # To a plain UNIQUE a null is never like another, so each transaction would add another row of a null key.
        has_nulls = any(found[key]["nullable"] for key in keys)
        unique = [
            set(u["column_names"])
            for u in inspected.get_unique_constraints(table.name, table.schema)
            if not has_nulls or u.get("dialect_options", {}).get("postgresql_nulls_not_distinct")
        ]
        unique.append(set(inspected.get_pk_constraint(table.name, table.schema)["constrained_columns"]))
        if set(keys) not in unique:
            raise NotMigrated(
                f"sink {sink.name!r}: {table.schema}.{table.name} has no unique constraint on {', '.join(keys)}"
                f"{', to which one null is like another' if has_nulls else ''}; "
                f"add UNIQUE NULLS NOT DISTINCT ({', '.join(keys)})"
            )
