"""What a value of Protobuf means: once it was walked over, columns at once where that can be, else the messages that
Google's library makes of it, as `protobuf_objects` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray

from ratchet.formats.avro_schema import Unreadable
from ratchet.formats.message_framing import MessageFraming
from ratchet.formats.object_columns import ObjectColumns, vector
from ratchet.formats.port import Decoded, NoRow
from ratchet.formats.protobuf_columns import at_once, nothing
from ratchet.formats.protobuf_objects import Readers, library
from ratchet.formats.protobuf_program import Program
from ratchet.formats.protobuf_routes import Astray, Route, route_of
from ratchet.formats.protobuf_schema import Schema
from ratchet.formats.protobuf_schema import registered as schema_of
from ratchet.formats.registry import Registered, Registry, SchemaId
from ratchet.formats.vectors import Rows, Vector
from ratchet.formats.walked import Schemas, Walked, WalkedDecoder, WrittenSo
from ratchet.formats.wire import path_of
from ratchet.spec.columns import Column, FieldPath
from ratchet.values.unfit import excerpt

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

WANTED = "one Protobuf message"
_SHOWN = 100
"""An error shows so many characters of the name of a message type."""


class Written:
    """Values that are messages of one type. `said` names the type in errors."""

    def __init__(self, message: Descriptor, columns: tuple[Column, ...], said: str | None = None):
        self._said = said or excerpt(message.full_name)[:_SHOWN]
        self._class: Any = GetMessageClass(message)
        self._library = library()
        self._needs = _has_required(message)
        self._program = Program(message)
        readers = Readers()
        self._columns = [
            _Field(column, route_of(message, path_of(column)), readers, self._program) for column in columns
        ]
        self.names = {each.name: each.beside for each in self._columns if each.beside is not None}
        """Of each column whose field the type does not have the names that are beside its place."""

    def walked(self, data: NDArray[np.uint8], starts: Rows, ends: Rows) -> Walked:
        """The walk over values that lie one at `data[starts[i]:ends[i]]`."""
        return self._program.walked(data, starts, ends)

    def vectors(self, walked: Walked, data: NDArray[np.uint8]) -> list[Vector] | None:
        """The columns of values that were walked over; those with a fault have nothing."""
        if self._needs:
            return None
        messages, failed = self._messages(walked, data) if any(each.is_slow for each in self._columns) else ([], [])
        vectors = [each.vector(walked, data, messages) for each in self._columns]
        if failed:
            declined = np.array(failed, np.int64)
            vectors[0] = replace(vectors[0], declined=np.union1d(vectors[0].declined, declined))
        return vectors

    def _messages(self, walked: Walked, data: NDArray[np.uint8]) -> tuple[list[Any], list[int]]:
        """(the messages, None where there is none; the values of which the library alone makes none)."""
        found: list[Any] = []
        failed: list[int] = []
        read, whole, first = self._read, data.tobytes(), walked.faults[:, 0].tolist()
        for i, (start, end) in enumerate(zip(walked.starts.tolist(), walked.ends.tolist(), strict=True)):
            message = None
            if not first[i]:
                try:
                    message = read(whole[start:end])
                except DecodeError:
                    failed.append(i)
            found.append(message)
        return found, failed

    def fault(self, walked: Walked, i: int, size: int) -> NoRow:
        """What is wrong with a value of so many bytes, in which the walk has found a fault."""
        return self._none(size, self._program.said(walked.faults[i]))

    def value(self, data: bytes) -> object:
        """What the columns take of a value without a fault, by their names."""
        try:
            message = self._read(data)
        except DecodeError as error:
            return self._none(len(data), excerpt(str(error)))
        if self._needs and not self._library.IsInitialized(message):
            lacking = self._library.FindInitializationErrors(message)
            return self._none(len(data), f"it lacks {excerpt(', '.join(lacking))}")
        return Fields(self, {each.name: each.read(message) for each in self._columns if each.read is not None})

    def _read(self, data: bytes) -> Any:
        message = self._class()
        self._library.MergeFromString(message, data)
        return message

    def _none(self, size: int, why: str) -> NoRow:
        return NoRow(f"the value: found {size} bytes that are no {self._said} ({why}), wanted {WANTED}")


class _Field:
    """The field of a column in messages of one type: read at once, of messages, or not there, with names beside it."""

    def __init__(self, column: Column, route: Route | Astray, readers: Readers, program: Program):
        self.name, self._kind = column.name, column.type
        is_there = isinstance(route, Route)
        self.beside = None if is_there else frozenset(route.names)
        self.read = readers.column(column.type, route) if is_there else None
        self._at_once = at_once(column.type, program, route) if is_there else None

    @property
    def is_slow(self) -> bool:
        """Whether messages are needed for it."""
        return self.read is not None and self._at_once is None

    def vector(self, walked: Walked, data: NDArray[np.uint8], messages: list[Any]) -> Vector:
        if self._at_once is not None:
            return self._at_once.vector(walked, data)
        if self.read is None:
            return nothing(self._kind, len(walked.faults))
        return vector(self._kind, [None if each is None else self.read(each) for each in messages])


class Fields(dict[str, Any]):
    """The fields of a message that columns take, by the names of the columns, and how it was written."""

    def __init__(self, written: Written, fields: Mapping[str, Any]):
        super().__init__(fields)
        self.written = written


class MessageColumns(ObjectColumns):
    """Turns Fields into columns; a message type says by itself which fields it has."""

    def __init__(self, columns: tuple[Column, ...]):
        # Each field is found already.
        super().__init__(tuple(replace(column, origin=FieldPath((column.name,))) for column in columns), WANTED)
        self._all = columns

    def named(self, decoded: Decoded, value: Callable[[int], object]) -> Decoded:
        rows = decoded.columns
        if not rows.num_rows:
            return decoded
        lacking = {c.name for i, c in enumerate(self._all) if rows.column(i).null_count == rows.num_rows}
        seen: set[Written] = set()
        for i in decoded.parents.to_pylist():
            if not lacking:
                break
            fields = value(i)
            assert isinstance(fields, Fields), "a value with a row has fields"
            seen.add(fields.written)
            lacking &= fields.written.names.keys()
        beside = {name: frozenset[str]().union(*(written.names[name] for written in seen)) for name in lacking}
        found = frozenset(c.name for c in self._all if c.name not in beside)
        return replace(decoded, found=found, beside=beside)


class RegisteredMessages:
    """Values name their schemas by a registry's ids, and their message types by indexes; `wanted` is the only type that
    is taken, if it is given.
    """

    def __init__(self, registry: Registry, framing: MessageFraming, wanted: str | None, columns: tuple[Column, ...]):
        self._registry, self._framing, self._wanted, self._columns = registry, framing, wanted, columns
        self._schemas: dict[SchemaId, Schema | NoRow] = {}
        """A schema that cannot be used never can; one that is not there may be at the next batch."""
        self._known: dict[tuple[SchemaId, tuple[int, ...] | str], Written | NoRow] = {}

    def written(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> list[tuple[Written, int] | NoRow]:
        missing: dict[SchemaId, NoRow] = {}
        found: list[tuple[Written, int] | NoRow] = []
        for framed in self._framing.framed(values, headers):
            if isinstance(framed, NoRow):
                found.append(framed)
                continue
            of = self._of(framed.schema, framed.message, missing)
            found.append(of if isinstance(of, NoRow) else (of, framed.start))
        return found

    def _of(self, number: SchemaId, message: tuple[int, ...] | str, missing: dict[SchemaId, NoRow]) -> Written | NoRow:
        known = self._known.get((number, message))
        if known is None:
            schema = self._schema(number, missing)
            if isinstance(schema, NoRow):
                return schema
            known = self._known[number, message] = self._usable(number, schema, message)
        return known

    def _schema(self, number: SchemaId, missing: dict[SchemaId, NoRow]) -> Schema | NoRow:
        known = self._schemas.get(number) or missing.get(number)
        if known is None:
            try:
                known = self._schemas[number] = _parsed(number, self._registry.schema(number))
            except NoRow as reason:
                known = missing[number] = reason
        return known

    def _usable(self, number: SchemaId, schema: Schema, message: tuple[int, ...] | str) -> Written | NoRow:
        try:
            found = schema.named(message) if isinstance(message, str) else schema.at(message)
        except Unreadable as error:
            return NoRow(f"the value: schema {number} cannot be used: {error}")
        said = f"{excerpt(found.full_name)[:_SHOWN]} by schema {number}"
        if self._wanted is not None and found.full_name != self._wanted:
            return NoRow(f"the value: found {said}, wanted {self._wanted}")
        return Written(found, self._columns, said)


class ProtobufDecoder(WalkedDecoder):
    """Reads values whose message types `schemas` knows."""

    def __init__(self, columns: tuple[Column, ...], schemas: Schemas[WrittenSo]):
        super().__init__(columns, schemas, MessageColumns(columns))


def _parsed(number: SchemaId, registered: Registered) -> Schema | NoRow:
    if registered.kind != "PROTOBUF":
        return NoRow(f"the value: schema {number} is of {excerpt(registered.kind)}, wanted one of Protobuf")
    try:
        return schema_of(registered.text, {each.name: each.text for each in registered.behind()})
    except Unreadable as error:
        return NoRow(f"the value: schema {number} cannot be used: {error}")


def _has_required(message: Descriptor) -> bool:
    """Whether it, or a message within it, has a field that must be there."""
    left, seen = [message], {message.full_name}
    while left:
        for field in left.pop().fields:
            if field.is_required:
                return True
            if field.message_type is not None and field.message_type.full_name not in seen:
                seen.add(field.message_type.full_name)
                left.append(field.message_type)
    return False
