"""A pipeline's transform on given records: decoded, transformed and combined by the code that jobs run."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.formats.envelope import Envelope
from ratchet.ledger.work import OffsetRange
from ratchet.sinks.forms import in_one_form
from ratchet.sinks.lookup import sink_of, sinks_of
from ratchet.sinks.port import Sink
from ratchet.sinks.types import DELETED, POSITION
from ratchet.sinks.writer import check_not_null, check_own
from ratchet.spec.columns import Column
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.spec.types import is_document
from ratchet.testing.records import TIME, batch_of
from ratchet.transforms.kinds import kind_of
from ratchet.transforms.tables import TableTransform, letters, records
from ratchet.values.endpoint import Endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What became of some records, as the first transaction of a new line would show it.

    `result["orders"]` has the rows that readers of sink `orders` see: those of an Append in the order of their records,
    those of a sink with keys by key. `dead_letters` has the reason of each record that is one, by the record's number
    from 0. `given` has for each sink, `dead_letters` among them, the rows as the transform gave them, before rows of
    one key are combined, with `_partition` 0, and the record's number in `_offset`.
    """

    sinks: Mapping[str, list[Row]]
    dead_letters: Mapping[int, str]
    given: Mapping[str, list[Row]]

    def __getitem__(self, sink: str) -> list[Row]:
        return self.sinks[sink]


def run(
    spec: Pipeline,
    given: Sequence[object],
    *,
    txn_time: datetime = TIME,
    spark: SparkSession | None = None,
    endpoints: Mapping[str, Endpoint] | None = None,
) -> Result:
    """What the pipeline makes of these records, each a value or a Record.

    Without a server, but for those that formats ask, of which `endpoints` says where they are, and without Spark unless
    the transform is over DataFrames; that one runs in the session `spark`, or in a local one, which takes some seconds
    to start and is kept for later calls. Raises what a job would raise: TransformError, which says what to correct, and
    Refused with the transform's own reason.
    """
    made = _made(spec, given, txn_time, spark, endpoints or {})
    for name, table in made.items():
        check_own(sink_of(spec, name), table, [OffsetRange(spec.source.title, 0, 0, len(given))])
    rows = {sink.name: _rows(made[sink.name]) if sink.name in made else [] for sink in sinks_of(spec)}
    *declared, _ = sinks_of(spec)
    return Result(
        {sink.name: _seen(sink, made[sink.name]) if sink.name in made else [] for sink in declared},
        {row["_offset"]: row["error"] for row in rows[DEAD_LETTERS]},
        rows,
    )


def _made(
    spec: Pipeline,
    given: Sequence[object],
    txn_time: datetime,
    spark: SparkSession | None,
    endpoints: Mapping[str, Endpoint],
) -> dict[str, pa.Table]:
    """What each sink is given, dead letters too, by position; nothing of a sink that is given no row."""
    key_required = any(sink.needs_key for sink in spec.sinks)
    envelope = Envelope(spec.source, key_required=key_required, private=spec.private, endpoints=endpoints)
    opened = envelope.open(batch_of(given))
    if kind_of(spec).only_spark:
        from ratchet.testing.frames import transformed

        made = transformed(spec, opened.rows, txn_time, spark)
    else:
        made = TableTransform(spec)(records(opened.rows, txn_time)) if opened.rows.num_rows else {}
    if opened.dead.num_rows:
        of_transform = [made[DEAD_LETTERS]] if DEAD_LETTERS in made else []
        made = {
            **made,
            DEAD_LETTERS: pa.concat_tables([letters(opened.dead), *of_transform], promote_options="default"),
        }
    by_position = [(column.name, "ascending") for column in POSITION]
    return {name: table.sort_by(by_position) for name, table in made.items() if table.num_rows}


def _rows(table: pa.Table) -> list[Row]:
    return table.to_pylist(maps_as_pydicts="strict")


def _seen(sink: Sink, table: pa.Table) -> list[Row]:
    """The rows of the sink's table after these; TransformError where it takes one of them not."""
    kept = sink.combine(in_one_form(sink.name, table, sink.needed))
    check_not_null(sink, kept)
    if DELETED.name in kept.column_names:
        kept = kept.filter(pc.invert(kept.column(DELETED.name)))
    if sink.key_names:
        kept = kept.sort_by([(name, "ascending") for name in sink.key_names])
    return [{c.name: _read(c, row[c.name]) for c in sink.declared if c != DELETED} for row in kept.to_pylist()]


def _read(column: Column, value: Any) -> Any:
    """A value as a reader of the table has it: of a document its parts."""
    return json.loads(value, parse_float=Decimal) if value is not None and is_document(column.type) else value
