"""The worker lane: a job of one stage, in which each task reads, decodes, transforms, combines and stages its part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from ratchet.errors import TransformError
from ratchet.ledger.work import SinkVote, Tag
from ratchet.sinks.checksum import MODULUS
from ratchet.sinks.lookup import sink_of, sinks_of
from ratchet.sinks.types import DELETED, POSITION
from ratchet.sinks.writer import Into, Writer
from ratchet.spark.intake import Intake
from ratchet.spark.tally import Tally
from ratchet.spark.types import data_type
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.transforms.tables import TableTransform, letters

_REPORT = "partition int, attempt bigint, written string, tally string"
_ARROW = pa.schema(
    [("partition", pa.int32()), ("attempt", pa.int64()), ("written", pa.string()), ("tally", pa.string())]
)


@dataclass(frozen=True)
class WorkerLane:
    """What each task does; carried to the workers by value."""

    spec: Pipeline
    code_hash: str
    intake: Intake
    into: Into
    txn_time: datetime

    def __call__(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage this task's part of the slice in all sinks in one pass, and report it in one row.

        Memory is bounded by a batch of the source and by what the writer keeps of each sink.
        """
        task = TaskContext.get()
        assert task is not None
        tag, tally = Tag(task.partitionId(), task.taskAttemptId()), Tally()
        if self.spec.code_hash != self.code_hash:
            raise TransformError(
                f"{self.spec.name}: this worker has code {self.spec.code_hash}, the driver {self.code_hash}; install "
                "the same version on every machine of the cluster"
            )
        transform, sinks = TableTransform(self.spec), sinks_of(self.spec)
        by_name = {sink.name: sink for sink in sinks}
        with Writer(self.into, tag, sinks) as writer:
            for opened in self.intake.opened(given, tally):
                if opened.rows.num_rows:
                    for name, rows in transform(records(opened.rows, self.txn_time)).items():
                        writer.write(by_name[name], rows)
                if opened.dead.num_rows:
                    writer.write(by_name[DEAD_LETTERS], letters(opened.dead))
            written = {name: [done.rows, str(done.checksum)] for name, done in writer.finish().items() if done.rows}
        cells = [[tag.partition], [tag.attempt], [json.dumps(written)], [tally.to_json()]]
        yield pa.RecordBatch.from_arrays(
            [pa.array(cell, kind) for cell, kind in zip(cells, _ARROW.types, strict=True)], schema=_ARROW
        )


@dataclass(frozen=True)
class Giving:
    """What each task gives one sink, without staging it."""

    spec: Pipeline
    intake: Intake
    txn_time: datetime
    sink: str

    def __call__(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the sink needs, batch by batch."""
        transform = TableTransform(self.spec)
        for opened in self.intake.opened(given, Tally()):
            tables: list[pa.Table] = []
            if opened.rows.num_rows:
                made = transform(records(opened.rows, self.txn_time))
                tables += [made[self.sink]] if self.sink in made else []
            if opened.dead.num_rows and self.sink == DEAD_LETTERS:
                tables.append(letters(opened.dead))
            for table in tables:
                yield from table.to_batches()


def rows_of(given: DataFrame, giving: Giving) -> DataFrame:
    """What a sink is given of a slice, as a frame."""
    sink = sink_of(giving.spec, giving.sink)
    hidden = [DELETED] if DELETED in sink.staged else []
    fields = [StructField(c.name, data_type(c.type)) for c in (*sink.needed, *hidden, *POSITION)]
    return given.mapInArrow(giving, StructType(fields))


def records(rows: pa.RecordBatch, txn_time: datetime) -> pa.Table:
    """Good records as a transform is given them."""
    time = pa.repeat(pa.scalar(txn_time, pa.timestamp("us", "UTC")), rows.num_rows)
    return pa.Table.from_batches([rows]).append_column("_txn_time", time)


def run(given: DataFrame, lane: WorkerLane) -> tuple[dict[str, SinkVote], Tally]:
    """Run the lane over a frame of part numbers, or of records; the votes name the attempts that Spark accepted."""
    reports = given.mapInArrow(lane, _REPORT).collect()
    votes: dict[str, SinkVote] = {}
    for sink in sinks_of(lane.spec):
        mine = [(r, json.loads(r.written)[sink.name]) for r in reports if sink.name in json.loads(r.written)]
        tags = sorted((Tag(r.partition, r.attempt) for r, _ in mine), key=lambda t: (t.partition, t.attempt))
        checksum = sum(int(written[1]) for _, written in mine) % MODULUS
        votes[sink.name] = SinkVote(tuple(tags), sum(written[0] for _, written in mine), checksum)
    return votes, Tally.sum(r.tally for r in reports)
