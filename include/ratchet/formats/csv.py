"""CSV, as a spec declares it; `csv_decoder` says what a value means."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from ratchet.formats.port import Decoder, Format, Use
from ratchet.spec.columns import FieldPath


class Csv(Format, frozen=True):
    """Values are lines of CSV in UTF-8, as RFC 4180 has it. The columns are the fields in their order, or with `names`
    or `header` those of their names."""

    kind: Literal["csv"] = "csv"
    rows: Literal["line", "lines"] = "line"
    """What a value is: one `"line"`, which gives one row, or any number of `"lines"`, each of which gives a row,
    numbered in `_n`."""
    names: str | None = None
    """The names of all fields of a line in their order, as `"id,customer,amount"`: a column takes the field of its
    name, or the one behind `from`, and fields that no column takes are ignored."""
    header: bool = False
    """With `rows="lines"`: the first line of each value is the names of its fields."""
    separator: str = Field(default=",", pattern=r"^[\t -!#-~]\z")
    """The character between fields, such as `";"` or a tab."""
    null: str | None = ""
    """The text that is null where it stands without quotes; in quotes it is itself. With `None` no text is null."""

    @field_validator("null")
    @classmethod
    def _stands_without_quotes(cls, null: str | None) -> str | None:
        if null is not None and set(null) & set('"\r\n'):
            raise ValueError(f"{null!r} cannot stand without quotes")
        return null

    @field_validator("names")
    @classmethod
    def _are_told_apart(cls, names: str | None) -> str | None:
        if names is not None:
            found = split(names)
            if "" in found or len(set(found)) < len(found):
                raise ValueError('give the name of each field once, for example names="id,customer,amount"')
        return names

    @model_validator(mode="after")
    def _columns_have_fields(self) -> Csv:
        if self.header and (self.rows == "line" or self.names is not None):
            raise ValueError('header: the first line has names where rows="lines", and then names has none')
        if self.null is not None and self.separator in self.null:
            raise ValueError(f"null: {self.null!r} has the separator within it")
        names = None if self.names is None else split(self.names)
        for column in self.written:
            path = column.source
            assert isinstance(path, FieldPath)
            if names is None and not self.header and column.origin is not None:
                raise ValueError(
                    f"columns: column {column.name!r} is the field at its place, and comes from no name; give names, "
                    "or header=True"
                )
            name, *inner = path.names
            if inner:
                raise ValueError(f"columns: column {column.name!r}: a field has no fields within it")
            if names is not None and name not in names:
                raise ValueError(f"columns: column {column.name!r}: names has no {name!r}")
        return self

    @property
    def one_row(self) -> bool:
        return self.rows == "line"

    def decoder(self, use: Use) -> Decoder:
        from ratchet.formats.csv_decoder import CsvDecoder

        return CsvDecoder(self)


def split(names: str) -> tuple[str, ...]:
    """The names of fields, as a spec lists them."""
    return tuple(name.strip() for name in names.split(","))
