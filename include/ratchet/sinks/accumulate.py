"""Accumulate: per key exact sums, least and greatest values, and the number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import sqlalchemy as sa
from pydantic import field_validator, model_validator
from sqlalchemy import CTE, Connection, FromClause, cast, func, select
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.sinks.keyed import Keyed
from ratchet.sinks.port import Delta
from ratchet.sinks.types import TXID
from ratchet.spec.columns import IDENTIFIER, Column, parse_columns
from ratchet.spec.declaration import LONGEST_NAME, sink_columns
from ratchet.spec.types import BIGINT, Boolean, Decimal, Type, Uuid, is_scalar

if TYPE_CHECKING:
    import pyarrow as pa

PARTS = ("sum", "min", "max")


class Accumulate(Keyed, frozen=True):
    """Per key: exact sums, least and greatest values, and the number of rows."""

    has_positions: ClassVar[bool] = False
    kind: Literal["accumulate"] = "accumulate"
    key: str
    """The columns that make a key, as `"customer string"`."""
    sum: str | None = None
    """Columns of integers or decimals whose values are summed; `x` gives `x_sum`."""
    min: str | None = None
    """Columns whose least value is kept; `x` gives `x_min`."""
    max: str | None = None
    """Columns whose greatest value is kept; `x` gives `x_max`."""
    count: str | None = None
    """The name of the column with the number of rows."""
    _check = field_validator("key", "sum", "min", "max")(lambda ddl: ddl if ddl is None else sink_columns(ddl))

    @model_validator(mode="after")
    def _is_exact(self) -> Accumulate:
        for name in ("key", *PARTS):
            for column in self.columns_of(name):
                if column.floating:
                    raise ValueError(
                        f"{name}: {column.name!r} is a {column.type}, whose sums and keys are not exact; "
                        f"cast it in the transform and declare {column.name} decimal(18,6)"
                    )
                if not is_scalar(column.type):
                    raise ValueError(f"{name}: {column.name!r} is a {column.type}, whose values have no order")
                if name in ("min", "max") and isinstance(column.type, Boolean | Uuid):
                    other = "int" if isinstance(column.type, Boolean) else "string"
                    raise ValueError(
                        f"{name}: {column.name!r} is a {column.type}, of which PostgreSQL has no {name}; "
                        f"cast it in the transform and declare {column.name} {other}"
                    )
                if name == "sum" and not column.exact:
                    raise ValueError(f"sum: {column.name!r} is a {column.type}; sums need integers or decimals")
        if self.count is not None and not IDENTIFIER.fullmatch(self.count):
            raise ValueError(f"count: {self.count!r} is not a legal column name")
        names = self.key_names + self.measures
        for measure in self.measures:
            if len(measure) > LONGEST_NAME:
                raise ValueError(f"{measure!r} is too long: PostgreSQL's names end at {LONGEST_NAME}; shorten it")
        for was in (was for new, old in self.renamed for was in self.stored_as(new, old).values()):
            if was in names:
                raise ValueError(f"renamed: {was!r} is a column of the table still, and cannot be what another was")
        if not self.measures:
            raise ValueError("declare at least one of sum, min, max, count")
        if len(set(names)) != len(names):
            raise ValueError(f"two columns have one name among {', '.join(names)}")
        kinds: dict[str, Type] = {}
        for column in (c for part in ("key", *PARTS) for c in self.columns_of(part)):
            if kinds.setdefault(column.name, column.type) != column.type:
                raise ValueError(
                    f"{column.name!r} is declared {kinds[column.name]} and {column.type}; one column has one type"
                )
        return self

    def columns_of(self, part: str) -> tuple[Column, ...]:
        """The declared columns of `key`, `sum`, `min` or `max`."""
        ddl = getattr(self, part)
        return parse_columns(ddl) if ddl else ()

    @property
    def named(self) -> list[str]:
        return [*super().named, *([self.count] if self.count else [])]

    def stored_as(self, new: str, old: str) -> dict[str, str]:
        measures = {
            f"{new}_{part}": f"{old}_{part}" for part in PARTS if new in {c.name for c in self.columns_of(part)}
        }
        return measures | ({new: old} if new in (*self.key_names, self.count) else {})

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return self.columns_of("key")

    @property
    def measures(self) -> list[str]:
        """The names of the folded columns in the table."""
        named = [f"{c.name}_{part}" for part in PARTS for c in self.columns_of(part)]
        return named + ([self.count] if self.count else [])

    @property
    def needed(self) -> tuple[Column, ...]:
        # A key of which a sum is taken too is one column of the transform's; not null where either says so.
        found: dict[str, Column] = {}
        for column in (c for part in ("key", *PARTS) for c in self.columns_of(part)):
            found.setdefault(column.name, column)
        return tuple(found.values())

    @property
    def written(self) -> tuple[Column, ...]:
        sums = [Column(f"{c.name}_sum", _sum_type(c)) for c in self.columns_of("sum")]
        least = [Column(f"{c.name}_min", c.type) for c in self.columns_of("min")]
        greatest = [Column(f"{c.name}_max", c.type) for c in self.columns_of("max")]
        return (
            *self.key_columns,
            *sums,
            *least,
            *greatest,
            *([Column(self.count, BIGINT)] if self.count else []),
        )

    @property
    def state(self) -> tuple[Column, ...]:
        return self.written

    @property
    def meaning(self) -> dict[str, object]:
        return {**super().meaning, "measures": {name: self._part(name) for name in self.measures}}

    @property
    def described(self) -> str:
        return f"per `{self.key}`: {', '.join(f'`{name}`' for name in self.measures)}"

    def combine(self, rows: pa.Table) -> pa.Table:
        """One row a key: exact sums, of which TransformError says where one does not fit its column."""
        from ratchet.sinks import combine

        measures = [(c.name, part, f"{c.name}_{part}") for part in PARTS for c in self.columns_of(part)]
        return combine.accumulated(rows, self.name, self.written, self.key_names, measures, self.count)

    def reduced(self, deltas: FromClause, names: Sequence[str]) -> sa.Select:
        keys = [deltas.c[n] for n in self.key_names]
        measures = [n for n in names if n not in self.key_names]
        wholes = [cast(_whole(self._part(m), deltas.c[m]), deltas.c[m].type).label(m) for m in measures]
        return select(*keys, *wholes, func.max(deltas.c._txid).label(TXID.name)).group_by(*keys)

    def _part(self, measure: str) -> str:
        """Which of sum, min and max a measure is, also one that the spec has no more; a count is a sum of ones."""
        ending = measure.rpartition("_")[2]
        return ending if measure != self.count and ending in PARTS else "sum"

    def _changes(self, conn: Connection, merged: CTE, of: Delta) -> list[CTE]:
        into, keys = self.target, self.key_names
        names = [c.name for c in into.columns]
        folding = upsert(into).from_select(names, self.living(merged))
        new = folding.excluded
        changed = {m: _join(self._part(m), into.c[m], new[m]) for m in self.measures}
        folding = folding.on_conflict_do_update(index_elements=keys, set_={**changed, TXID.name: new._txid})
        return [folding.returning(into.c._txid).cte("folded")]


def _sum_type(column: Column) -> Type:
    """A sum needs room: bigint for integers, 38 digits for decimals; what does not fit raises, never wraps."""
    return Decimal(38, column.type.scale) if isinstance(column.type, Decimal) else BIGINT


def _whole(part: str, column: sa.ColumnElement) -> sa.ColumnElement:
    """The aggregate over many rows."""
    return getattr(func, part)(column)


def _join(part: str, old: sa.ColumnElement, new: sa.ColumnElement) -> sa.ColumnElement:
    """State ⊕ delta; a null is a measure without values, and does not count."""
    if part == "min":
        return func.least(old, new)
    if part == "max":
        return func.greatest(old, new)
    return func.coalesce(old + new, old, new)
