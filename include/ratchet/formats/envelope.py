"""The envelope of a message: a batch of Kafka records becomes rows, and dead letters with their reasons.

A record's key, timestamp and headers belong to it as its value does; the value is left to a format.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.formats import texts
from ratchet.formats.cells import Cell, Cells
from ratchet.formats.headers import last
from ratchet.formats.port import Decoded, Decoder, Use, decoder_of
from ratchet.formats.vectors import Rows
from ratchet.spec.columns import Column, RecordPart
from ratchet.spec.source import Topic
from ratchet.spec.types import Json as JsonType
from ratchet.spec.types import Map
from ratchet.values.arrow import arrow_type
from ratchet.values.endpoint import Endpoint
from ratchet.values.jsonb import canonical
from ratchet.values.unfit import Unfit
from ratchet.values.withheld import record_error

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD = pa.struct(
    [
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.string()),
    ]
)
TOMBSTONE = "no value (a tombstone)"
NO_KEY = "no key"
"""The error of a record without a key, where one is needed."""
NO_TIME = "not in the years 1 to 9999"
"""What is wrong with a record's own time, which producers may set to any number."""
_FIRST_MICROS, _LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Those years in microseconds since 1970."""

HIDDEN: dict[str, pa.DataType] = {
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_n": pa.int32(),
    "_timestamp": pa.timestamp("us", "UTC"),
    "_key": pa.binary(),
    "_headers": HEADERS,
    "_record": RECORD,
}
"""The hidden columns of a row: its position, its number among the rows of its record, and that record."""


@dataclass(frozen=True)
class Opened:
    """What became of a batch of records; each of them is in exactly one of the three.

    `rows` has the declared columns and HIDDEN, then `_deleted` where the topic deletes. `dead` has HIDDEN and `error`,
    `empty` has HIDDEN: records whose value says that there are no rows. The rest is as in `Decoded`.
    """

    rows: pa.RecordBatch
    dead: pa.RecordBatch
    empty: pa.RecordBatch
    found: frozenset[str]
    beside: Mapping[str, frozenset[str]]
    cut: int


@dataclass(frozen=True)
class _PerRecord:
    """Columns with one cell a record, the errors by record, and what a format says besides."""

    arrays: dict[str, pa.Array]
    errors: dict[int, str]
    found: frozenset[str] = frozenset()
    beside: Mapping[str, frozenset[str]] | None = None
    cut: int = 0


class Envelope:
    """Opens the records of a topic; with `key_required` one without a key is an error.

    `private` keeps what was found in a record out of its error. `endpoints` are the servers that formats name, by the
    ids of their connections. `topics_of` names the topic of each of some partitions; without it there is one.
    """

    def __init__(
        self,
        topic: Topic,
        *,
        key_required: bool = False,
        private: bool = False,
        endpoints: Mapping[str, Endpoint] | None = None,
        topics_of: Callable[[pa.Int32Array], pa.StringArray] | None = None,
    ):
        self._topics_of = topics_of or (lambda partitions: pa.array([topic.title] * len(partitions), pa.string()))
        self._types = {c.name: c.type for c in topic.columns} if private else None
        self._decoder = decoder_of(topic.value, Use("value", endpoints or {}))
        self._tombstones = topic.tombstones
        self._deletes, self._by_format = topic.deletes, topic.value.deletes
        self._columns = topic.columns
        self._key_columns = topic.key_columns
        by_format = None if isinstance(topic.key, str) else topic.key
        self._key_decoder = None if by_format is None else decoder_of(by_format, Use("key", endpoints or {}))
        needed = key_required or topic.tombstones == "delete" or any(not c.nullable for c in self._key_columns)
        self._key_required = needed and bool(self._key_columns)
        self._parts = [c for c in topic.value.fields if isinstance(c.source, RecordPart)]

    def open(self, batch: pa.RecordBatch) -> Opened:
        """The rows and dead letters of these records, which have `_partition`, `_offset`, `_timestamp`, `_key`,
        `_value` and `_headers`.
        """
        errors: dict[int, str] = {}
        batch = _dated(batch)
        values, headers = batch.column("_value"), batch.column("_headers")
        key, parts = self._key(batch.column("_key"), headers), self._record_parts(batch)
        present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        decoded = self._decoder.decode(*_present(values, headers))
        if self._tombstones == "dead_letter" and not self._by_format:
            errors |= dict.fromkeys(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).tolist(), TOMBSTONE)
        if decoded.errors.null_count < len(decoded.errors):
            wrong = np.flatnonzero(decoded.errors.is_valid().to_numpy(zero_copy_only=False))
            errors |= dict(zip(present[wrong].tolist(), decoded.errors.drop_null().to_pylist(), strict=True))
        errors = {**parts.errors, **errors, **key.errors}
        beside: Mapping[str, frozenset[str]] = {**decoded.beside, **(key.beside or {})}
        if self._types is not None:
            # What a format says of a value may be anything, and so may the names within one.
            errors = {at: record_error(said, self._types, (TOMBSTONE, NO_KEY)) for at, said in errors.items()}
            beside = dict.fromkeys(beside, frozenset[str]())
        rows, of, deleted = self._rows(decoded, present, values, errors)
        record = _record(batch)
        columns = {name: decoded_column for name, decoded_column in zip(rows.schema.names, rows.columns, strict=True)}
        columns |= {name: _taken(array, of) for name, array in (parts.arrays | key.arrays).items()}
        given = {c.name: columns[c.name] for c in self._columns}
        given |= _hidden(batch, record, of, _numbers(of))
        if self._deletes:
            given["_deleted"] = pa.array(deleted)
        bad = np.array(sorted(errors), np.int64)
        good = np.ones(batch.num_rows, bool)
        good[bad] = False
        good[of] = False
        empty = np.flatnonzero(good)
        dead = _hidden(batch, record, bad, np.zeros(len(bad), np.int32))
        dead["error"] = pa.array([errors[i] for i in bad.tolist()], pa.string())
        named = frozenset(c.name for c in self._parts) if len(of) else frozenset[str]()
        return Opened(
            pa.RecordBatch.from_pydict(given),
            pa.RecordBatch.from_pydict(dead),
            pa.RecordBatch.from_pydict(_hidden(batch, record, empty, np.zeros(len(empty), np.int32))),
            decoded.found | key.found | named,
            beside,
            decoded.cut + key.cut + parts.cut,
        )

    def _rows(
        self, decoded: Decoded, present: Rows, values: pa.Array, errors: dict[int, str]
    ) -> tuple[pa.RecordBatch, Rows, Any]:
        """(the columns of the value, the record of each row, whether it is a deletion), in the order of the records."""
        of = present[decoded.parents.to_numpy()]
        columns = decoded.columns
        deleted = np.zeros(len(of), bool)
        if decoded.deleted is not None:
            deleted = decoded.deleted.to_numpy(zero_copy_only=False)
        if errors:
            kept = ~np.isin(of, np.array(list(errors), np.int64))
            columns, of, deleted = columns.filter(pa.array(kept)), of[kept], deleted[kept]
        gone = np.empty(0, np.int64)
        if self._tombstones == "delete" and values.null_count:
            gone = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            gone = gone[~np.isin(gone, np.array(list(errors), np.int64))]
        if len(gone):
            of, deleted = np.concatenate([of, gone]), np.concatenate([deleted, np.ones(len(gone), bool)])
            order = np.argsort(of, kind="stable")
            nothing = [pa.nulls(len(gone), column.type) for column in columns.columns]
            both = [
                pa.concat_arrays([a, b]).take(pa.array(order)) for a, b in zip(columns.columns, nothing, strict=True)
            ]
            columns = pa.RecordBatch.from_arrays(both, schema=columns.schema)
            of, deleted = of[order], deleted[order]
        return columns, of, deleted

    def _key(self, keys: pa.BinaryArray, headers: pa.ListArray) -> _PerRecord:
        """The columns of the key, one cell a record."""
        errors: dict[int, str] = {}
        if self._key_required and keys.null_count:
            errors = dict.fromkeys(np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False)).tolist(), NO_KEY)
        if self._key_decoder is not None:
            return self._key_by_decoder(self._key_decoder, keys, headers, errors)
        arrays: dict[str, pa.Array] = {}
        cut = 0
        for column in self._key_columns:
            found = _texts(column, keys, "key column")
            arrays |= found.arrays
            errors |= found.errors
            cut += found.cut
        return _PerRecord(arrays, errors, frozenset(arrays), None, cut)

    def _key_by_decoder(
        self, decoder: Decoder, keys: pa.BinaryArray, headers: pa.ListArray, errors: dict[int, str]
    ) -> _PerRecord:
        present = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        decoded = decoder.decode(*_present(keys, headers))
        places: list[int | None] = [None] * len(keys)
        for row, parent in enumerate(decoded.parents.to_pylist()):
            places[present[parent]] = row
        for number, error in zip(present.tolist(), decoded.errors.to_pylist(), strict=True):
            if error is not None:
                errors[number] = f"the key{error[9:]}" if error.startswith("the value") else f"key {error}"
        where = pa.array(places, pa.int32())
        arrays = {name: decoded.columns.column(name).take(where) for name in decoded.columns.schema.names}
        return _PerRecord(arrays, errors, decoded.found, decoded.beside, decoded.cut)

    def _record_parts(self, batch: pa.RecordBatch) -> _PerRecord:
        """The columns that come from the record's timestamp, topic, key and headers."""
        arrays: dict[str, pa.Array] = {}
        errors: dict[int, str] = {}
        cut = 0
        for column in reversed(self._parts):
            part = column.source
            assert isinstance(part, RecordPart)
            if part.part == "_timestamp":
                times = batch.column("_timestamp")
                odd = np.flatnonzero(times.is_null().to_numpy(zero_copy_only=False)).tolist()
                said = f"column {column.name}: the record's own time is {NO_TIME}, wanted {column.type}"
                found = _PerRecord({column.name: times.cast(arrow_type(column.type))}, dict.fromkeys(odd, said))
            elif part.part == "_topic":
                found = _PerRecord({column.name: self._topics_of(batch.column("_partition"))}, {})
            elif part.part == "_key":
                found = _texts(column, batch.column("_key"), "column")
            elif part.header is not None:
                found = _texts(column, last(batch.column("_headers"), part.header), "column")
            else:
                found = _all_headers(column, batch.column("_headers"))
            missing = (
                {}
                if column.nullable
                else dict.fromkeys(
                    np.flatnonzero(found.arrays[column.name].is_null().to_numpy(zero_copy_only=False)).tolist(),
                    f"column {column.name}: found nothing, wanted {column.type} not null",
                )
            )
            arrays |= found.arrays
            errors |= {**missing, **found.errors}
            cut += found.cut
        return _PerRecord(arrays, errors, cut=cut)


