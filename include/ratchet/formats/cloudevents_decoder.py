"""CloudEvents 1.0 in Kafka's records, by the Kafka protocol binding and the JSON event format.

- A record whose header `content-type` begins with `application/cloudevents` is structured: its value is the event, in
  the JSON event format, the only one that is read. Every other is binary: its attributes are headers `ce_…`, in UTF-8
  as they are (HTTP's percent-encoding is not Kafka's), `datacontenttype` is `content-type`, and the value is the data.
- A record with neither a `content-type` nor a header of a required attribute is structured, since the binding lets a
  producer leave the header out.
- An event has `id`, `source`, `specversion` and `type`, texts that are not empty, and its specversion is 1.0.
- The data of a structured event is the bytes in `data_base64`; or `data` as JSON, as it was sent; or where
  `datacontenttype` names no JSON the characters of `data`. What is missing or null is no data.
- An event without data is one row whose columns of data are null.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from ratchet.formats import texts
from ratchet.formats.cells import NULL, Cells, members_of
from ratchet.formats.headers import last
from ratchet.formats.json_decoder import JsonDecoder
from ratchet.formats.port import Decoded, Decoder, NoRow
from ratchet.formats.vectors import Rows
from ratchet.spec.columns import Column, FieldPath
from ratchet.spec.types import BINARY, STRING
from ratchet.values.arrow import arrow_schema
from ratchet.values.unfit import Unfit, excerpt

STRUCTURED = "application/cloudevents"
JSON = "application/cloudevents+json"
VERSION = "1.0"
REQUIRED = ("id", "source", "specversion", "type")
_ALL = "the id, source, specversion and type of a CloudEvent"
_LOOKED_AT = 50
"""Names are gathered from so many records."""


NULL_RAW = Raw(NULL)


class _Event(msgspec.Struct):
    """What most events have, with the data as it was sent."""

    specversion: str
    id: str
    source: str
    type: str
    datacontenttype: str | None = None
    data: Raw = NULL_RAW
    data_base64: Raw = NULL_RAW


_event_of = msgspec.json.Decoder(_Event).decode


@dataclass(frozen=True)
class _Part:
    """The attributes of events of one mode: `of` has the number of the record of each row."""

    of: Rows
    arrays: list[pa.Array]
    cut: int
    found: frozenset[str]
    beside: Mapping[str, frozenset[str]]


class CloudEventsDecoder:
    """Reads attributes into their columns, and the data by its own decoder."""

    def __init__(self, attributes: tuple[Column, ...], data: Decoder | None, *, by_headers: bool):
        self._attributes = attributes
        self._data = data
        self._by_headers = by_headers
        self._json = JsonDecoder(attributes)
        self.columns = (*attributes, *(() if data is None else data.columns))
        self._schema = arrow_schema(self.columns)

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        """What these events say. An error of the data begins with `the value: data: …` where the event has it within
        its value."""
        if headers is None or not self._by_headers:
            headers = pa.nulls(len(values), _HEADERS)
        errors: dict[int, str] = {}
        data: dict[int, bytes | None] = {}
        structured = _is_structured(headers)
        within, beside = np.flatnonzero(structured), np.flatnonzero(~structured)
        self._read_structured(values, headers, within, data, errors)
        self._read_binary(values, headers, beside, data, errors)
        # Step 1: the attributes, which may be none of their columns' types.
        known = len(errors)
        parts = self._parts(values, headers, within, beside, errors)
        # Step 2: the data of events that are good so far.
        inner, of = self._inner(headers, data, structured, errors)
        # Step 3: the attributes again, where not all of these events are good.
        if len(errors) > known:
            parts = self._parts(values, headers, within, beside, errors)
        places = np.full(len(values), -1, np.int64)
        rows = np.concatenate([part.of for part in parts])
        places[rows] = np.arange(len(rows))
        taken = pa.array(places[of])
        columns = [pa.concat_arrays([p.arrays[n] for p in parts]).take(taken) for n in range(len(self._attributes))]
        found = frozenset[str]().union(*(part.found for part in parts), inner.found)
        absent = [column.name for column in self.columns if column.name not in found] if len(of) else []
        return Decoded(
            pa.RecordBatch.from_arrays([*columns, *inner.columns.columns], schema=self._schema),
            pa.array(of, pa.int32()),
            pa.array([errors.get(number) for number in range(len(values))], pa.string()),
            found if len(of) else frozenset(),
            {
                name: frozenset().union(*(b.get(name, ()) for b in (inner.beside, *(p.beside for p in parts))))
                for name in absent
            },
            inner.cut + sum(part.cut for part in parts),
        )

    def _read_structured(
        self,
        values: pa.BinaryArray,
        headers: pa.ListArray,
        numbers: Rows,
        data: dict[int, bytes | None],
        errors: dict[int, str],
    ) -> None:
        """The data of events that are whole in their values; of what is no JSON, JsonDecoder says what it is."""
        kinds, sent = last(headers, "content-type").to_pylist(), values.to_pylist()
        for number in numbers.tolist():
            kind = kinds[number]
            if kind is not None and _media_type(kind.decode(errors="replace")) != JSON:
                errors[number] = f"the value: found an event as {excerpt(kind)}, wanted {JSON}"
                continue
            if (usual := _usual(sent[number])) is not None:
                data[number] = None if self._data is None or usual == NULL else usual
                continue
            try:
                members = members_of(sent[number])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            try:
                said = {name: _text(members, name) for name in (*REQUIRED, "datacontenttype")}
                for name in REQUIRED:
                    if not said[name]:
                        raise NoRow(f"the value: found no attribute {name}, wanted {_ALL}")
                _check_version(said["specversion"] or "")
                data[number] = None if self._data is None else _data_within(members, said["datacontenttype"])
            except NoRow as reason:
                errors[number] = str(reason)

    def _read_binary(
        self,
        values: pa.BinaryArray,
        headers: pa.ListArray,
        numbers: Rows,
        data: dict[int, bytes | None],
        errors: dict[int, str],
    ) -> None:
        """The data of events whose attributes are headers."""
        found = {name: last(headers, f"ce_{name}").to_pylist() for name in REQUIRED}
        for number in numbers.tolist():
            missing = [name for name in REQUIRED if not found[name][number]]
            try:
                if missing:
                    raise NoRow(f"the value: found no header ce_{missing[0]}, wanted {_ALL}")
                _check_version(found["specversion"][number].decode(errors="replace"))
                data[number] = values[number].as_py()
            except NoRow as reason:
                errors[number] = str(reason)

    def _parts(
        self, values: pa.BinaryArray, headers: pa.ListArray, within: Rows, beside: Rows, errors: dict[int, str]
    ) -> list[_Part]:
        """The attributes of the events that have no error; adds the errors that they have."""
        return [
            self._of_json(values, _without(within, errors), errors),
            self._of_headers(headers, _without(beside, errors), errors),
        ]

    def _of_json(self, values: pa.BinaryArray, numbers: Rows, errors: dict[int, str]) -> _Part:
        decoded = self._json.decode(values.take(pa.array(numbers)))
        for number, error in zip(numbers.tolist(), decoded.errors.to_pylist(), strict=True):
            if error is not None:
                errors[number] = error
        of = numbers[decoded.parents.to_numpy()]
        return _Part(of, decoded.columns.columns, decoded.cut, decoded.found, decoded.beside)

    def _of_headers(self, headers: pa.ListArray, numbers: Rows, errors: dict[int, str]) -> _Part:
        taken = headers.take(pa.array(numbers))
        arrays: list[pa.Array] = []
        found: set[str] = set()
        wrong: dict[int, str] = {}
        cut = 0
        for column in self._attributes:
            sent = last(taken, _header_of(column))
            read = texts.column(column, sent, "column", base64=True)
            if not column.nullable:
                nothing = f"column {column.name}: found nothing, wanted {column.type} not null"
                wrong |= dict.fromkeys(np.flatnonzero(read.array.is_null()).tolist(), nothing)
            wrong |= read.errors
            arrays.append(read.array)
            found |= {column.name} if sent.null_count < len(sent) else set()
            cut += read.cut
        errors |= {int(numbers[row]): error for row, error in wrong.items()}
        names = {h["key"].removeprefix("ce_") for of in taken.slice(0, _LOOKED_AT).to_pylist() for h in of or ()}
        absent = {c.name: frozenset(names) for c in self._attributes if c.name not in found} if len(numbers) else {}
        good = np.setdiff1d(np.arange(len(numbers)), list(wrong))
        return _Part(numbers[good], [array.take(pa.array(good)) for array in arrays], cut, frozenset(found), absent)

    def _inner(
        self,
        headers: pa.ListArray,
        data: Mapping[int, bytes | None],
        structured: np.ndarray[tuple[int], np.dtype[np.bool_]],
        errors: dict[int, str],
    ) -> tuple[Decoded, Rows]:
        """(the columns of the data of the events that have no error, the number of the record of each row)."""
        numbers = _without(np.array(sorted(data), np.int64), errors)
        if self._data is None:
            return Decoded(pa.RecordBatch.from_arrays([], names=[]), numbers, pa.array([])), numbers
        there = np.array([number for number in numbers.tolist() if data[number] is not None], np.int64)
        sent = pa.array([data[number] for number in there.tolist()], pa.binary())
        decoded = self._data.decode(sent, headers.take(pa.array(there)))
        for number, error in zip(there.tolist(), decoded.errors.to_pylist(), strict=True):
            if error is not None:
                is_within = structured[number] and error.startswith("the value: ")
                errors[number] = f"the value: data: {error[11:]}" if is_within else error
        nothing = np.setdiff1d(numbers, there)
        for column in self._data.columns:
            if not column.nullable:
                said = f"column {column.name}: found nothing, wanted {column.type} not null"
                errors |= {number: said for number in nothing.tolist() if number not in errors}
        nothing = _without(nothing, errors)
        of = np.concatenate([there[decoded.parents.to_numpy()], nothing])
        order = np.argsort(of, kind="stable")
        arrays = [
            pa.concat_arrays([array, pa.nulls(len(nothing), array.type)]).take(pa.array(order))
            for array in decoded.columns.columns
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=decoded.columns.schema)
        return Decoded(rows, decoded.parents, decoded.errors, decoded.found, decoded.beside, decoded.cut), of[order]


_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _is_structured(headers: pa.ListArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which records have the event in their value."""
    kinds = last(headers, "content-type")
    bare = kinds.is_null()
    for name in REQUIRED:
        bare = pc.and_(bare, last(headers, f"ce_{name}").is_null())
    named = [kind is not None and kind[: len(STRUCTURED)].lower() == STRUCTURED.encode() for kind in kinds.to_pylist()]
    return bare.to_numpy(zero_copy_only=False) | np.array(named, bool)


