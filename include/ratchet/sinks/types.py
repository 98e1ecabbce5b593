"""PostgreSQL's type of a declared column, and the hidden columns that tables of sinks have."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, JSONB, REAL

from ratchet.spec.columns import Column
from ratchet.spec.types import (
    BIGINT,
    BOOLEAN,
    INT,
    SMALLINT,
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

POSITION = (Column("_partition", INT, False), Column("_offset", BIGINT, False), Column("_n", INT, False))
"""Where a row comes from: its record, and its number among the rows of that record."""
TXID = Column("_txid", BIGINT, False)
WRITER = Column("_writer", BIGINT, False)
SOURCE = Column("_source", SMALLINT, False)
"""The number of the topic that the record was read from; its name is in the ledger's `sources`."""
SENT = (SOURCE, *POSITION, TXID)
"""The hidden columns of rows that are kept each, in destinations that have columns."""
DELETED = Column("_deleted", BOOLEAN, False)

PIPELINE = Column("_pipeline", STRING, False)
"""Whose a row is, in a table that pipelines share."""


def sql_type(kind: Type) -> sa.types.TypeEngine:
    """The PostgreSQL type of a declared one: documents are jsonb, arrays of scalars arrays."""
    match kind:
        case String():
            # Compared by bytes, as Arrow does: else a last row or a greatest text depends on how a topic was sliced.
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


def sql_name(column: Column) -> sa.ColumnClause:
    """A column of that name and type, for a query of a table that may have more columns than the spec."""
    return sa.column(column.name, sql_type(column.type))


def as_hashed(column: Column, held: sa.ColumnElement) -> sa.ColumnElement:
    """A column as the checksum takes it: of a document its text."""
    return sa.cast(held, sa.Text) if is_document(column.type) else held
