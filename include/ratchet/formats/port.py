"""The port of a format: it turns values into declared columns, and says of each value whether that was possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from ratchet.spec.columns import Column


@dataclass(frozen=True)
class Decoded:
    """What became of some values.

    `columns` has the declared columns, one row each. A value gives any number of rows, or an error and none; `parents`
    has the number of each row's value, ascending. `errors` has the error of each value, or null. `found` names the
    columns whose field was in some value without an error, though it may have been null there; `beside` has for each
    other column names that stood where its field was looked for. `cut` counts the moments that lost digits.
    """

    columns: pa.RecordBatch
    parents: pa.Int32Array
    errors: pa.StringArray
    found: frozenset[str] = frozenset()
    beside: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    cut: int = 0


class Decoder(Protocol):
    """What reads values that are written in one way.

    `decode` raises nothing because of a value, and gives each value the same whatever others are beside it.
    """

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that it makes, in order."""
        ...

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """What these values say; none of them is null."""
        ...


class NoRow(Exception):
    """The value gives no row; its text is the error."""
