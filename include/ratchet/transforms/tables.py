"""Transforms over Arrow tables, and those by name alone: what each sink is given of a batch of records."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.sinks.types import DELETED, POSITION
from ratchet.spec.columns import Column
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.spec.types import NAMED, WIDER
from ratchet.transforms.result import (
    GIVEN_UP,
    RECORD_PARTS,
    check_names,
    lost_column,
    missing_column,
    other_type,
    raised,
)
from ratchet.values.arrow import arrow_type

_SAME = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
"""Other forms of the same values."""


class TableTransform:
    """What a pipeline makes of a batch of good records; without a function every sink takes columns by name.

    The result for a record must not depend on which others are beside it: where batches end is nobody's promise.
    """

    def __init__(self, spec: Pipeline):
        self._spec = spec
        self._sinks = sinks_of(spec)
        self._function = spec.load_transform()

    def __call__(self, records: pa.Table) -> dict[str, pa.Table]:
        """{sink: the columns that it needs, and where they come from}; dead letters only where there are some.

        Raises TransformError, which says what to correct, or what the transform raises of ratchet's own.
        """
        spec = self._spec
        if self._function is None:
            result: dict[str, pa.Table] = {sink.name: records for sink in spec.sinks}
        else:
            try:
                returned = self._function(records)
            except Exception as error:
                told = raised(spec, error)
                if told is error:
                    raise
                if spec.private:
                    raise told from None
                # Spark's workers leave out what has led to an error: the lines of a person's own go with it.
                raise told.with_traceback(error.__traceback__) from error
            result = check_names(spec, returned, pa.Table, "Table")
        *declared, letters = self._sinks
        given = {sink.name: self._rows(sink, result[sink.name]) for sink in declared}
        if DEAD_LETTERS in result and result[DEAD_LETTERS].num_rows:
            given[DEAD_LETTERS] = self._rows(letters, _letters(spec, result[DEAD_LETTERS]))
        return given

    def _rows(self, sink: Sink, table: pa.Table) -> pa.Table:
        names = table.column_names
        deletes = DELETED in sink.written and self._spec.source.deletes
        for hidden in ("_partition", "_offset", *([DELETED.name] if deletes else [])):
            if hidden not in names:
                raise lost_column(self._spec, sink.name, hidden)
        given = {column.name: self._picked(sink, table, column) for column in sink.needed}
        if DELETED in sink.written:
            given[DELETED.name] = _or_default(table, DELETED, False)
        for place in POSITION[:2]:
            given[place.name] = table.column(place.name).cast(arrow_type(place.type))
        given["_n"] = _or_default(table, POSITION[2], 0)
        return pa.table(given)

    def _picked(self, sink: Sink, table: pa.Table, column: Column) -> pa.ChunkedArray:
        """A declared column, widened where nothing is lost."""
        if column.name not in table.column_names:
            raise missing_column(self._spec, sink.name, column, table.column_names)
        found = table.column(column.name)
        wanted, actual = arrow_type(column.type), _SAME.get(found.type, found.type)
        narrower = [arrow_type(kind) for kind, wider in WIDER.items() if column.type in wider]
        if actual not in (wanted, pa.null(), *narrower):
            raise other_type(self._spec, sink.name, column, _said(actual))
        return found.cast(wanted)


def records(rows: pa.RecordBatch, txn_time: datetime) -> pa.Table:
    """Good records as a transform is given them, with the time of their transaction."""
    time = pa.repeat(pa.scalar(txn_time, pa.timestamp("us", "UTC")), rows.num_rows)
    return pa.Table.from_batches([rows]).append_column("_txn_time", time)


def letters(dead: pa.RecordBatch) -> pa.Table:
    """Records that could not be decoded, with `_record` and `error`, as the dead letters' sink needs them."""
    table = pa.Table.from_batches([dead])
    record = table.column("_record").combine_chunks()
    parts = {part: pc.struct_field(record, part) for part in RECORD_PARTS}
    place = {name: table.column(name) for name in ("_partition", "_offset", "_n")}
    return pa.table({**parts, "error": table.column("error"), **place})


def _letters(spec: Pipeline, table: pa.Table) -> pa.Table:
    """What the transform gave up, with the record's bytes and its reason as columns of their own."""
    if "_record" not in table.column_names:
        raise lost_column(spec, DEAD_LETTERS, "_record")
    record = table.column("_record").combine_chunks()
    given = {part: pc.struct_field(record, part) for part in RECORD_PARTS}
    nothing = pa.nulls(table.num_rows, pa.string())
    # What the transform says may hold values.
    has_reason = "error" in table.column_names and not spec.private
    error = table.column("error") if has_reason else pa.chunked_array([nothing])
    place = {name: table.column(name) for name in ("_partition", "_offset") if name in table.column_names}
    return pa.table({**given, "error": pc.fill_null(error.cast(pa.string()), GIVEN_UP), **place})


def _or_default(table: pa.Table, column: Column, otherwise: object) -> pa.ChunkedArray:
    kind = arrow_type(column.type)
    if column.name not in table.column_names:
        return pa.chunked_array([pa.repeat(pa.scalar(otherwise, kind), table.num_rows)])
    return pc.fill_null(table.column(column.name).cast(kind), otherwise)


def _said(actual: pa.DataType) -> str:
    """An Arrow type as a declaration names it, where there is such a name."""
    named = {arrow_type(kind): name for name, kind in reversed(NAMED.items())}
    if pa.types.is_decimal128(actual):
        return f"decimal({actual.precision},{actual.scale})"
    return named.get(actual, f"an Arrow {actual}")
