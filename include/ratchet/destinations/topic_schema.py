"""The schema of Avro by which a topic gets rows, made of their columns.

Every field may be null, and is where nothing is said, whatever the columns declare: so columns may come and go by each
rule that a registry knows, in either order, and rows that are older than a `not null` can be sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ratchet.spec.columns import Column
from ratchet.spec.types import (
    Array,
    Binary,
    Boolean,
    Date,
    Decimal,
    Floating,
    Integer,
    Json,
    Map,
    String,
    Struct,
    Time,
    Timestamp,
    Type,
    Uuid,
)

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME = re.compile(rf"{_NAME.pattern}(\.{_NAME.pattern})*")

_Node = dict[str, Any] | str


def schema_of(record: str, fields: Sequence[Column]) -> str:
    """The schema of rows of these columns, as JSON; `record` is the full name of theirs."""
    members = [_field(column.name, column.type, record) for column in fields]
    return json.dumps({"type": "record", "name": record, "fields": members}, separators=(",", ":"))


def record_of(topic: str) -> str:
    """What the record of a topic is called where nobody says it: as the topic, in letters that Avro has."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", topic)
    return name if is_record(name) else f"_{name}"


def is_record(name: str) -> bool:
    """Whether a record may have this full name."""
    return _FULL_NAME.fullmatch(name) is not None and name not in _PRIMITIVES


def unfit_for_avro(fields: Sequence[Column]) -> str | None:
    """Why no schema has these columns, in a line; None where one has."""
    records: dict[str, str] = {}
    for column in fields:
        for name in _members(column.type):
            if not _NAME.fullmatch(name):
                return f"column {column.name!r}: Avro has no field {name!r}; its names have letters, digits and _ alone"
        for record in _records(column.type, column.name):
            other = records.setdefault(record, column.name)
            if other != column.name:
                return f"columns {other!r} and {column.name!r}: both have a record {record!r}; rename one"
    return None


def _members(kind: Type) -> Iterator[str]:
    """The names of all fields of structs in a type."""
    match kind:
        case Array(inner) | Map(inner):
            yield from _members(inner)
        case Struct(members):
            for member in members:
                yield member.name
                yield from _members(member.type)
        case _:
            pass


def _records(kind: Type, name: str) -> Iterator[str]:
    """The names of all records in a value of this name."""
    match kind:
        case Array(inner) | Map(inner):
            yield from _records(inner, name)
        case Struct(members):
            yield name
            for member in members:
                yield from _records(member.type, f"{name}_{member.name}")
        case _:
            pass


def _field(name: str, kind: Type, record: str) -> dict[str, Any]:
    # A record within another is no part of its namespace: Java has no package that is called as a class.
    return {"name": name, "type": ["null", _node(kind, f"{record}_{name}")], "default": None}


def _node(kind: Type, record: str) -> _Node:
    """The schema of a value; `record` is the full name of a record in it."""
    match kind:
        case String() | Json():
            return "string"
        case Boolean():
            return "boolean"
        case Integer(bits):
            return "long" if bits == 64 else "int"
        case Floating(bits):
            return "float" if bits == 32 else "double"
        case Decimal(precision, scale):
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        case Date():
            return {"type": "int", "logicalType": "date"}
        case Time():
            return {"type": "long", "logicalType": "time-micros"}
        case Timestamp():
            return {"type": "long", "logicalType": "timestamp-micros"}
        case Binary():
            return "bytes"
        case Uuid():
            return {"type": "string", "logicalType": "uuid"}
        case Array(element):
            return {"type": "array", "items": ["null", _node(element, record)]}
        case Map(value):
            return {"type": "map", "values": ["null", _node(value, record)]}
        case Struct(members):
            fields = [_field(member.name, member.type, record) for member in members]
            return {"type": "record", "name": record, "fields": fields}
