"""Values that are one cell each: a text of its own, or bytes as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import field_validator

from ratchet.formats.port import Decoded, Decoder, Format, NoRow, Use
from ratchet.spec.columns import Column, FieldPath, parse_columns
from ratchet.spec.types import Binary

if TYPE_CHECKING:
    import pyarrow as pa

    from ratchet.formats.decided import Reading


class Text(Format, frozen=True):
    """Each value is one text in UTF-8, and all of it is the one column, as `Text("line string")` or `Text("degrees
    double")`."""

    kind: Literal["text"] = "text"

    @field_validator("columns")
    @classmethod
    def _is_one_text(cls, columns: str) -> str:
        if isinstance(_whole(columns, 'Text("line string")').type, Binary):
            raise ValueError('a text is no bytes; declare Bytes("payload binary")')
        return columns

    @property
    def one_row(self) -> bool:
        return True

    def decoder(self, use: Use) -> Decoder:
        return WholeDecoder(self.written)


class Bytes(Format, frozen=True):
    """Each value is the one column as it is, `Bytes("payload binary")`; none is an error."""

    kind: Literal["bytes"] = "bytes"

    @field_validator("columns")
    @classmethod
    def _is_one_binary(cls, columns: str) -> str:
        if not isinstance(_whole(columns, 'Bytes("payload binary")').type, Binary):
            raise ValueError('bytes are no text; declare a binary column, or Text("line string")')
        return columns

    @property
    def one_row(self) -> bool:
        return True

    def decoder(self, use: Use) -> Decoder:
        return WholeDecoder(self.written)


def _whole(columns: str, example: str) -> Column:
    """The one column of the value, beside those of other parts of the record."""
    written = [column for column in parse_columns(columns) if isinstance(column.source, FieldPath)]
    if len(written) != 1 or written[0].origin is not None:
        raise ValueError(f"a value is one column, which comes from nothing within it, for example {example}")
    return written[0]


class WholeDecoder:
    """Reads each value as one cell, as a key or a header is read."""

    def __init__(self, columns: tuple[Column, ...]):
        from ratchet.values.arrow import arrow_schema

        self.columns = columns
        (self._column,) = columns
        self._schema = arrow_schema(columns)

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        import numpy as np

        from ratchet.formats.decided import decided, in_doubt
        from ratchet.formats.texts import vector

        numbers = np.arange(len(values))
        vectors = [vector(self._column.type, values)]
        doubtful = in_doubt(vectors, [self._column.nullable], numbers)
        found = decided(
            len(values), self._schema, vectors, numbers, doubtful, lambda number: self._read(values[number].as_py())
        )
        names = frozenset([self._column.name] if found.columns.num_rows else [])
        return Decoded(found.columns, found.parents, found.errors, names, {}, found.cut)

    def _read(self, value: bytes) -> Reading:
        from ratchet.formats.cells import Cells
        from ratchet.formats.decided import Reading
        from ratchet.values.unfit import Unfit

        column, cells = self._column, Cells()
        try:
            cell = cells.of_text(column.type, value)
        except Unfit as unfit:
            raise NoRow(unfit.said(f"column {column.name}")) from None
        if cell is None and not column.nullable:
            raise NoRow(f"column {column.name}: found null, wanted {column.type} not null")
        return Reading([[cell]], cells.cut)
