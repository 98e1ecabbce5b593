"""Dead letters as a source: the records that a release takes, from the bytes that the ledger holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import select

from ratchet.ledger import letters
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import dead_letter_deltas
from ratchet.ledger.work import OffsetRange, SliceWork
from ratchet.source.port import HEADERS, TIMESTAMP

SCHEMA = pa.schema(
    {
        "_partition": pa.int32(),
        "_offset": pa.int64(),
        "_timestamp": TIMESTAMP,
        "_key": pa.binary(),
        "_value": pa.binary(),
        "_headers": HEADERS,
    }
)
"""A record as a row; `_timestamp` is null where it was no time that calendars have."""
_ROWS, _BYTES = 10_000, 8 * 2**20
"""A batch has so many records, or so many bytes, at most one record more."""
_FETCHED = 100
"""So many records are asked for at once: each may have a megabyte."""


@dataclass(frozen=True)
class Letters:
    """The dead letters of a committed transaction whose errors contain a text; carried to the workers by value."""

    ledger_url: str
    pipeline: str
    txid: int
    errors: str

    def __repr__(self) -> str:
        # The URL holds a password, and Spark may print a plan.
        return f"Letters({self.pipeline}, {self.txid})"

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Those of these ranges, in offset order within a partition; raises LedgerUnreachable."""
        c = dead_letter_deltas.c
        query = select(c._partition, c._offset, c.timestamp, c.key, c.value, c.headers)
        query = query.where(*letters.taken(self.pipeline, self.txid, self.errors), letters.within(ranges))
        with Ledger(self.ledger_url, name="ratchet letters") as ledger, ledger.snapshot() as conn:
            found = conn.execute(query.order_by(c._partition, c._offset), execution_options={"yield_per": _FETCHED})
            waiting: list[tuple[Any, ...]] = []
            size = 0
            for row in found:
                waiting.append((*row[:5], _headers(row.headers)))
                size += sum(len(cell) for cell in row[3:] if cell is not None)
                if len(waiting) == _ROWS or size >= _BYTES:
                    yield _batch(waiting)
                    waiting, size = [], 0
            if waiting:
                yield _batch(waiting)


def letters_of(work: SliceWork, ledger_url: str) -> Letters | None:
    """Where a release has the records of a slice from; None where Kafka has them."""
    if work.releases is None:
        return None
    return Letters(ledger_url, work.token.pipeline, work.token.txid, work.releases)


def _batch(rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _headers(stored: str | None) -> list[dict[str, Any]] | None:
    """The headers from the form in which dead letters have them."""
    if stored is None:
        return None
    return [{"key": key, "value": value} for key, value in letters.headers(json.loads(stored))]
