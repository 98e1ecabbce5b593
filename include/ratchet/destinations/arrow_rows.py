"""Rows as Arrow has them, for destinations that are files: read as CSV from PostgreSQL, each value exactly."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain

import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from ratchet.destinations import rendered
from ratchet.destinations.content import Content
from ratchet.errors import DestinationRefused, StageMismatch
from ratchet.formats.json_decoder import JsonDecoder
from ratchet.spec.columns import Column
from ratchet.spec.types import Array, Binary, Date, Map, Struct, Time, Timestamp, Type
from ratchet.values.arrow import arrow_schema, arrow_type

_BLOCK = 32 << 20
"""Bytes of CSV that become a batch; a row has to fit."""
_BUFFER = 1 << 20
_NESTED, _UNFIT = "nested", "unfit"


def arrow_rows(content: Content, columns: Sequence[Column], where: str) -> Generator[pa.RecordBatch]:
    """The rows with these columns, of `arrow_schema`, in batches of bounded size.

    Raises as reading the content does; DestinationRefused for what cannot be kept as it is.
    """
    plain = [column for column in columns if not _is_nested(column.type)]
    nested = tuple(column for column in columns if _is_nested(column.type))
    asked = [_plain(column.type, sql.Identifier(column.name)) for column in plain]
    names, types = [column.name for column in plain], [_carried(column.type) for column in plain]
    decoder = JsonDecoder(nested) if nested else None
    if nested:
        asked += [rendered.json_of(nested), rendered.unfit_of(nested)]
        names, types = [*names, _NESTED, _UNFIT], [*types, pa.binary(), pa.string()]
    schema = arrow_schema(tuple(columns))
    with closing(content.as_csv(asked)) as chunks:
        first = next(chunks, None)
        if first is None:
            return
        # Under names of its own: two that are given may be alike to nobody but a reader of CSV.
        numbered = [str(number) for number in range(len(names))]
        for batch in _read(chain([first], chunks), numbered, dict(zip(numbered, types, strict=True)), where):
            found = dict(zip(names, batch.columns, strict=True))
            if decoder is not None:
                found |= _decoded(decoder, found.pop(_NESTED), found.pop(_UNFIT), where)
            cells = [found[field.name] for field in schema]
            yield pa.RecordBatch.from_arrays(
                [c if c.type == field.type else c.view(field.type) for c, field in zip(cells, schema, strict=True)],
                schema=schema,
            )


def _is_nested(kind: Type) -> bool:
    return isinstance(kind, Array | Map | Struct | Binary)


def _plain(kind: Type, value: sql.Composable) -> sql.Composable:
    match kind:
        case Date():
            return sql.SQL("{} - date '1970-01-01'").format(value)
        case Timestamp():
            # Exact: PostgreSQL takes the seconds apart as numeric.
            return sql.SQL("(extract(epoch from {}) * 1000000)::bigint").format(value)
        case Time():
            return sql.SQL("to_char({}, 'HH24:MI:SS.US')").format(value)
        case _:
            return value


def _carried(kind: Type) -> pa.DataType:
    """The type that is read from the text; days and moments are numbers there."""
    match kind:
        case Date():
            return pa.int32()
        case Timestamp():
            return pa.int64()
        case _:
            return arrow_type(kind)


def _read(chunks: Iterator[bytes], names: list[str], types: dict[str, pa.DataType], where: str) -> Iterator:
    # What is read at once becomes a batch, so that it has to be as much as was asked for.
    source = io.BufferedReader(_Chunks(chunks), _BUFFER)
    try:
        yield from csv.open_csv(
            source,
            csv.ReadOptions(column_names=names, block_size=_BLOCK, use_threads=False),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(
                column_types=types,
                # PostgreSQL quotes an empty text, and no null.
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
    except pa.ArrowInvalid as error:
        # It may quote a value.
        said = "a row is larger than 32 MiB" if "straddl" in str(error) else "a row cannot be read as Arrow"
        raise DestinationRefused(f"{where}: {said}; nothing was sent") from error


class _Chunks(io.RawIOBase):
    """A file that reads what comes in pieces."""

    def __init__(self, chunks: Iterator[bytes]):
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: bytearray | memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        while not self._rest:
            following = next(self._chunks, None)
            if following is None:
                return 0
            self._rest = memoryview(following)
        taken = min(len(into), len(self._rest))
        into[:taken], self._rest = self._rest[:taken], self._rest[taken:]
        return taken


def _decoded(decoder: JsonDecoder, values: pa.Array, unfit: pa.Array, where: str) -> dict[str, pa.Array]:
    named = [name for name in unfit.to_pylist() if name is not None] if unfit.null_count < len(unfit) else []
    if named:
        raise DestinationRefused(
            f"{where}: column {named[0]} has NaN, an infinity, or a day outside of the years 1 to 9999 in an array; "
            "nothing was sent; have the transform keep such rows out"
        )
    decoded = decoder.decode(values)
    if decoded.errors.null_count < len(values):
        raise StageMismatch(f"{where}: a row of the ledger cannot be read; nothing was sent")
    return dict(zip(decoded.columns.schema.names, decoded.columns.columns, strict=True))
