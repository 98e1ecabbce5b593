"""The numbers of rows that a generator makes of a record: Spark's tasks count them, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ratchet.spark.withholding import withholding


@dataclass(frozen=True)
class Numbering:
    """What each Spark task does with rows that still stand in the order of their records: `_n` counts those of one
    record from 0. Carried to the workers by value.
    """

    private: bool

    @withholding
    def __call__(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches with other numbers; a record's rows may go on in the next one."""
        last, count = None, 0
        for batch in given:
            if not batch.num_rows:
                continue
            partitions, offsets = (batch.column(name).to_numpy() for name in ("_partition", "_offset"))
            changes = (partitions[1:] != partitions[:-1]) | (offsets[1:] != offsets[:-1])
            firsts = np.flatnonzero(np.concatenate(([True], changes)))
            lengths = np.diff(firsts, append=batch.num_rows)
            numbers = np.arange(batch.num_rows) - np.repeat(firsts, lengths)
            if (partitions[0], offsets[0]) == last:
                numbers[: lengths[0]] += count
            last, count = (partitions[-1], offsets[-1]), int(numbers[-1]) + 1
            place = batch.schema.get_field_index("_n")
            yield batch.set_column(place, batch.schema.field(place), pa.array(numbers, pa.int32()))
