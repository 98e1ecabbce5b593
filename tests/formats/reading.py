"""An independent reading of a record by Python's json and decimal: the values of its columns, or why it is no row.

It shares no code with the formats but the declarations. Where they mean to read otherwise than Python does, a comment
that begins with "Unlike Python" says so, also in `cells` and `parsing`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal

import numpy as np

from ratchet import Json, Topic
from ratchet.spec import types as t
from ratchet.spec.columns import Column, RecordPart

from .cells import cell, text_cell
from .parsing import Members, NoRow, Sent, parse


@dataclass(frozen=True)
class Arrived:
    """What a record is besides its value."""

    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: datetime | None = None


def read(topic: Topic, value: bytes | None, arrived: Arrived) -> list[dict[str, object]]:
    """{column: value} of each row of a record, None for null; NoRow with the reason."""
    key = _key(topic, arrived.key)
    around = {c.name: _around(c, arrived) for c in topic.value.fields if isinstance(c.source, RecordPart)}
    fields = [c for c in topic.value.fields if c.name not in around]
    if value is None and topic.tombstones == "delete":
        return [key | around | dict.fromkeys((c.name for c in fields), None)]
    if value is None:
        raise NoRow("a tombstone")
    return [key | around | row for row in _rows(fields, value, topic.value.rows)]


def _rows(fields: list[Column], value: bytes, rows: str) -> list[dict[str, object]]:
    whole = parse(value)
    objects = [whole] if rows == "object" else whole.value
    if rows == "array" and (not isinstance(objects, list) or isinstance(objects, Members)):
        raise NoRow("no array")
    found = []
    for each in objects:
        if not isinstance(each.value, Members):
            raise NoRow("no object")
        found.append({c.name: _field(c, each) for c in fields})
    return found


def _field(column: Column, sent: Sent) -> object:
    """The value of a column in an object."""
    for name in column.source.names:
        if sent.value is None:
            break
        if not isinstance(sent.value, Members):
            raise NoRow(f"{column.name}: {sent.text} is no object")
        if name not in sent.value.last():
            sent = Sent(None, "")
            break
        sent = sent.value.last()[name]
    if sent.value is None and not column.nullable:
        raise NoRow(f"{column.name} is missing or null")
    return cell(column.type, sent)


def agrees(column: Column, expected: object, found: object) -> bool:
    """Whether what is found, as the database's driver gives it and documents as text, is the value that was read."""
    if expected is None or found is None:
        return expected is found
    kind = column.type
    if t.is_document(kind):
        return _same(expected, json.loads(found, parse_int=Decimal, parse_float=Decimal))
    if isinstance(kind, t.Array):
        inner = Column(column.name, kind.element)
        return len(expected) == len(found) and all(agrees(inner, e, f) for e, f in zip(expected, found, strict=True))
    if kind == t.FLOAT:
        return np.float32(found) == np.float32(expected)
    if isinstance(kind, t.Uuid | t.Time):
        said = expected.isoformat("microseconds") if isinstance(expected, time) else str(expected)
        return said == (found.isoformat("microseconds") if isinstance(found, time) else str(found))
    return type(found) is type(expected) and found == expected


def _same(expected: object, found: object) -> bool:
    """Whether two documents are one, down to the zeros behind a number."""
    if isinstance(expected, Decimal):
        scales = [max(0, -d.as_tuple().exponent) for d in (expected, found)] if isinstance(found, Decimal) else [0, 1]
        return expected == found and scales[0] == scales[1]
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(_same(expected[n], found[n]) for n in expected)
        )
    if isinstance(expected, list):
        pairs = isinstance(found, list) and len(found) == len(expected)
        return pairs and all(map(_same, expected, found))
    return type(found) is type(expected) and found == expected


def _key(topic: Topic, key: bytes | None) -> dict[str, object]:
    """The columns of the key."""
    columns = topic.key_columns
    if key is None and columns and (topic.tombstones == "delete" or any(not c.nullable for c in columns)):
        raise NoRow("no key")
    if key is None:
        return {c.name: None for c in columns}
    if isinstance(topic.key, Json):
        return _rows(list(columns), key, "object")[0]
    return {c.name: text_cell(c.type, key) for c in columns}


def _named(name: str) -> dict[str, str]:
    """PostgreSQL has no U+0000 in JSON."""
    return {"key_base64": b64encode(name.encode()).decode()} if "\x00" in name else {"key": name}


def _around(column: Column, arrived: Arrived) -> object:
    """The value of a column that comes from the record."""
    source, found = column.source, None
    if source.part == "_timestamp":
        found = arrived.timestamp
    elif source.part == "_key":
        found = None if arrived.key is None else text_cell(column.type, arrived.key)
    elif source.header is not None:
        sent = [value for name, value in arrived.headers if name == source.header]
        found = text_cell(column.type, sent[-1]) if sent else None
    elif arrived.headers:
        found = [{**_named(n), "value": b64encode(v).decode()} for n, v in arrived.headers]
    if found is None and not column.nullable:
        raise NoRow(f"{column.name} is missing or null")
    return found
