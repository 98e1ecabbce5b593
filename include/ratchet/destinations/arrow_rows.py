"""Rows as Arrow has them, for destinations that are files: read as CSV from PostgreSQL, each value exactly."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from ratchet.destinations import rendered
from ratchet.destinations.content import Content
from ratchet.errors import DestinationRefused, StageMismatch
from ratchet.formats.json_decoder import JsonDecoder
from ratchet.sinks.types import TXID
from ratchet.spec.columns import Column
from ratchet.spec.types import Array, Binary, Date, Map, Struct, Time, Timestamp, Type
from ratchet.values.arrow import arrow_schema, arrow_type

_NESTED, _UNFIT = "nested", "unfit"


def arrow_rows(content: Content, columns: Sequence[Column], where: str) -> Generator[pa.RecordBatch]:
    """The rows with these columns, of `arrow_schema`, in batches of some MiB; one of them is `_txid`.

    Raises as reading the content does; DestinationRefused for what cannot be kept as it is.
    """
    # A number first: of a text at the beginning the reader would take a byte-order mark away.
    plain = sorted((c for c in columns if not _is_nested(c.type)), key=lambda column: column.name != TXID.name)
    nested = tuple(column for column in columns if _is_nested(column.type))
    asked = [_plain(column.type, sql.Identifier(column.name)) for column in plain]
    names, types = [column.name for column in plain], [_carried(column.type) for column in plain]
    checked = [*nested, *(column for column in plain if isinstance(column.type, Date))]
    if checked:
        asked, names, types = [*asked, rendered.unfit_of(checked)], [*names, _UNFIT], [*types, pa.string()]
    decoder = JsonDecoder(nested) if nested else None
    if nested:
        asked, names, types = [*asked, rendered.json_of(nested)], [*names, _NESTED], [*types, pa.binary()]
    schema = arrow_schema(tuple(columns))
    with closing(content.as_csv(asked)) as chunks:
        for chunk in chunks:
            found = read_csv(chunk, names, types, where)
            if checked:
                _check(found.pop(_UNFIT), where)
            if decoder is not None:
                found |= _decoded(decoder, found.pop(_NESTED), where)
            cells = [found[field.name] for field in schema]
            yield pa.RecordBatch.from_arrays(
                [c if c.type == field.type else c.view(field.type) for c, field in zip(cells, schema, strict=True)],
                schema=schema,
            )


def _is_nested(kind: Type) -> bool:
    return isinstance(kind, Array | Map | Struct | Binary)


def _plain(kind: Type, value: sql.Composable) -> sql.Composable:
    match kind:
        case Date() | Timestamp():
            return rendered.number_of(kind, value)
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


def read_csv(chunk: bytes, names: list[str], types: list[pa.DataType], where: str) -> dict[str, pa.Array]:
    """The columns of whole rows of CSV as PostgreSQL gives it.

    Nothing is read ahead, so that no thread is left with the cursor.
    """
    # Under names of its own: a column may be called as one that is added here.
    numbered = [str(number) for number in range(len(names))]
    try:
        read = csv.read_csv(
            pa.BufferReader(chunk),
            csv.ReadOptions(column_names=numbered, block_size=len(chunk) + 1, use_threads=False),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(
                column_types=dict(zip(numbered, types, strict=True)),
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
        raise DestinationRefused(f"{where}: a row cannot be read as Arrow; nothing was sent") from error
    return {name: column.combine_chunks() for name, column in zip(names, read.columns, strict=True)}


def _check(unfit: pa.Array, where: str) -> None:
    named = unfit.drop_null()
    if len(named):
        raise DestinationRefused(
            f"{where}: column {named[0]} has a day outside of the years 1 to 9999, or NaN or an infinity in an array; "
            "nothing was sent; have the transform keep such rows out"
        )


def _decoded(decoder: JsonDecoder, values: pa.Array, where: str) -> dict[str, pa.Array]:
    decoded = decoder.decode(values)
    if decoded.errors.null_count < len(values):
        raise StageMismatch(f"{where}: a row of the ledger cannot be read; nothing was sent")
    return dict(zip(decoded.columns.schema.names, decoded.columns.columns, strict=True))
