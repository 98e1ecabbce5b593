"""Change events as values have them: JSON, with their schema in them or without, or Avro by a registry."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, cast

import msgspec
import pyarrow as pa

from ratchet.formats.avro_decoder import RegisteredSchemas, Written
from ratchet.formats.avro_schema import Node, Schema
from ratchet.formats.connected import LogicalType
from ratchet.formats.objects import shown
from ratchet.formats.port import NoRow
from ratchet.formats.walked import Batch

WANTED = "one change event of Debezium"
BINLOG = "_binlog"
"""The name of the place in a binary log, which is put beside the fields of an event."""
_FILE = re.compile(r".*\.([0-9]{1,9})", re.ASCII | re.DOTALL)
_POSITIONS, _ROWS = 10**19, 10**10

LogicalTypes = Mapping[str, LogicalType]


@dataclass(frozen=True)
class Event:
    """An event, and what its schema says of the fields of the row on a side, `"before"` or `"after"`."""

    payload: dict[str, Any]
    logical_types: Callable[[str], LogicalTypes]


class Events(Protocol):
    """Finds the events in values."""

    def of(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> list[Event | NoRow]:
        """The event of each value."""
        ...


class JsonEvents:
    """Values are JSON."""

    def __init__(self) -> None:
        self._read = msgspec.json.Decoder(float_hook=Decimal).decode

    def of(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> list[Event | NoRow]:
        return [self._event(value) for value in values.to_pylist()]

    def _event(self, value: bytes) -> Event | NoRow:
        try:
            payload, schema = _unwrapped(self._read(value))
        except NoRow as reason:
            return reason
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return NoRow(f"the value: found {len(value)} bytes that are no JSON ({error}), wanted {WANTED}")
        except ArithmeticError:
            return NoRow(f"the value: found a number with an exponent beyond any, wanted {WANTED}")
        return Event(_placed(payload), lambda side: _of_connect(schema, side))


class AvroEvents:
    """Values are of Avro, in the framing of a registry."""

    def __init__(self, schemas: RegisteredSchemas):
        self._schemas = schemas
        self._logical_types: dict[tuple[Written, str], LogicalTypes] = {}

    def of(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> list[Event | NoRow]:
        batch = Batch(self._schemas, values, headers)
        return [self._event(batch, i) for i in range(len(batch))]

    def _event(self, batch: Batch[Written], i: int) -> Event | NoRow:
        found = batch.value(i)
        if isinstance(found, NoRow):
            return found
        if not isinstance(found, dict):
            return NoRow(f"the value: found {shown(found)}, wanted {WANTED}")
        written = batch.written(i)
        return Event(_placed(cast("dict[str, Any]", found)), lambda side: self._of_avro(written, side))

    def _of_avro(self, written: Written, side: str) -> LogicalTypes:
        known = self._logical_types.get((written, side))
        if known is None:
            known = self._logical_types[written, side] = _of_avro(written.schema, side)
        return known


def _unwrapped(value: object) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """(the event, its schema or nothing); NoRow where it is none."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if fields.keys() == {"schema", "payload"} and isinstance(fields["payload"], dict):
            schema = fields["schema"]
            return fields["payload"], cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
        return fields, {}
    raise NoRow(f"the value: found {shown(value)}, wanted {WANTED}")


def _of_connect(schema: Mapping[str, Any], side: str) -> LogicalTypes:
    """{field of the row: what its schema says of it}, of those whose schema has a name."""
    for outer in schema.get("fields") or ():
        if outer.get("field") == side:
            return {
                field["field"]: LogicalType(str(field["name"]), field.get("parameters") or {})
                for field in outer.get("fields") or ()
                if field.get("name")
            }
    return {}


def _of_avro(schema: Schema, side: str) -> LogicalTypes:
    """The same of a schema of Avro, where Connect's converters leave its names as properties of types."""
    row = _field(schema, schema.root, side)
    found: dict[str, LogicalType] = {}
    for field in row.get("fields", ()):
        kind = _alone(schema, field["type"])
        if kind.get("connect.name"):
            found[field["name"]] = LogicalType(str(kind["connect.name"]), kind.get("connect.parameters") or {})
    return found


def _field(schema: Schema, node: Node, name: str) -> Mapping[str, Any]:
    for field in _alone(schema, node).get("fields", ()):
        if field["name"] == name:
            return _alone(schema, field["type"])
    return {}


def _alone(schema: Schema, node: Node) -> Mapping[str, Any]:
    """A type with its properties; of a union the one beside null."""
    if isinstance(node, list):
        others = [each for each in node if each != "null"]
        return _alone(schema, others[0]) if len(others) == 1 else {}
    if isinstance(node, str):
        of = schema.named.get(node, {})
        return of if isinstance(of, dict) else {}
    inner = node["type"]
    if isinstance(inner, dict | list) or inner in schema.named:
        return _alone(schema, cast("Node", inner))
    return node


def _placed(payload: dict[str, Any]) -> dict[str, Any]:
    """The event with its place in a binary log, where its source has one, as a number that ascends.

    From the right it has ten digits of the row, nineteen of the position and up to nine of the file's number.
    """
    source = payload.get("source")
    if not isinstance(source, dict):
        return payload
    fields = cast("dict[str, Any]", source)
    file, position, row = fields.get("file"), fields.get("pos"), fields.get("row")
    named = _FILE.fullmatch(file) if isinstance(file, str) else None
    is_place = isinstance(position, int) and 0 <= position < _POSITIONS and isinstance(row, int) and 0 <= row < _ROWS
    if named is None or not is_place:
        return payload
    return {**payload, BINLOG: (int(named[1]) * _POSITIONS + cast(int, position)) * _ROWS + cast(int, row)}
