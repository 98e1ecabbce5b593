"""Which rows of an Iceberg table give way: those of a transaction, all, or those of some keys."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    LessThanOrEqual,
    NotNull,
)

from ratchet.sinks.types import TXID

_ROW = "_ratchet_row"


class Gone(ABC):
    """Rows that give way."""

    names: tuple[str, ...]
    """The columns by which they are told, as the table calls them."""
    is_told: bool
    """Whether all rows for which the filter is true give way."""

    @property
    @abstractmethod
    def filter(self) -> BooleanExpression:
        """True for all of them; by it files are left out in which there are none."""

    @abstractmethod
    def matching(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Which of some rows give way, by these columns of theirs."""


class OfTransaction(Gone):
    """The rows of a transaction, or of all transactions."""

    names = (TXID.name,)
    is_told = True

    def __init__(self, txid: int | None):
        self._txid = txid

    @property
    def filter(self) -> BooleanExpression:
        # Its constructors have another signature than its models.
        if self._txid is None:
            return NotNull(TXID.name)  # pyright: ignore[reportCallIssue]
        return EqualTo(TXID.name, self._txid)  # pyright: ignore[reportCallIssue]

    def matching(self, columns: Sequence[pa.Array]) -> pa.Array:
        (txids,) = columns
        return pc.is_valid(txids) if self._txid is None else pc.fill_null(pc.equal(txids, self._txid), False)


class OfKeys(Gone):
    """The rows of keys, which are told while rows are written: the keys alone are in memory, as Arrow has them."""

    is_told = False

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        self._batches: list[pa.RecordBatch] = []

    def living(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that stand under the keys now, of batches with a row of each key."""
        for batch in batches:
            self._batches.append(batch.select(list(self.names)))
            yield batch.filter(pc.is_valid(batch.column(TXID.name)))

    @cached_property
    def keys(self) -> pa.Table:
        """All keys, once all rows are written."""
        return pa.Table.from_batches(self._batches)

    @property
    def filter(self) -> BooleanExpression:
        if not self._batches:
            return AlwaysFalse()
        return reduce(And, map(self._between, self.names), AlwaysTrue())

    def _between(self, name: str) -> BooleanExpression:
        keys = self.keys.column(name)
        if pa.types.is_boolean(keys.type) or pa.types.is_binary(keys.type):
            return AlwaysTrue()
        ends: dict[str, Any] = pc.min_max(keys).as_py()
        least = GreaterThanOrEqual(name, ends["min"])  # pyright: ignore[reportCallIssue]
        return And(least, LessThanOrEqual(name, ends["max"]))  # pyright: ignore[reportCallIssue]

    def matching(self, columns: Sequence[pa.Array]) -> pa.Array:
        # Files of before a column was widened have it as it was.
        types = [self.keys.schema.field(name).type for name in self.names]
        cells = [cell.cast(kind) for cell, kind in zip(columns, types, strict=True)]
        rows = pa.array(np.arange(len(cells[0])))
        table = pa.table([*cells, rows], names=[*self.names, _ROW])
        found = table.join(self.keys, keys=list(self.names), join_type="left semi").column(_ROW)
        mask = np.zeros(len(rows), dtype=bool)
        mask[found.to_numpy()] = True
        return pa.array(mask)
