"""Records whose values are Avro in the framing of a registry: a byte 0, the 4 bytes of the schema's id, the datum."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import time
from io import BytesIO
from itertools import islice, repeat
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from psycopg import sql

from ratchet.destinations import rendered
from ratchet.destinations.record_values import Record, RecordValues, Refused, Row
from ratchet.formats.json_decoder import JsonDecoder
from ratchet.spec.columns import Column
from ratchet.spec.types import TIMESTAMP, Array, Date, Floating, Json, Map, Struct, Time, Timestamp, Type, Uuid

_AT_ONCE = 1_000
"""So many rows' nested values are read at once."""
_UNKEPT = "a value that no record holds (a day outside of the years 1 to 9999, or within an array NaN or an infinity)"


class AvroValues(RecordValues):
    """Records whose fields are the columns."""

    def __init__(self, fields: Sequence[Column], schema: str, number: int):
        """`schema` is that of these columns, and `number` the id by which the registry has it."""
        self._schema = parse_schema(json.loads(schema))
        self._front = b"\x00" + number.to_bytes(4, "big")
        plain = [column for column in fields if not _is_nested(column.type)]
        nested = [column for column in fields if _is_nested(column.type)]
        self._plain, self._nested = [column.name for column in plain], [column.name for column in nested]
        # As with all columns, null is no reason to stop here.
        self._read = JsonDecoder(tuple(replace(c, type=_open(c.type), nullable=True) for c in nested))
        # Readers know no later years, whatever unit a moment came in.
        moments = [replace(column, type=TIMESTAMP) for column in plain if isinstance(column.type, Timestamp)]
        self.asked = [
            rendered.unfit_of([*nested, *moments, *(column for column in plain if isinstance(column.type, Date))]),
            sql.SQL("_txid is not null"),
            rendered.json_of(nested) if nested else sql.NULL,
            *(_asked(column.type, sql.Identifier(column.name)) for column in plain),
        ]

    def records(self, rows: Iterable[Row], refused: Refused) -> Iterator[Record]:
        left = iter(rows)
        while some := list(islice(left, _AT_ONCE)):
            for unfit, *_, said in some:
                if unfit is not None:
                    raise refused(said, f"column {unfit} has {_UNKEPT}")
            there = [row for row in some if row[1]]
            within = self._within(there, refused)
            for _, is_there, _, *cells, key, said in some:
                value = None
                if is_there:
                    value = self._value(dict(zip(self._plain, cells, strict=True)) | next(within), said, refused)
                yield value, key, said

    def _value(self, row: dict[str, Any], said: str, refused: Refused) -> bytes:
        into = BytesIO()
        into.write(self._front)
        try:
            schemaless_writer(into, self._schema, row)
        except Exception as error:
            # Its words quote the value.
            why = f"it cannot be written by the schema of its columns ({type(error).__name__})"
            raise refused(said, why) from None
        return into.getvalue()

    def _within(self, rows: list[Row], refused: Refused) -> Iterator[dict[str, Any]]:
        """The nested columns of each row, as fastavro takes them; they are read as readers of a JSON topic do."""
        if not self._nested:
            return repeat({})
        decoded = self._read.decode(pa.array([row[2].encode() for row in rows], pa.binary()))
        for row, error in zip(rows, decoded.errors.to_pylist(), strict=True):
            if error is not None:
                raise refused(row[-1], "an array, a map or a struct of it is not what its columns are now")
        columns = [
            [_made(column.type, cell) for cell in cells.to_pylist()]
            for column, cells in zip(self._read.columns, decoded.columns.columns, strict=True)
        ]
        return (dict(zip(self._nested, cells, strict=True)) for cells in zip(*columns, strict=True))


def _is_nested(kind: Type) -> bool:
    return isinstance(kind, Array | Map | Struct)


def _open(kind: Type) -> Type:
    """The type, of which any part may be null."""
    match kind:
        case Array(element):
            return Array(_open(element))
        case Map(value):
            return Map(_open(value))
        case Struct(members):
            return Struct(tuple(replace(member, type=_open(member.type), nullable=True) for member in members))
        case _:
            return kind


def _asked(kind: Type, value: sql.Composable) -> sql.Composable:
    """What is asked for a cell, so that it comes as fastavro takes it."""
    match kind:
        case Date() | Timestamp():
            # What is infinite is refused, and not subtracted from.
            return sql.SQL("case when isfinite({}) then {} end").format(value, rendered.number_of(kind, value))
        case Time():
            return rendered.number_of(kind, value)
        case Floating(32):
            # Its shortest text would be rounded twice.
            return sql.SQL("{}::double precision").format(value)
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
