"""Arrow batches into a plain table by binary COPY, and a plain loop from Kafka into one, which guarantees nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psycopg
import pyarrow as pa
from psycopg import sql

from benchmarks.backlog import COLUMNS
from ratchet.formats.json import Json
from ratchet.formats.port import Use, decoder_of
from ratchet.ledger.work import OffsetRange
from ratchet.sinks.binary import encoder_of
from ratchet.source.columnar import ColumnarSource
from ratchet.spec.columns import parse_columns

PROCESSES = 2
"""One for each core."""
BUFFER_ROWS = 100_000
"""Rows of one COPY, as ratchet's writers have them."""


def copy_rows(conn: psycopg.Connection, table: str, batch: pa.RecordBatch) -> None:
    """Send one batch, whose columns are named as the table's."""
    columns = sql.SQL(", ").join(map(sql.Identifier, batch.schema.names))
    statement = sql.SQL("copy {} ({}) from stdin (format binary)").format(sql.Identifier(table), columns)
    encoder = encoder_of(batch.schema, parse_columns(COLUMNS))
    with conn.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(encoder.write_header())
        copy.write(encoder.write_batch(batch))
        copy.write(encoder.finish())


class PlainLoop:
    """Processes that stay warm, as Spark's workers do; a context manager that ends them."""

    def __init__(self, kafka: dict[str, str], ledger_url: str):
        self._kafka, self._url = kafka, ledger_url
        self._pool = ProcessPoolExecutor(PROCESSES, get_context("spawn"))

    def __enter__(self) -> PlainLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def load(self, table: str, ranges: Sequence[OffsetRange]) -> None:
        """Read, decode and write ranges, half of the partitions in each process."""
        partitions = sorted({r.partition for r in ranges})
        shares = [[r for r in ranges if r.partition in partitions[n::PROCESSES]] for n in range(PROCESSES)]
        for done in [self._pool.submit(_load, self._kafka, self._url, table, share) for share in shares if share]:
            done.result()


def _load(kafka: dict[str, str], ledger_url: str, table: str, ranges: list[OffsetRange]) -> None:
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        waiting: list[pa.RecordBatch] = []
        for rows in _decoded(kafka, ranges):
            waiting.append(rows)
            if sum(batch.num_rows for batch in waiting) >= BUFFER_ROWS:
                copy_rows(conn, table, pa.concat_batches(waiting))
                waiting.clear()
        if waiting:
            copy_rows(conn, table, pa.concat_batches(waiting))


def _decoded(kafka: dict[str, str], ranges: list[OffsetRange]) -> Iterator[pa.RecordBatch]:
    decoder = decoder_of(Json(COLUMNS), Use())
    # The source takes the ranges of one partition one after the other.
    for batch in ColumnarSource(kafka).read(ranges):
        rows = decoder.decode(batch.column("_value")).columns
        places = {name: batch.column(name) for name in ("_partition", "_offset")}
        yield pa.record_batch([*rows.columns, *places.values()], [*rows.schema.names, *places])
