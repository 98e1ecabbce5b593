"""Combining rows of one key within a Spark task, in Arrow: exact sums, least and greatest values, last rows.

A key may come out of several tasks, and several times out of one: the fold groups what is written once more.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.errors import TransformError
from ratchet.sinks.forms import written_schema
from ratchet.spec.columns import Column

Measure = tuple[str, str, str]
"""(column, one of sum, min and max, name of the result)."""
_DIGITS = 38
"""What a decimal of PostgreSQL's and Arrow's 128 bits can have at most."""


def accumulated(
    rows: pa.Table,
    sink: str,
    written: Sequence[Column],
    keys: Sequence[str],
    measures: Sequence[Measure],
    count: str | None,
) -> pa.Table:
    """One row a key with the written columns; TransformError where a sum does not fit its column."""
    columns = {f"k{i}": rows.column(name) for i, name in enumerate(keys)}
    asked: list[tuple[object, str]] = []
    for i, (name, part, _) in enumerate(measures):
        values = rows.column(name)
        columns[f"m{i}"] = _roomy(values) if part == "sum" else values
        asked.append((f"m{i}", part))
    if count:
        asked.append(([], "count_all"))
    grouped = pa.table(columns).group_by(list(columns)[: len(keys)], use_threads=False).aggregate(asked)
    given = {name: grouped.column(f"k{i}") for i, name in enumerate(keys)}
    given |= {out: grouped.column(f"m{i}_{part}") for i, (_, part, out) in enumerate(measures)}
    if count:
        given[count] = grouped.column("count_all")
    schema = written_schema(written)
    return pa.table([_fitted(given[field.name], field, sink) for field in schema], schema=schema)


def last(
    rows: pa.Table,
    sink: str,
    written: Sequence[Column],
    groups: Sequence[str],
    by: Sequence[str],
    required: Sequence[str],
    order: str | None,
) -> pa.Table:
    """The row of each group that is greatest `by` these columns in turn, null being least and NaN greatest.

    TransformError where one of the `required` columns is null in a row that is no deletion, or `order` in one that is.
    """
    living = pc.invert(rows.column("_deleted"))
    if order and pc.any(pc.and_(rows.column("_deleted"), pc.is_null(rows.column(order)))).as_py():
        raise TransformError(
            f"{sink}: a deletion has no {order}, so nothing says which rows of its key it deletes; give it that of the "
            "record"
        )
    for name in required:
        if pc.any(pc.and_(living, pc.is_null(rows.column(name)))).as_py():
            raise TransformError(f"{sink}: column {name} is declared not null and is null")
    sorting: list[tuple[str, str, str]] = []
    ranked = {name: rows.column(name) for name in by}
    for name in by:
        if pa.types.is_floating(rows.column(name).type):
            ranked[f"nan {name}"] = pc.fill_null(pc.is_nan(rows.column(name)), False)
            sorting.append((f"nan {name}", "ascending", "at_start"))
        sorting.append((name, "ascending", "at_start"))
    at = pc.sort_indices(pa.table(ranked), sort_keys=sorting)
    # Where each row stands in that order; of a group the one that stands last is kept.
    keyed = pa.table({f"k{i}": rows.column(name).take(at) for i, name in enumerate(groups)})
    placed = keyed.append_column("place", pa.array(range(len(at)), pa.int64()))
    lasting = placed.group_by(keyed.column_names, use_threads=False).aggregate([("place", "max")]).column("place_max")
    return rows.take(at.take(lasting)).select([c.name for c in written])


def _roomy(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values in a type in which their sum cannot overflow."""
    if pa.types.is_integer(values.type):
        bounds = pc.min_max(values).as_py()
        greatest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
        wide = pa.int64() if greatest * len(values) < 2**63 else pa.decimal128(_DIGITS, 0)
        return values.cast(wide)
    room = values.type.precision + len(str(len(values)))
    return values.cast(
        pa.decimal128(_DIGITS, values.type.scale) if room <= _DIGITS else pa.decimal256(76, values.type.scale)
    )


def _fitted(values: pa.ChunkedArray, field: pa.Field, sink: str) -> pa.ChunkedArray:
    """The values in the type in which they are written."""
    try:
        return values.cast(field.type)
    except pa.ArrowInvalid:
        # Arrow's own words have the sum in them, which may be one value.
        raise TransformError(f"{sink}: column {field.name}: a sum does not fit a {field.type}") from None
