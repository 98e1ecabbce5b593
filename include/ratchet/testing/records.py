"""Records that a test gives, as a source would read them from partition 0, the first at offset 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from ratchet.source.port import SCHEMA

TIME = datetime(2024, 1, 1, tzinfo=UTC)
"""The time of a record, and of a transaction, for which a test gives none."""

_JSON = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True)
class Record:
    """A record whose key, headers or timestamp matter; where only the value does, the value alone will do.

    Bytes are sent as they are and text as UTF-8. A dict or a list is sent as JSON, and so is a number, which is its
    text as well; there a Decimal is a number, and a datetime, a date, a UUID and bytes are texts as the guide lists
    them. A value of None is a tombstone.
    """

    value: object = None
    key: object = None
    headers: Mapping[str, str | bytes | None] = field(default_factory=dict[str, "str | bytes | None"])
    timestamp: datetime = TIME


def batch_of(records: Sequence[object]) -> pa.RecordBatch:
    """The records as a source gives them; each is a Record, or a value."""
    given = [of if isinstance(of, Record) else Record(of) for of in records]
    count = len(given)
    columns: dict[str, Iterable[object]] = {
        "_source": [0] * count,
        "_partition": [0] * count,
        "_offset": range(count),
        "_timestamp": [of.timestamp for of in given],
        "_key": [_sent(of.key) for of in given],
        "_value": [_sent(of.value) for of in given],
        "_headers": [[{"key": k, "value": _sent(v)} for k, v in of.headers.items()] or None for of in given],
    }
    arrays = [pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def shown(records: Sequence[object], number: int) -> str:
    """A record as a failed check names it."""
    of = records[number]
    return f"record {number} ({of if isinstance(of, Record) else _sent(of)!r})"


def _sent(given: object) -> bytes | None:
    match given:
        case None | bytes():
            return given
        case str():
            return given.encode()
        case _:
            return _JSON.encode(given)
