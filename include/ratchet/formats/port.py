"""The port of a format: what a spec declares of values, and the decoder that turns them into declared columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, cast

from ratchet.errors import SettingsError
from ratchet.spec.columns import Column
from ratchet.spec.source import DeclaredFormat
from ratchet.values.endpoint import Endpoint

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Decoded:
    """What became of some values.

    `columns` has the declared columns, one row each. A value gives any number of rows, or an error and none; `parents`
    has the number of each row's value, ascending. `errors` has the error of each value, or null; an error begins with
    what it is about: `the value: …`, `column name: …` or `row 0, column name: …`. `found` names the columns whose field
    was in some value without an error, though it may have been null there; `beside` has for each other column names
    that stood where its field was looked for. `cut` counts the moments that lost digits. `deleted` says which rows are
    deletions, where the format `deletes`.
    """

    columns: pa.RecordBatch
    parents: pa.Int32Array
    errors: pa.StringArray
    found: frozenset[str] = frozenset()
    beside: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    cut: int = 0
    deleted: pa.BooleanArray | None = None


class Decoder(Protocol):
    """What reads values that are written in one way.

    `decode` raises nothing because of a value, and gives each value the same whatever others are beside it.
    """

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that it makes, in order."""
        ...

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        """What these values say; none of them is null.

        `headers` has the headers of each value's record, list<struct<key string, value binary>>, for formats that look
        at them; null where a record has none.
        """
        ...


@dataclass(frozen=True)
class Use:
    """What a decoder is made for: the part of the records that it reads, and the servers that its format names."""

    part: Literal["value", "key"] = "value"
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict[str, Endpoint])

    def endpoint(self, connection: str) -> Endpoint:
        """The server of a connection; SettingsError if it was not given."""
        if connection not in self.endpoints:
            raise SettingsError(
                f"connection {connection!r} is not given, and a format reads by it; in a test of a pipeline give "
                f'endpoints={{"{connection}": Endpoint("http://HOST:8081")}}'
            )
        return self.endpoints[connection]


class Format(DeclaredFormat, ABC, frozen=True):
    """A format, as a spec declares it; an implementation is one class, and its decoder.

    Specs are read without pyarrow, so a format's module loads it, and what needs it, only for a decoder.
    """

    @abstractmethod
    def decoder(self, use: Use) -> Decoder:
        """What reads such values, into the columns that are `written`."""


def decoder_of(declared: DeclaredFormat, use: Use) -> Decoder:
    """What reads the values, or keys, that a spec declares so."""
    return cast(Format, declared).decoder(use)


class NoRow(Exception):
    """The value gives no row; its text is the error."""
