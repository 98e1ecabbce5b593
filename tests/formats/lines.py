"""The smallest format there can be: lines of text, one row each. It shows what adding a format takes: one such file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import field_validator

from ratchet.formats.port import Decoded, Decoder, Format, Use
from ratchet.spec.columns import Column, parse_columns
from ratchet.spec.types import STRING

if TYPE_CHECKING:
    import pyarrow as pa


class Lines(Format, frozen=True):
    """Values are lines of UTF-8, a row each, in the one string column; with `split=False` the whole text is one row."""

    kind: Literal["lines"] = "lines"
    split: bool = True

    @field_validator("columns")
    @classmethod
    def _is_one_string(cls, columns: str) -> str:
        if [column.type for column in parse_columns(columns) if column.origin is None] != [STRING]:
            raise ValueError('declare one string column, for example Lines("line string")')
        return columns

    @property
    def one_row(self) -> bool:
        return not self.split

    def decoder(self, use: Use) -> Decoder:
        return LinesDecoder(self.written, self.split)


class LinesDecoder:
    """Reads texts in UTF-8 into one column."""

    def __init__(self, columns: tuple[Column, ...], split: bool):
        self.columns = columns
        self._split = split

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        import pyarrow as pa

        from ratchet.values.arrow import arrow_schema

        lines: list[str] = []
        parents: list[int] = []
        errors: list[str | None] = []
        for number, value in enumerate(values.to_pylist()):
            try:
                text = value.decode()
            except UnicodeDecodeError as error:
                errors.append(f"the value: found invalid UTF-8 at byte {error.start}, wanted text")
                continue
            errors.append(None)
            found = text.splitlines() if self._split else [text]
            lines += found
            parents += [number] * len(found)
        rows = pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], schema=arrow_schema(self.columns))
        (column,) = self.columns
        found_at_all = frozenset([column.name]) if lines else frozenset[str]()
        beside = {} if lines or None not in errors else {column.name: frozenset[str]()}
        return Decoded(rows, pa.array(parents, pa.int32()), pa.array(errors, pa.string()), found_at_all, beside)
