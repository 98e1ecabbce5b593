"""The worker lane: a job of one stage, in which each task reads, decodes, transforms, combines and writes its part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from ratchet.errors import OtherCode
from ratchet.ledger.work import SinkVote, Tag
from ratchet.sinks.checksum import MODULUS
from ratchet.sinks.lookup import sink_of, sinks_of
from ratchet.sinks.types import DELETED, POSITION
from ratchet.sinks.writer import Into, Writer
from ratchet.spark.data_types import data_type
from ratchet.spark.intake import Intake
from ratchet.spark.tally import Tally
from ratchet.spark.withholding import withholding
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.transforms.tables import TableTransform, letters, records

_REPORT = "written string, tally string"
_ARROW = pa.schema([("written", pa.string()), ("tally", pa.string())])


@dataclass(frozen=True)
class WorkerLane:
    """What each task does; carried to the workers by value."""

    spec: Pipeline
    code_hash: str
    intake: Intake
    into: Into
    txn_time: datetime

    @property
    def private(self) -> bool:
        return self.spec.private

    @withholding
    def __call__(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write this task's part of the slice into all sinks in one pass, and report it in one row.

        Memory is bounded by a batch of the source and by what the writer keeps of each sink.
        """
        task = TaskContext.get()
        assert task is not None
        tag, tally = Tag(task.partitionId(), task.taskAttemptId()), Tally()
        if self.spec.code_hash != self.code_hash:
            raise OtherCode(
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
            done = writer.finish()
        written = {name: [of.writer, of.rows, str(of.checksum)] for name, of in done.items() if of.rows}
        cells = [[json.dumps(written)], [tally.to_json()]]
        yield pa.RecordBatch.from_arrays(
            [pa.array(cell, kind) for cell, kind in zip(cells, _ARROW.types, strict=True)], schema=_ARROW
        )


@dataclass(frozen=True)
class Giving:
    """What each task gives one sink, without writing it."""

    spec: Pipeline
    intake: Intake
    txn_time: datetime
    sink: str

    @property
    def private(self) -> bool:
        return self.spec.private

    @withholding
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
    hidden = [DELETED] if DELETED in sink.written else []
    fields = [StructField(c.name, data_type(c.type)) for c in (*sink.needed, *hidden, *POSITION)]
    return given.mapInArrow(giving, StructType(fields))


def run(given: DataFrame, lane: WorkerLane) -> tuple[dict[str, SinkVote], Tally]:
    """Run the lane over a frame of part numbers, or of records; votes name the writers of accepted attempts."""
    reports = given.mapInArrow(lane, _REPORT).collect()
    told = [json.loads(r.written) for r in reports]
    votes: dict[str, SinkVote] = {}
    for sink in sinks_of(lane.spec):
        mine = [written[sink.name] for written in told if sink.name in written]
        checksum = sum(int(checksum) for _, _, checksum in mine) % MODULUS
        votes[sink.name] = SinkVote(tuple(sorted(w for w, _, _ in mine)), sum(rows for _, rows, _ in mine), checksum)
    return votes, Tally.sum(r.tally for r in reports)
