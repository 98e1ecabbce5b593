"""CSV in UTF-8 by RFC 4180, and by nothing else.

`CsvDecoder.read` is the definition, of one value; `decode` reads by Arrow the values that are plainly so, and leaves to
it what is in doubt.

- A field in quotes may have separators, line ends and doubled quotes in it; one without has none of these, and spaces
  belong to it. Lines end in CRLF or LF, the last one with or without.
- A line has as many fields as are declared. An empty line is one empty field.
- Refused: a quote that is not closed, anything behind a closing quote (so a quote that is written `\\"`), a quote
  within a field without, a carriage return alone, a byte-order mark, and what is not UTF-8.
- A field is read as a key or a header is, binary as base64; null is one text, and only without quotes. Numbers have a
  point and nothing between their digits.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow

from ratchet.formats.cells import Cell, Cells
from ratchet.formats.csv import Csv, split
from ratchet.formats.decided import Reading, Row, decided, in_doubt
from ratchet.formats.port import Decoded, NoRow
from ratchet.formats.texts import vector
from ratchet.formats.vectors import Rows, Vector
from ratchet.spec.columns import Column, FieldPath
from ratchet.values.arrow import arrow_schema
from ratchet.values.unfit import Unfit, excerpt

Usual = np.ndarray[Any, np.dtype[np.bool_]]
"""Which values are plainly CSV."""

MARK = "\ufeff"
_QUOTED = r'"[^"]*(?:""[^"]*)*"'
_MOST = 200
"""Lines of more fields are read one by one: RE2 would need too much for their pattern."""
_NONE: Rows = np.empty(0, np.int64)
_NAMES = 100
"""So many names of fields are told."""


class CsvDecoder:
    """Values that are one line each, or lines, a row for each."""

    def __init__(self, declared: Csv):
        self.columns = declared.written
        self._lines = declared.rows == "lines"
        self._header, self._null = declared.header, declared.null
        self._schema = arrow_schema(self.columns)
        self._wanted = "lines of CSV" if self._lines else "one line of CSV"
        names = _names(self.columns)
        fields = split(declared.names) if declared.names is not None else names
        self._count, self._places = len(fields), [fields.index(name) for name in names]
        self._syntax = _Syntax(declared.separator)

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        """What these values say; of every one of them what `read` says of it."""
        places: list[int | None] = [*self._places]
        sent, count, named = values, self._count, dict[int, tuple[str, ...]]()
        if self._header:
            sent, names, of = _usual_names(values, self._syntax.separator)
            count, places = len(names), _places(self.columns, names)
            named = dict.fromkeys(of, names)
        usual, texts = self._usual(sent, count)
        if self._header:
            usual &= np.isin(np.arange(len(values)), list(named))
        vectors, parents = self._at_once(sent, usual, texts, count, places)
        doubtful = set(np.flatnonzero(~usual).tolist())
        doubtful |= in_doubt(vectors, [c.nullable for c in self.columns], parents)

        def read(number: int) -> Reading:
            reading, named[number] = self.read(values[number].as_py())
            return reading

        decoded = decided(len(values), self._schema, vectors, parents, doubtful, read)
        found, beside = self._found(decoded, named)
        return Decoded(decoded.columns, decoded.parents, decoded.errors, found, beside, decoded.cut)

    def read(self, value: bytes) -> tuple[Reading, tuple[str, ...]]:
        """(what one value says, the names in its first line if it has any there); NoRow where it says nothing."""
        lines = self._lines_of(value)
        places: list[int | None] = [*self._places]
        count, names = self._count, ()
        if self._header and lines:
            first, *lines = lines
            names = tuple(text for text, _ in first)
            for name in names:
                if names.count(name) > 1:
                    raise NoRow(f'the value: found the name "{excerpt(name)}" twice, wanted names told apart')
            count, places = len(names), _places(self.columns, names)
        reader = Cells()
        rows: list[Row] = []
        for number, line in enumerate(lines):
            where = f"row {number}" if self._lines else "the value"
            if len(line) != count:
                raise NoRow(f"{where}: found {len(line)} field{'s'[: len(line) != 1]}, wanted {count}")
            about = f"row {number}, column" if self._lines else "column"
            cells = zip(self.columns, places, strict=True)
            rows.append([self._cell(reader, c, None if at is None else line[at], about) for c, at in cells])
        return Reading(rows, reader.cut), names

    def _lines_of(self, value: bytes) -> list[list[tuple[str, bool]]]:
        """The lines, each of fields with whether they stood in quotes."""
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            raise NoRow(f"the value: found invalid UTF-8 at byte {error.start}, wanted {self._wanted}") from None
        if text.startswith(MARK):
            raise NoRow(f"the value: found a byte-order mark in front, wanted {self._wanted}")
        if not text and self._lines:
            return []
        lines, broken = self._syntax.lines(text)
        if broken is not None:
            # The names in front are no row.
            number = len(lines) - self._header
            where = f"row {number}" if self._lines and number >= 0 else "the value"
            raise NoRow(f"{where}: found {broken}, wanted {self._wanted}")
        if len(lines) > 1 and not self._lines:
            raise NoRow(f"the value: found {len(lines)} lines, wanted {self._wanted}")
        return lines

    def _cell(self, reader: Cells, column: Column, found: tuple[str, bool] | None, about: str) -> Cell:
        said, cell = "nothing" if found is None else "null", None
        if found is not None and (found[1] or found[0] != self._null):
            try:
                cell = reader.of_text(column.type, found[0].encode(), base64=True)
            except Unfit as unfit:
                raise NoRow(unfit.said(f"{about} {column.name}")) from None
        if cell is None and not column.nullable:
            raise NoRow(f"{about} {column.name}: found {said}, wanted {column.type} not null")
        return cell

    def _at_once(
        self, sent: pa.BinaryArray, usual: Usual, texts: pa.StringArray, count: int, places: list[int | None]
    ) -> tuple[list[Vector], Rows]:
        """(the columns of the usual values as Arrow reads them, the number of the value of each row)."""
        there = usual
        if self._lines:
            # An empty text has no lines, and as one line it has one field.
            there = usual & pc.greater(pc.binary_length(sent), 0).to_numpy(zero_copy_only=False)
        rows = np.where(there, self._line_counts(texts) if self._lines else 1, 0)
        lines = texts.filter(pa.array(there)).to_pylist()
        if not lines:
            return [Vector(pa.array([], t.type), _NONE, _NONE) for t in self._schema], _NONE
        table = arrow.read_csv(
            pa.py_buffer("\n".join([*lines, ""]).encode()),
            read_options=arrow.ReadOptions(
                column_names=[str(n) for n in range(count)], use_threads=False, block_size=2**31 - 1
            ),
            parse_options=arrow.ParseOptions(
                delimiter=self._syntax.separator, newlines_in_values=True, ignore_empty_lines=False
            ),
            convert_options=arrow.ConvertOptions(
                check_utf8=False,
                column_types={str(n): pa.binary() for n in range(count)},
                include_columns=[str(n) for n in dict.fromkeys([0, *places]) if n is not None],
                null_values=[] if self._null is None else [self._null],
                strings_can_be_null=self._null is not None,
                quoted_strings_can_be_null=False,
            ),
        )
        assert len(table) == rows.sum(), "Arrow counts lines as the pattern does"
        nothing = pa.nulls(len(table), pa.binary())
        fields = [nothing if n is None else table.column(str(n)).combine_chunks() for n in places]
        vectors = [vector(c.type, of, base64=True) for c, of in zip(self.columns, fields, strict=True)]
        return vectors, np.repeat(np.arange(len(sent)), rows)

    def _usual(self, sent: pa.BinaryArray, count: int) -> tuple[Usual, pa.StringArray]:
        """(which values are plainly lines of so many fields, the texts of these without the end of their last line)."""
        pattern = self._syntax.pattern(count, self._lines)
        try:
            texts = None if pattern is None else sent.cast(pa.string())
        except pa.ArrowInvalid:
            # Of all others it is found out which is no text.
            texts = None
        if texts is None:
            return np.zeros(len(sent), bool), pa.array([""] * len(sent), pa.string())
        usual = pc.and_not(pc.match_substring_regex(texts, pattern), pc.starts_with(texts, MARK))
        return usual.to_numpy(zero_copy_only=False), pc.replace_substring_regex(texts, r"\r?\n$", "")

    def _line_counts(self, texts: pa.StringArray) -> Any:
        bare = pc.replace_substring_regex(texts, '"[^"]*"', '"')
        return pc.add(pc.count_substring(bare, "\n"), 1).to_numpy(zero_copy_only=False)

    def _found(
        self, decoded: Decoded, named: Mapping[int, tuple[str, ...]]
    ) -> tuple[frozenset[str], Mapping[str, frozenset[str]]]:
        if not decoded.columns.num_rows:
            return frozenset(), {}
        if not self._header:
            return frozenset(c.name for c in self.columns), {}
        given = {name: None for of in dict.fromkeys(decoded.parents.to_pylist()) for name in named[of]}
        beside = frozenset(list(given)[:_NAMES])
        absent = {
            c.name: beside for c, name in zip(self.columns, _names(self.columns), strict=True) if name not in given
        }
        return frozenset(c.name for c in self.columns if c.name not in absent), absent


@dataclass(frozen=True)
class _Syntax:
    """How lines are written with a separator."""

    separator: str
    _field: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        between = re.escape(self.separator)
        pattern = rf'(?:({_QUOTED})|([^"{between}\r\n]*))(?:(?P<next>{between})|(?P<end>\r?\n|\Z))'
        object.__setattr__(self, "_field", re.compile(pattern))

    def pattern(self, count: int, lines: bool) -> str | None:
        """What a value of lines of so many fields matches, in RE2's words; None where there is no such pattern."""
        if not 0 < count <= _MOST:
            return None
        between = f"\\x{ord(self.separator):02x}"
        one = rf'(?:{_QUOTED}|[^"{between}\r\n]*)'
        line = rf"{one}(?:{between}{one}){{{count - 1}}}" if count > 1 else one
        several = rf"(?:\r?\n{line})*" if lines else ""
        return rf"^{line}{several}(?:\r?\n)?$"

    def lines(self, text: str) -> tuple[list[list[tuple[str, bool]]], str | None]:
        """(the lines, each of fields with whether they stood in quotes; why they do not end where the text does)."""
        lines: list[list[tuple[str, bool]]] = []
        line: list[tuple[str, bool]] = []
        at = 0
        while (found := self._field.match(text, at)) is not None:
            is_quoted = found[1] is not None
            line.append((found[1][1:-1].replace('""', '"') if is_quoted else found[2], is_quoted))
            at = found.end()
            if found.lastgroup == "end":
                lines.append(line)
                line = []
                if at == len(text):
                    return lines, None
        return lines, self._broken(text, at)

    def _broken(self, text: str, at: int) -> str:
        """Why no field begins here."""
        if text[at] != '"':
            alone = re.compile(r'["\r]').search(text, at)
            return "a carriage return alone" if alone and alone[0] == "\r" else "a quote within a field without quotes"
        closed = re.compile(_QUOTED).match(text, at)
        if closed is None:
            return f"a quote that is not closed: {excerpt(text[at:])}"
        return f"a closing quote with something behind it (within quotes, quotes are doubled): {excerpt(text[at:])}"


def _names(columns: tuple[Column, ...]) -> tuple[str, ...]:
    """The name of the field of each column."""
    return tuple(column.source.names[0] for column in columns if isinstance(column.source, FieldPath))


def _places(columns: tuple[Column, ...], names: tuple[str, ...]) -> list[int | None]:
    """Where in a line of these names the field of each column is."""
    return [names.index(name) if name in names else None for name in _names(columns)]


def _usual_names(values: pa.BinaryArray, separator: str) -> tuple[pa.BinaryArray, tuple[str, ...], list[int]]:
    """(the values without their first line, the names that most of them have there, the numbers of these).

    No names where they are not plainly so.
    """
    parts = [value.partition(b"\n") for value in values.to_pylist()]
    firsts = [first.removesuffix(b"\r") if end else first for first, end, _ in parts]
    sent = pa.array([rest for _, _, rest in parts], pa.binary())
    ((usual, _),) = Counter(firsts).most_common(1) or [(b"", 0)]
    names = tuple(usual.decode(errors="replace").split(separator))
    is_plain = usual and not set(usual) & set(b'"\r') and usual.isascii() and len(set(names)) == len(names)
    return (sent, names, [n for n, first in enumerate(firsts) if first == usual]) if is_plain else (sent, (), [])
