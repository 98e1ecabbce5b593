"""The port of a format: what a spec declares of values, and the decoder that turns them into declared columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from ratchet.spec.columns import Column
from ratchet.spec.source import DeclaredFormat

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Decoded:
    """What became of some values.

    `columns` has the declared columns, one row each. A value gives any number of rows, or an error and none; `parents`
    has the number of each row's value, ascending. `errors` has the error of each value, or null; an error begins with
    what it is about: `the value: …`, `column name: …` or `row 0, column name: …`. `found` names the columns whose field
    was in some value without an error, though it may have been null there; `beside` has for each other column names
    that stood where its field was looked for. `cut` counts the moments that lost digits.
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


class Format(DeclaredFormat, ABC, frozen=True):
    """A format, as a spec declares it; an implementation is one class, and its decoder.

    Specs are read without pyarrow, so a format's module loads it, and what needs it, only for a decoder.
    """

    @abstractmethod
    def decoder(self) -> Decoder:
        """What reads such values, into the columns that are `written`."""


def decoder_of(declared: DeclaredFormat) -> Decoder:
    """What reads the values, or keys, that a spec declares so."""
    return cast(Format, declared).decoder()


class NoRow(Exception):
    """The value gives no row; its text is the error."""
