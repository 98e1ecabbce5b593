"""Records whose values are Avro in the framing of a registry: a byte 0, the 4 bytes of the schema's id, the datum.

The schema is made of the columns, so a subject has one version for each set of them that rows were written with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import time
from io import BytesIO
from itertools import islice, repeat
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from psycopg import sql

from ratchet.destinations import rendered
from ratchet.destinations.record_values import Record, RecordValues, Refused, Row
from ratchet.errors import StageMismatch
from ratchet.formats.json_decoder import JsonDecoder
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

_AT_ONCE = 1_000
"""So many rows' nested values are read at once."""

Schema = dict[str, Any] | list[Any] | str


def schema_of(name: str, fields: Sequence[Column]) -> str:
    """The schema of rows of these columns, as JSON; `name` is the full name of the record."""
    members = [_member(column.name, column.type, column.nullable, name) for column in fields]
    return json.dumps({"type": "record", "name": name, "fields": members}, separators=(",", ":"))


class AvroValues(RecordValues):
    """Records whose fields are the columns."""

    UNKEPT = "no record holds (a day outside of the years 1 to 9999; within an array NaN or an infinity)"

    def __init__(self, fields: Sequence[Column], schema: str, number: int):
        """`schema` is that of these columns, and `number` the id by which the registry has it."""
        self._schema = parse_schema(json.loads(schema))
        self._front = b"\x00" + number.to_bytes(4, "big")
        plain = [column for column in fields if not _is_nested(column.type)]
        self._names = [column.name for column in plain]
        self._nested = tuple(column for column in fields if _is_nested(column.type))
        checked = [*self._nested, *(column for column in plain if isinstance(column.type, Date | Timestamp))]
        self.asked = [
            rendered.unfit_of(checked),
            sql.SQL("_txid is not null"),
            rendered.json_of(self._nested) if self._nested else sql.NULL,
            *(_asked(column.type, sql.Identifier(column.name)) for column in plain),
        ]

    def records(self, rows: Iterable[Row], refused: Refused) -> Iterator[Record]:
        left = iter(rows)
        while some := list(islice(left, _AT_ONCE)):
            for unfit, *_, said in some:
                if unfit is not None:
                    raise refused(said, unfit)
            within = self._within([nested for _, is_there, nested, *_ in some if is_there])
            for _, is_there, _, *cells, key, said in some:
                value = self._value(dict(zip(self._names, cells, strict=True)) | next(within)) if is_there else None
                yield value, key, said

    def _value(self, row: dict[str, Any]) -> bytes:
        into = BytesIO()
        into.write(self._front)
        schemaless_writer(into, self._schema, row)
        return into.getvalue()

    def _within(self, texts: list[str]) -> Iterator[dict[str, Any]]:
        """The nested columns of each row, as fastavro takes them; they are read as readers of a JSON topic do."""
        if not self._nested:
            return repeat({})
        decoded = JsonDecoder(self._nested).decode(pa.array([text.encode() for text in texts], pa.binary()))
        if decoded.errors.null_count < len(texts):
            raise StageMismatch("a row of the ledger cannot be read; nothing was sent")
        columns = [
            [_made(column.type, cell) for cell in cells.to_pylist()]
            for column, cells in zip(self._nested, decoded.columns.columns, strict=True)
        ]
        names = [column.name for column in self._nested]
        return (dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True))


def _is_nested(kind: Type) -> bool:
    return isinstance(kind, Array | Map | Struct)


def _asked(kind: Type, value: sql.Composable) -> sql.Composable:
    """What is asked for a cell, so that it comes as fastavro takes it."""
    match kind:
        case Date() | Timestamp() | Time():
            return rendered.number_of(kind, value)
        case Json() | Uuid():
            return sql.SQL("{}::text").format(value)
        case _:
            return value


def _made(kind: Type, cell: Any) -> Any:
    """A cell of Arrow as fastavro takes it."""
    if cell is None:
        return None
    match kind:
        case Time():
            return time.fromisoformat(cell)
        case Array(element):
            return [_made(element, each) for each in cell]
        case Map(value):
            return {name: _made(value, each) for name, each in cell}
        case Struct(members):
            return {member.name: _made(member.type, cell[member.name]) for member in members}
        case _:
            return cell


def _member(name: str, kind: Type, nullable: bool, within: str) -> dict[str, Any]:
    """A field; `within` is the full name of its record, which begins the names of those below it."""
    declared = _schema(kind, f"{within}.{name}")
    # With a default, readers of either schema read what was written by the other when a column comes or goes.
    return {"name": name, "type": ["null", declared], "default": None} if nullable else {"name": name, "type": declared}


def _schema(kind: Type, name: str) -> Schema:
    """The schema of a value; a record in it is called `name`."""
    match kind:
        case String():
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
        case Json():
            return "string"
        case Array(element):
            return {"type": "array", "items": ["null", _schema(element, name)]}
        case Map(value):
            return {"type": "map", "values": ["null", _schema(value, name)]}
        case Struct(members):
            fields = [_member(member.name, member.type, member.nullable, name) for member in members]
            return {"type": "record", "name": name, "fields": fields}
