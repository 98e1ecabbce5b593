"""What a job stages for each sink: the columns, in order, that Spark writes and the fold reads."""

from __future__ import annotations

from dataclasses import replace

from ratchet.spec.columns import Column
from ratchet.spec.pipeline import Accumulate, Append, Upsert
from ratchet.spec.types import BIGINT, BINARY, BOOLEAN, INT, STRING, Decimal, Type

POSITION = (Column("_partition", INT, False), Column("_offset", BIGINT, False), Column("_n", INT, False))
"""Where a row comes from: its record, and its number among the rows of that record."""


def staged_columns(sink: Append | Accumulate | Upsert | None) -> tuple[Column, ...]:
    """The staged columns of a sink, or of the dead letters where it is None, without the tags in front."""
    match sink:
        case None:
            return (
                *POSITION[:2],
                Column("key", BINARY),
                Column("value", BINARY),
                Column("headers", STRING),
                Column("error", STRING, False),
            )
        case Append():
            return (*sink.fields, *POSITION)
        case Accumulate():
            return (*sink.columns_of("key"), *_measures(sink))
        case Upsert():
            # A deletion has a key and no values, whatever the values' declaration says.
            values = (replace(c, nullable=True) for c in sink.fields)
            return (*sink.keys, *values, Column("_deleted", BOOLEAN, False), *POSITION)


def _measures(sink: Accumulate) -> list[Column]:
    sums = [Column(f"{c.name}_sum", _sum_type(c)) for c in sink.columns_of("sum")]
    least = [Column(f"{c.name}_min", c.type) for c in sink.columns_of("min")]
    greatest = [Column(f"{c.name}_max", c.type) for c in sink.columns_of("max")]
    return sums + least + greatest + ([Column(sink.count, BIGINT, False)] if sink.count else [])


def _sum_type(column: Column) -> Type:
    """A sum needs room: bigint for integers, 38 digits for decimals; what does not fit raises, never wraps."""
    return Decimal(38, column.type.scale) if isinstance(column.type, Decimal) else BIGINT
