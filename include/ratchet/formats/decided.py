"""The rows of many values: columns that were read at once, and the values in doubt, each read by its definition."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ratchet.formats.cells import Cell
from ratchet.formats.port import Decoded, NoRow
from ratchet.formats.vectors import Rows, Vector

Row = list[Cell]


@dataclass(frozen=True)
class Reading:
    """What one value says: its rows, each with a cell for each column, and how many of its moments were cut."""

    rows: list[Row]
    cut: int


def decided(
    count: int,
    schema: pa.Schema,
    vectors: Sequence[Vector],
    parents: Rows,
    doubtful: set[int],
    read: Callable[[int], Reading],
) -> Decoded:
    """What `count` values say: the doubtful ones what `read` says of their numbers, the others what the vectors say.

    `parents` has the number of the value of each row of the vectors. `read` raises NoRow where a value gives none.
    """
    errors: list[str | None] = [None] * count
    cells: list[Row] = []
    of: list[int] = []
    cut = 0
    for number in sorted(doubtful):
        try:
            reading = read(number)
        except NoRow as reason:
            errors[number] = str(reason)
            continue
        cells += reading.rows
        of += [number] * len(reading.rows)
        cut += reading.cut
    kept = ~np.isin(parents, list(doubtful)) if doubtful else np.ones(len(parents), bool)
    cut += sum(int(kept[v.cut].sum()) for v in vectors)
    arrays = [v.array for v in vectors]
    if doubtful:
        mask, parents = pa.array(kept), np.concatenate([parents[kept], np.array(of, np.int64)])
        order = np.argsort(parents, kind="stable")
        slow = [pa.array([row[i] for row in cells], t.type) for i, t in enumerate(schema)]
        both = [pa.concat_arrays([fast.filter(mask), other]) for fast, other in zip(arrays, slow, strict=True)]
        arrays, parents = [array.take(pa.array(order)) for array in both], parents[order]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return Decoded(rows, pa.array(parents, pa.int32()), pa.array(errors, pa.string()), cut=cut)


def in_doubt(vectors: Sequence[Vector], nullable: Sequence[bool], parents: Rows) -> set[int]:
    """The values of rows that a vector has declined, or has as null where its column is not nullable."""
    declined = [v.declined for v in vectors]
    declined += [
        np.flatnonzero(v.array.is_null().to_numpy(zero_copy_only=False))
        for can_be_null, v in zip(nullable, vectors, strict=True)
        if not can_be_null and v.array.null_count
    ]
    return {number for rows in declined for number in parents[rows].tolist()}