def _present(sent: pa.BinaryArray, headers: pa.ListArray) -> tuple[pa.BinaryArray, pa.ListArray]:
    """What was sent, without nulls, and the headers of the same records."""
    if not sent.null_count:
        return sent, headers
    is_there = sent.is_valid()
    return sent.filter(is_there), headers.filter(is_there)


def _texts(column: Column, sent: pa.BinaryArray, where: str) -> _PerRecord:
    """A column of texts of their own, one a record."""
    found = texts.column(column, sent, where)
    return _PerRecord({column.name: found.array}, found.errors, cut=found.cut)


def _all_headers(column: Column, headers: pa.ListArray) -> _PerRecord:
    """All headers of each record: as JSON in the form of the dead letters, or as a map of texts."""

    def read(reader: Cells, of: list[dict[str, Any]]) -> Cell:
        match column.type:
            case JsonType():
                said = headers_json(of)
                return None if said is None else canonical(said)
            case Map(value):
                last = {h["key"]: h["value"] for h in of}
                if any("\x00" in name for name in last):
                    raise Unfit("a header's name with U+0000", column.type)
                return [(n, None if sent is None else reader.of_text(value, sent)) for n, sent in last.items()]
            case _:
                raise Unfit("headers", column.type)

    reader = Cells()
    cells: list[Cell] = []
    errors: dict[int, str] = {}
    for number, one in enumerate(headers.to_pylist()):
        cell = None
        if one is not None:
            try:
                cell = read(reader, one)
            except Unfit as unfit:
                errors[number] = unfit.said(f"column {column.name}")
        cells.append(cell)
    return _PerRecord({column.name: pa.array(cells, arrow_type(column.type))}, errors, cut=reader.cut)


