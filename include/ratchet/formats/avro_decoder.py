"""What a value of Avro means: what it is by fastavro, once it was walked over, turned into columns as `objects` says.

Where no reader's schema and no field of several values is asked for, columns are read at once; what is in doubt then is
left to that definition.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from io import BytesIO

import numpy as np
import pyarrow as pa
from fastavro import schemaless_reader
from fastavro.read import SchemaResolutionError
from numpy.typing import NDArray

from ratchet.formats.avro_columns import vector
from ratchet.formats.avro_program import Leaf, Program
from ratchet.formats.avro_schema import Schema, Unreadable, reader_of, schema_of
from ratchet.formats.framing import Framing
from ratchet.formats.object_columns import ObjectColumns
from ratchet.formats.port import NoRow
from ratchet.formats.registry import Registered, Registry, SchemaId
from ratchet.formats.vectors import Rows, Vector
from ratchet.formats.walked import Schemas, Walked, WalkedDecoder, WrittenSo
from ratchet.formats.wire import path_of
from ratchet.spec.columns import Column
from ratchet.values.arrow import arrow_type
from ratchet.values.unfit import excerpt

WANTED = "one Avro record"
_NONE: Rows = np.empty(0, np.int64)
_SHOWN = 100
"""An error shows so many characters of the name of a schema."""


class Written:
    """Values that were written by one schema, and read as a reader's, if there is one.

    `said` names the schema in errors; raises Unreadable.
    """

    def __init__(self, schema: Schema, reader: Schema | None, columns: tuple[Column, ...], said: str | None = None):
        self.schema, self._reader, self._columns = schema, reader, columns
        self._said = said or excerpt(schema.name)[:_SHOWN]
        self.program = Program(schema)
        read = reader or schema
        only = path_of(columns[0]) if len(columns) == 1 else ()
        self._wrap = only[0] if len(only) == 1 and not read.is_record else None
        self._leaves = self._at_once() if reader is None and (schema.is_record or self._wrap) else None

    def _at_once(self) -> list[Leaf | None] | None:
        """The fields of the columns, None of one that the schema lacks; None where there is one that is not read at
        once.
        """
        paths = [() if self._wrap else path_of(column) for column in self._columns]
        leaves = [self.program.leaf(path) for path in paths]
        is_lost = any(leaf is None and self.program.has(path) for leaf, path in zip(leaves, paths, strict=True))
        return None if is_lost else leaves

    def walked(self, data: NDArray[np.uint8], starts: Rows, ends: Rows) -> Walked:
        """The walk over values that lie one at `data[starts[i]:ends[i]]`."""
        return self.program.walked(data, starts, ends)

    def vectors(self, walked: Walked, data: NDArray[np.uint8]) -> list[Vector] | None:
        """The columns of values that were walked over, where they are read at once; those with a fault have nothing."""
        if self._leaves is None:
            return None
        absent = len(walked.faults)
        return [
            Vector(pa.nulls(absent, arrow_type(column.type)), _NONE, _NONE)
            if leaf is None
            else vector(column.type, leaf, walked, data)
            for column, leaf in zip(self._columns, self._leaves, strict=True)
        ]

    def fault(self, walked: Walked, i: int, size: int) -> NoRow:
        """What is wrong with a value of so many bytes, in which the walk has found a fault."""
        return NoRow(
            f"the value: found {size} bytes that are no {self._said} ({self.program.said(walked.faults[i])}), wanted "
            f"{WANTED}"
        )

    def value(self, data: bytes) -> object:
        """What fastavro reads of a value without a fault; NoRow where it reads none."""
        try:
            found: object = schemaless_reader(
                BytesIO(data), self.schema.root, None if self._reader is None else self._reader.root
            )
        except SchemaResolutionError as error:
            assert self._reader is not None, "without a reader's schema nothing is resolved"
            return NoRow(
                f"the value: {self._said} does not resolve to the reader's schema "
                f"{excerpt(self._reader.name)[:_SHOWN]}: {excerpt(str(error))}"
            )
        except (ValueError, TypeError, LookupError, EOFError, ArithmeticError, RecursionError) as error:
            return NoRow(f"the value: found no {self._said} ({excerpt(str(error))}), wanted {WANTED}")
        return found if self._wrap is None else {self._wrap: found}


class RegisteredSchemas:
    """Values name their schemas by a registry's ids."""

    def __init__(self, registry: Registry, framing: Framing, reader: str | None, columns: tuple[Column, ...]):
        self._registry, self._framing, self._columns = registry, framing, columns
        self._reader = None if reader is None else reader_of(reader)
        self._known: dict[SchemaId, Written | NoRow] = {}
        """A schema that cannot be used never can; one that is not there may be at the next batch."""

    def written(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> list[tuple[Written, int] | NoRow]:
        missing: dict[SchemaId, NoRow] = {}
        found: list[tuple[Written, int] | NoRow] = []
        for framed in self._framing.framed(values, headers):
            if isinstance(framed, NoRow):
                found.append(framed)
                continue
            of = self._of(framed.schema, missing)
            found.append(of if isinstance(of, NoRow) else (of, framed.start))
        return found

    def _of(self, number: SchemaId, missing: dict[SchemaId, NoRow]) -> Written | NoRow:
        known = self._known.get(number) or missing.get(number)
        if known is None:
            try:
                known = self._known[number] = self._usable(number, self._registry.schema(number))
            except NoRow as reason:
                known = missing[number] = reason
        return known

    def _usable(self, number: SchemaId, registered: Registered) -> Written | NoRow:
        if registered.kind != "AVRO":
            return NoRow(f"the value: schema {number} is of {excerpt(registered.kind)}, wanted one of Avro")
        try:
            schema = schema_of(registered.text, [each.text for each in registered.behind()])
            return Written(schema, self._reader, self._columns, f"{excerpt(schema.name)[:_SHOWN]} by schema {number}")
        except Unreadable as error:
            return NoRow(f"the value: schema {number} cannot be used: {excerpt(str(error))}")


class AvroDecoder(WalkedDecoder):
    """Reads values whose schemas `schemas` knows."""

    def __init__(self, columns: tuple[Column, ...], schemas: Schemas[WrittenSo]):
        super().__init__(columns, schemas, ObjectColumns(columns, WANTED))
