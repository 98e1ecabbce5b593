"""Writing from Spark: what each task does with its rows, and what the driver hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from ratchet.ledger.work import OffsetRange, SinkVote, Tag
from ratchet.sinks.binary import COPY_ENDS, encoder_of, wire_batch
from ratchet.sinks.checksum import MODULUS, batch_checksum
from ratchet.sinks.forms import in_one_form
from ratchet.sinks.port import Sink
from ratchet.sinks.writer import Into, Writer, check_own
from ratchet.spark.withholding import withholding

PART_BYTES = 2**20
"""So much is sent to the driver at once, or one row where that is more."""

_REPORT = "writer bigint, rows bigint, checksum string"


@dataclass(frozen=True)
class Writing:
    """What each Spark task does with its rows for one sink; carried to the workers by value."""

    sink: Sink
    into: Into

    @property
    def private(self) -> bool:
        return self.into.private

    @withholding
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the batches as a writer of this attempt's own, and report it in one row; no rows, no report."""
        task = TaskContext.get()
        assert task is not None
        tag = Tag(task.partitionId(), task.taskAttemptId())
        with Writer(self.into, tag, (self.sink,)) as writer:
            for batch in batches:
                writer.write(self.sink, pa.Table.from_batches([batch]))
            done = writer.finish()[self.sink.name]
        if done.rows:
            cells = [[done.writer], [done.rows], [str(done.checksum)]]
            kinds = [pa.int64(), pa.int64(), pa.string()]
            arrays = [pa.array(cell, kind) for cell, kind in zip(cells, kinds, strict=True)]
            yield pa.record_batch(arrays, ["writer", "rows", "checksum"])


def write(rows: DataFrame, sink: Sink, into: Into) -> SinkVote:
    """Write rows; the vote names only the writers of attempts that Spark accepted.

    A task that Spark runs twice writes its rows twice, as two writers; the driver hears of one.
    """
    reports = rows.mapInArrow(Writing(sink, into), _REPORT).collect()
    return SinkVote(
        writers=tuple(sorted(r.writer for r in reports)),
        rows=sum(r.rows for r in reports),
        checksum=sum(int(r.checksum) for r in reports) % MODULUS,
    )


@dataclass(frozen=True)
class _Keeping:
    """What a task would keep of its rows for one sink; nothing is written. Carried to the workers by value."""

    sink: Sink
    ranges: tuple[OffsetRange, ...]
    private: bool

    def _kept(self, batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
        """All rows of a task as its sink keeps them: combined, written columns only; None where there are none."""
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if not tables:
            return None
        rows = in_one_form(self.sink.name, pa.concat_tables(tables), self.sink.needed, private=self.private)
        check_own(self.sink, rows, self.ranges)
        kept = self.sink.combine(rows).select([c.name for c in self.sink.written])
        return kept if kept.num_rows else None


@dataclass(frozen=True)
class Summing(_Keeping):
    """What a task would have kept of its rows; nothing is written."""

    @withholding
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Report how many rows are kept, with their checksum."""
        kept = self._kept(batches)
        if kept is None:
            return
        checksum = sum(batch_checksum(self.sink.written, batch) for batch in kept.combine_chunks().to_batches())
        arrays = [pa.array([kept.num_rows], pa.int64()), pa.array([str(checksum % MODULUS)])]
        yield pa.record_batch(arrays, ["rows", "checksum"])


@dataclass(frozen=True)
class Encoding(_Keeping):
    """The same rows, as PostgreSQL's binary COPY has them, in parts."""

    @withholding
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each part."""
        kept = self._kept(batches)
        if kept is None:
            return
        batches = kept.combine_chunks().to_batches(max_chunksize=max(1, kept.num_rows * PART_BYTES // kept.nbytes))
        wired = [wire_batch(batch, self.sink.written) for batch in batches]
        encoder = encoder_of(wired[0].schema, self.sink.written)
        # Each task's rows are the middle of one COPY.
        encoder.write_header()
        for batch in wired:
            yield _part(encoder.write_batch(batch))
        # The encoder keeps some of what it was given.
        yield _part(encoder.finish().removesuffix(COPY_ENDS))


def _part(encoded: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array([encoded], pa.binary())], ["part"])


def summed(rows: DataFrame, sink: Sink, ranges: tuple[OffsetRange, ...], private: bool = False) -> tuple[int, int]:
    """(rows, checksum) of what a sink would keep of these rows, one row a key where it has keys."""
    reports = _by_key(rows, sink).mapInArrow(Summing(sink, ranges, private), "rows bigint, checksum string").collect()
    return sum(r.rows for r in reports), sum(int(r.checksum) for r in reports) % MODULUS


def encoded(rows: DataFrame, sink: Sink, ranges: tuple[OffsetRange, ...], private: bool = False) -> Iterator[bytes]:
    """What a sink would keep of these rows, in binary, task by task."""
    parts = _by_key(rows, sink).mapInArrow(Encoding(sink, ranges, private), "part binary").toLocalIterator()
    return (bytes(row.part) for row in parts)


def _by_key(rows: DataFrame, sink: Sink) -> DataFrame:
    return rows.repartition(*sink.key_names) if sink.key_names else rows