def headers_json(headers: list[dict[str, Any]] | None) -> str | None:
    """Headers as JSON, [{key, value as base64}]; null if there are none.

    A key with U+0000, which PostgreSQL's JSON lacks, is base64 of its UTF-8 as well, and called `key_base64`.
    """
    if not headers:
        return None
    pairs = [{**_name(h["key"]), "value": None if h["value"] is None else _base64(h["value"])} for h in headers]
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))


def _name(key: str) -> dict[str, str]:
    return {"key_base64": _base64(key.encode())} if "\x00" in key else {"key": key}


def _base64(held: bytes) -> str:
    return b64encode(held).decode()


def _dated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The records with times that calendars have: null in place of any other."""
    times = batch.column("_timestamp").cast(RECORD.field("timestamp").type)
    micros = times.cast(pa.int64())
    odd = pc.or_(pc.less(micros, _FIRST_MICROS), pc.greater(micros, _LAST_MICROS))
    if not pc.any(odd).as_py():
        return batch
    at = batch.schema.get_field_index("_timestamp")
    kept = pc.if_else(odd, pa.scalar(None, times.type), times)
    return batch.set_column(at, pa.field("_timestamp", times.type), kept)


def _record(batch: pa.RecordBatch) -> pa.StructArray:
    """The original bytes of each record, and its time."""
    headers = batch.column("_headers")
    if pc.sum(pc.list_value_length(headers)).as_py():
        said = pa.array(map(headers_json, headers.to_pylist()), pa.string())
    else:
        said = pa.nulls(batch.num_rows, pa.string())
    time = batch.column("_timestamp").cast(RECORD.field("timestamp").type)
    return pa.StructArray.from_arrays([time, batch.column("_key"), batch.column("_value"), said], fields=list(RECORD))


def _hidden(batch: pa.RecordBatch, record: pa.StructArray, of: Rows, numbers: Any) -> dict[str, pa.Array]:
    given = {name: batch.column(name) for name in HIDDEN if name in batch.schema.names}
    given["_record"] = record
    taken = {name: _taken(array, of) for name, array in given.items()}
    taken["_n"] = pa.array(numbers, pa.int32())
    return {name: taken[name].cast(kind) if name == "_headers" else taken[name] for name, kind in HIDDEN.items()}


def _taken(array: pa.Array, of: Rows) -> pa.Array:
    """The cells of these records; as it is where that is each of them once."""
    is_whole = len(of) == len(array) and bool((of == np.arange(len(of))).all())
    return array if is_whole else array.take(pa.array(of))


def _numbers(of: Rows) -> Any:
    """The number of each row among those of its record, from 0."""
    if not len(of):
        return np.zeros(0, np.int32)
    starts = np.flatnonzero(np.diff(of, prepend=of[0] - 1))
    counts = np.diff(np.append(starts, len(of)))
    return (np.arange(len(of)) - np.repeat(starts, counts)).astype(np.int32)
