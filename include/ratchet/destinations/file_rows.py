"""Rows as files have them, a batch for each directory: as Arrow for Parquet, as lines of text for CSV and JSON."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import csv
import io
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.destinations import rendered
from ratchet.destinations.arrow_rows import arrow_rows, read_csv
from ratchet.destinations.content import Content
from ratchet.destinations.files import LEVELS, FileFormat
from ratchet.errors import DestinationRefused
from ratchet.sinks.types import SENT, TXID
from ratchet.spec.columns import Column

LINE, _UNFIT = "_ratchet_line", "_ratchet_unfit"
"""The one column of rows that are text."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What every reader of directories takes for null."""
_LONGEST = 255
"""So many bytes the name of a directory may have."""


def kept(fields: Sequence[Column], by: Sequence[str]) -> tuple[Column, ...]:
    """The columns that files have, in their order: all but those that are names of directories."""
    return tuple(column for column in (*fields, *SENT) if column.name not in by)


def header_of(fields: Sequence[Column], by: Sequence[str]) -> bytes:
    """The first line of a file of CSV: the names of its columns."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerow([column.name for column in kept(fields, by)])
    return written.getvalue().encode()


def rows_of(content: Content, form: FileFormat, by: Sequence[str], where: str) -> Generator[tuple[str, pa.RecordBatch]]:
    """The directory of some rows, below that of their version, and the rows; DestinationRefused for what is not kept
    as it is.
    """
    columns = kept(content.fields, by)
    with closing(_arrow(content, by, where) if form == "parquet" else _lines(content, form, by, where)) as batches:
        for batch in batches:
            for place, part in _divided(batch, by, where):
                names = [column.name for column in columns] if form == "parquet" else [LINE]
                yield place, part.select(names)


def _arrow(content: Content, by: Sequence[str], where: str) -> Generator[pa.RecordBatch]:
    return arrow_rows(content, content.columns, where)


def _lines(content: Content, form: FileFormat, by: Sequence[str], where: str) -> Generator[pa.RecordBatch]:
    known = {column.name: column for column in content.fields}
    divided = (TXID, *(known[name] for name in by))
    columns = kept(content.fields, by)
    line = rendered.json_of(columns) if form == "json" else rendered.csv_of(columns)
    keys = [rendered.key_of(column) for column in divided]
    # A number first: of a text at the beginning the reader would take a byte-order mark away.
    names, types = [*(column.name for column in divided), _UNFIT, LINE], [pa.int64(), *[pa.string()] * (len(by) + 2)]
    with closing(content.as_csv([*keys, rendered.unfit_of(content.fields), line])) as chunks:
        for chunk in chunks:
            found = read_csv(chunk, names, types, where)
            unfit = found[_UNFIT].drop_null()
            if len(unfit):
                raise DestinationRefused(
                    f"{where}: column {unfit[0]} has a value that {form.upper()} does not hold (NaN, an infinity, "
                    "JSON's null, a day outside of the years 1 to 9999); nothing was sent; have the transform keep "
                    "such rows out, or take Parquet"
                )
            yield pa.RecordBatch.from_pydict(found)


def _divided(batch: pa.RecordBatch, by: Sequence[str], where: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    levels = [(LEVELS[1], TXID.name), *((name, name) for name in by)]
    places = [_named(level, batch.column(name), where) for level, name in levels]
    of = pc.binary_join_element_wise(*places, "/").dictionary_encode()
    if len(of.dictionary) == 1:
        yield of.dictionary[0].as_py(), batch
        return
    # The order within a directory stays: the sort is stable.
    batch, begins = batch.take(pc.sort_indices(of.indices)), 0
    counts = {count["values"]: count["counts"] for count in pc.value_counts(of.indices).to_pylist()}
    for number, place in enumerate(of.dictionary.to_pylist()):
        yield place, batch.slice(begins, counts[number])
        begins += counts[number]


def _named(level: str, values: pa.Array, where: str) -> pa.Array:
    """For each value the name of its directory, as Hive has it."""
    of = values.dictionary_encode(null_encoding="encode")
    texts = [_text(level, value, where) for value in of.dictionary.cast(pa.string()).to_pylist()]
    return pa.array(texts, pa.string()).take(of.indices)


def _text(level: str, value: str | None, where: str) -> str:
    if value == "" or value == _NO_VALUE:
        said = value or "an empty text"
        raise DestinationRefused(
            f"{where}: column {level}, by which the files are divided, has {said}, which readers do not tell from "
            "null; nothing was sent; have the transform write null, or another text"
        )
    name = f"{level}={_NO_VALUE if value is None else quote(value, safe='')}"
    if len(name.encode()) > _LONGEST:
        raise DestinationRefused(
            f"{where}: column {level}, by which the files are divided, has a text of {len(value or ''):,} characters, "
            f"and the name of a directory has {_LONGEST} at most; nothing was sent; divide by another column"
        )
    return name