def _header_of(column: Column) -> str:
    """The header that an attribute is in."""
    assert isinstance(column.source, FieldPath)
    (name,) = column.source.names
    return "content-type" if name == "datacontenttype" else f"ce_{name}"


def _usual(value: bytes) -> bytes | None:
    """The data of an event that is as most are, whose data is JSON; None where it is to be looked at closer."""
    try:
        event = _event_of(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    is_usual = event.specversion == VERSION and event.id and event.source and event.type
    is_json = event.datacontenttype in (None, "application/json") and bytes(event.data_base64) == NULL
    return bytes(event.data) if is_usual and is_json else None


def _without(numbers: Rows, errors: Mapping[int, str]) -> Rows:
    return np.setdiff1d(numbers, list(errors)).astype(np.int64)


def _check_version(said: str) -> None:
    if said != VERSION:
        raise NoRow(f"the value: found a CloudEvent of specversion {excerpt(said)}, wanted {VERSION}")


def _text(members: Mapping[str, Raw], name: str) -> str | None:
    """An attribute that is a text; NoRow where it is something else."""
    raw = bytes(members[name]) if name in members else NULL
    if raw == NULL:
        return None
    if raw[:1] != b'"':
        raise NoRow(f"the value: found {excerpt(raw)} as the attribute {name}, wanted a text")
    return _characters(raw, f"the attribute {name}")


def _characters(raw: bytes, what: str) -> str:
    try:
        found = Cells().of_json(STRING, raw)
    except (Unfit, msgspec.MsgspecError):
        raise NoRow(f"the value: found {excerpt(raw)} as {what}, wanted a text") from None
    return str(found)


def _media_type(said: str) -> str:
    """Without parameters, as `charset=UTF-8`, in lower case."""
    return said.partition(";")[0].strip().lower()


def _data_within(members: Mapping[str, Raw], content: str | None) -> bytes | None:
    """The data of a structured event, None if it has none; NoRow where it is not what the JSON event format says."""
    plain, coded = (bytes(members.get(name, NULL_RAW)) for name in ("data", "data_base64"))
    if coded != NULL:
        if plain != NULL:
            raise NoRow("the value: found data and data_base64, wanted one of them")
        try:
            found = Cells().of_json(BINARY, coded)
        except (Unfit, msgspec.MsgspecError):
            raise NoRow(f"the value: found {excerpt(coded)} as data_base64, wanted base64") from None
        assert isinstance(found, bytes)
        return found
    if plain == NULL:
        return None
    media = "application/json" if content is None else _media_type(content)
    if media.endswith(("/json", "+json")):
        return plain
    if plain[:1] != b'"':
        raise NoRow(f"the value: found {excerpt(plain)} as data of {excerpt(media)}, wanted a text")
    return _characters(plain, "data").encode()
