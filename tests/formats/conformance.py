"""What every format keeps to, in a spec and whatever the values: a suite in which a format registers by a Case.

`class TestJson(Conformance): case = Case(Json(...), {...})` runs it.
"""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pytest

from ratchet import Json, Topic
from ratchet.errors import SpecError
from ratchet.formats.envelope import HEADERS, Envelope
from ratchet.formats.port import Decoded, Format, Use
from ratchet.values.arrow import arrow_schema
from ratchet.values.unfit import EXCERPT

from .messages import Message
from .test_messages import batch_of


@dataclass(frozen=True)
class Case:
    """A format as a spec declares it, and values with the rows that each must give; None for an error."""

    format: Format
    values: dict[bytes, list[tuple] | None]
    headers: tuple[tuple[str, bytes], ...] = ()
    """Those of every record; a format that looks at them has none where it reads keys."""


class Conformance:
    """The suite; a subclass has a `case`."""

    case: ClassVar[Case]

    def decode(self, values: Sequence[bytes]) -> Decoded:
        headers = pa.array([[{"key": k, "value": v} for k, v in self.case.headers]] * len(values), HEADERS)
        return self.case.format.decoder(Use()).decode(pa.array(values, pa.binary()), headers)

    def test_a_spec_names_it_by_a_kind_of_its_own(self):
        declared = self.case.format
        kinds = [kind.model_fields["kind"].default for kind in Format.__subclasses__()]
        assert kinds.count(declared.kind) == 1 and "kind" not in declared.positional()
        with pytest.raises(SpecError, match="kind"):
            type(declared)(**dict(declared) | {"kind": "another"})
        # What a spec's hash is made of has every field, the kind among them.
        said = Topic("t", value=declared).model_dump()["value"]
        assert said == declared.model_dump() and said.keys() == type(declared).model_fields.keys()

    def test_it_is_carried_to_workers_by_value(self):
        assert pickle.loads(pickle.dumps(self.case.format)) == self.case.format

    def test_a_spec_that_names_it_is_read_without_pyarrow(self):
        script = f"import sys, {type(self.case.format).__module__}; sys.exit('pyarrow' in sys.modules)"
        subprocess.run([sys.executable, "-c", script], check=True)

    def test_the_envelope_opens_a_topic_of_it(self):
        values = list(self.case.values)
        opened = Envelope(Topic("t", value=self.case.format)).open(
            batch_of([Message(None, value, self.case.headers) for value in values])
        )
        names = [column.name for column in self.case.format.written]
        assert opened.rows.schema.names[: len(names)] == names
        expected = [(100 + i, *row) for i, rows in enumerate(self.case.values.values()) for row in rows or ()]
        assert [tuple(row[n] for n in ("_offset", *names)) for row in opened.rows.to_pylist()] == expected
        bad = [100 + i for i, rows in enumerate(self.case.values.values()) if rows is None]
        assert opened.dead.column("_offset").to_pylist() == bad

    def test_as_a_key_it_is_refused_or_gives_one_row(self):
        value = Json("x_ int")
        if not self.case.format.one_row:
            with pytest.raises(SpecError, match="a key gives one row"):
                Topic("t", value=value, key=self.case.format)
            return
        sent = [Message(key, b"{}") for key in self.case.values]
        opened = Envelope(Topic("t", value=value, key=self.case.format)).open(batch_of(sent))
        names = [column.name for column in self.case.format.written]
        good = [(100 + i, *rows[0]) for i, rows in enumerate(self.case.values.values()) if rows is not None]
        assert [tuple(row[n] for n in ("_offset", *names)) for row in opened.rows.to_pylist()] == good
        assert all(error.startswith(("the key: ", "key column ")) for error in opened.dead.column("error").to_pylist())

    def test_each_value_gives_its_rows_or_an_error(self):
        for value, rows in self.case.values.items():
            decoded = self.decode([value])
            assert rows_of(decoded, 1) == [rows], value
            assert (decoded.errors[0].as_py() is None) == (rows is not None), value

    def test_the_columns_are_as_declared(self):
        for values in ([], list(self.case.values)):
            assert self.decode(values).columns.schema == arrow_schema(self.case.format.written)

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
        whole = batch_of([Message(None, value, self.case.headers) for value in values])
        for begin in range(len(values)):
            part = whole.slice(begin, 2)
            decoded = self.case.format.decoder(Use()).decode(part.column("_value"), part.column("_headers"))
            assert rows_of(decoded, len(values[begin : begin + 2])) == [
                self.case.values[value] for value in values[begin : begin + 2]
            ]

    def test_every_value_without_an_error_counts_for_what_was_found(self):
        decoded = self.decode(list(self.case.values))
        names = {column.name for column in self.case.format.written}
        assert decoded.found | decoded.beside.keys() == names and not decoded.found & decoded.beside.keys()
        bad = [value for value, rows in self.case.values.items() if rows is None]
        assert self.decode(bad).found == frozenset()

    def test_an_error_is_short_text_that_a_database_holds(self):
        for value, rows in self.case.values.items():
            if rows is None:
                for sent in (value, value * 500):
                    error = self.decode([sent]).errors[0].as_py()
                    assert error is None or (error.isprintable() and len(error) < EXCERPT * 2.5), error
                    assert error is None or error.startswith(("the value: ", "column ", "row ")), error


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
