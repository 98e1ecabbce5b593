"""What every format keeps to, whatever the values: a suite in which a format registers by a Case.

`class TestJson(Conformance): case = Case(...)` runs it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from ratchet.formats.port import Decoded, Decoder
from ratchet.values.arrow import arrow_schema
from ratchet.values.unfit import EXCERPT


@dataclass(frozen=True)
class Case:
    """A decoder, and values with the rows that each must give; None for an error."""

    decoder: Decoder
    values: dict[bytes, list[tuple] | None]


class Conformance:
    """The suite; a subclass has a `case`."""

    case: ClassVar[Case]

    def decode(self, values: Sequence[bytes]) -> Decoded:
        return self.case.decoder.decode(pa.array(values, pa.binary()))

    def test_each_value_gives_its_rows_or_an_error(self):
        for value, rows in self.case.values.items():
            decoded = self.decode([value])
            assert rows_of(decoded, 1) == [rows], value
            assert (decoded.errors[0].as_py() is None) == (rows is not None), value

    def test_the_columns_are_as_declared(self):
        for values in ([], list(self.case.values)):
            assert self.decode(values).columns.schema == arrow_schema(self.case.decoder.columns)

    def test_what_is_beside_a_value_means_nothing_to_it(self):
        rng = random.Random(5)
        for size in (2, 3, 10, 3_000):
            values = rng.choices(list(self.case.values), k=size)
            decoded = self.decode(values)
            assert rows_of(decoded, size) == [self.case.values[value] for value in values]
            alone = {value: self.decode([value]).errors[0].as_py() for value in set(values)}
            assert decoded.errors.to_pylist() == [alone[value] for value in values]

    def test_a_slice_of_an_array_is_read_as_what_it_holds(self):
        values = list(self.case.values)
        whole = pa.array(values, pa.binary())
        for begin in range(len(values)):
            decoded = self.case.decoder.decode(whole.slice(begin, 2))
            assert rows_of(decoded, len(values[begin : begin + 2])) == [
                self.case.values[value] for value in values[begin : begin + 2]
            ]

    def test_every_value_without_an_error_counts_for_what_was_found(self):
        decoded = self.decode(list(self.case.values))
        names = {column.name for column in self.case.decoder.columns}
        assert decoded.found | decoded.beside.keys() == names and not decoded.found & decoded.beside.keys()
        bad = [value for value, rows in self.case.values.items() if rows is None]
        assert self.decode(bad).found == frozenset()

    def test_an_error_is_short_text_that_a_database_holds(self):
        for value, rows in self.case.values.items():
            if rows is None:
                for sent in (value, value * 500):
                    error = self.decode([sent]).errors[0].as_py()
                    assert error is None or (error.isprintable() and len(error) < EXCERPT * 2.5), error


def rows_of(decoded: Decoded, count: int) -> list[list[tuple] | None]:
    """The rows of each value, None where there is an error."""
    errors = decoded.errors.to_pylist()
    assert len(errors) == count and decoded.parents.to_pylist() == sorted(decoded.parents.to_pylist())
    found: list[list[tuple] | None] = [None if error else [] for error in errors]
    columns = [column.to_pylist() for column in decoded.columns.columns]
    for parent, *cells in zip(decoded.parents.to_pylist(), *columns, strict=True):
        rows = found[parent]
        assert rows is not None, "a value with an error has a row"
        rows.append(tuple(cells))
    return found
