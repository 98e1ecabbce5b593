"""PostgreSQL's type of a declared column, and the hidden columns that tables of sinks have."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, REAL

from ratchet.spec.columns import Column

POSITION = (Column("_partition", "int", False), Column("_offset", "bigint", False), Column("_n", "int", False))
"""Where a row comes from: its record, and its number among the rows of that record."""
TXID = Column("_txid", "bigint", False)
DELETED = Column("_deleted", "boolean", False)

_TYPES: dict[str, sa.types.TypeEngine] = {
    # Compared by bytes, as Arrow and Spark do: else a last row or a greatest text depends on how a topic was sliced.
    "string": sa.Text(collation="C"),
    "boolean": sa.Boolean(),
    "smallint": sa.SmallInteger(),
    "int": sa.Integer(),
    "bigint": sa.BigInteger(),
    "float": REAL(),
    "double": DOUBLE_PRECISION(),
    "date": sa.Date(),
    "timestamp": sa.DateTime(timezone=True),
    "binary": sa.LargeBinary(),
}


def sql_column(column: Column) -> sa.Column:
    """The SQLAlchemy column of a declared one."""
    if column.type in _TYPES:
        kind = _TYPES[column.type]
    else:
        precision, scale = column.type.removeprefix("decimal(").removesuffix(")").split(",")
        kind = sa.Numeric(int(precision), int(scale))
    return sa.Column(column.name, kind, nullable=column.nullable)
