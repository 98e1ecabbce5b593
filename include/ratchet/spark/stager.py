"""The stager: rows go from Spark's tasks straight into the stage, as Arrow batches and binary COPY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg import sql
from pyspark import TaskContext
from pyspark.sql import DataFrame

from ratchet.columns import Column
from ratchet.errors import Fenced
from ratchet.schema import STAGE_SCHEMA
from ratchet.spark.checksum import MODULUS, spark_hash
from ratchet.transaction import SinkVote, SliceToken, Tag

_REPORT = "partition int, attempt bigint, rows bigint, checksum string"


def stage(frame: DataFrame, relation: str, columns: Sequence[Column], token: SliceToken, ledger_url: str) -> SinkVote:
    """Stage the frame's rows under this try's tags; the vote names only the attempts that Spark accepted.

    A task that Spark runs twice stages its rows twice, under two attempts; the driver hears of one.
    """
    copying = Copying(relation, token, ledger_url)
    reports = frame.withColumn("_hash", spark_hash(columns)).mapInArrow(copying, _REPORT).collect()
    counted = [r for r in reports if r.rows]
    return SinkVote(
        tags=tuple(sorted((Tag(r.partition, r.attempt) for r in counted), key=lambda t: (t.partition, t.attempt))),
        rows=sum(r.rows for r in counted),
        checksum=sum(int(r.checksum) for r in counted) % MODULUS,
    )


@dataclass(frozen=True)
class Copying:
    """What each Spark task does with its batches; carried to the workers by value."""

    relation: str
    token: SliceToken
    ledger_url: str

    def __repr__(self) -> str:
        # The URL holds a password, and Spark may print a plan.
        return f"Copying({self.relation}, {self.token})"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy the batches in one database transaction, and report one row; no rows, no transaction."""
        task = TaskContext.get()
        partition, attempt = task.partitionId(), task.taskAttemptId()
        first = next((b for b in batches if b.num_rows), None)
        if first is None:
            return
        rows, checksum = 0, 0
        with psycopg.connect(self.ledger_url, connect_timeout=10, application_name="ratchet stage") as conn:
            with conn.cursor() as cursor, cursor.copy(self._copy()) as copy:
                encoder = None
                for batch in _chain(first, batches):
                    checksum += int(batch.column("_hash").to_numpy().view(np.uint64).sum())
                    tagged = self._tag(batch, partition, attempt)
                    if encoder is None:
                        encoder = ArrowToPostgresBinaryEncoder(tagged.schema)
                        copy.write(encoder.write_header())
                    copy.write(encoder.write_batch(tagged))
                    rows += batch.num_rows
                copy.write(encoder.finish())
            self._check_try(conn)
        report = {"partition": [partition], "attempt": [attempt], "rows": [rows], "checksum": [str(checksum % MODULUS)]}
        kinds = [pa.int32(), pa.int64(), pa.int64(), pa.string()]
        yield pa.record_batch([pa.array(v, k) for v, k in zip(report.values(), kinds, strict=True)], list(report))

    def _copy(self) -> sql.Composed:
        return sql.SQL("copy {} from stdin (format binary)").format(sql.Identifier(STAGE_SCHEMA, self.relation))

    def _tag(self, batch: pa.RecordBatch, partition: int, attempt: int) -> pa.RecordBatch:
        """The batch with the four tags in front and without the hash."""
        count, token = batch.num_rows, self.token
        tags = {
            "_slice": np.full(count, token.slice, np.int32),
            "_try": np.full(count, token.try_number, np.int32),
            "_task_partition": np.full(count, partition, np.int32),
            "_task_attempt": np.full(count, attempt, np.int64),
        }
        kept = [name for name in batch.schema.names if name != "_hash"]
        arrays = [*map(pa.array, tags.values()), *(batch.column(name) for name in kept)]
        return pa.record_batch(arrays, [*tags, *kept])

    def _check_try(self, conn: psycopg.Connection) -> None:
        """The last statements, locks in the order transaction, slice: no row may enter a stage of an epoch that is
        over, or of a slice that has voted or has a newer try.
        """
        token = self.token
        open_ = conn.execute(
            """
            select 1 from ratchet.transactions
            where pipeline = %s and txid = %s and revision = %s and epoch = %s and state = 'OPEN'
            for share
            """,
            (token.pipeline, token.txid, token.revision, token.epoch),
        ).fetchone()
        current = (
            open_
            and conn.execute(
                """
            select 1 from ratchet.slices
            where pipeline = %s and txid = %s and epoch = %s and slice = %s and try_number = %s and voted_at is null
            for share
            """,
                (token.pipeline, token.txid, token.epoch, token.slice, token.try_number),
            ).fetchone()
        )
        if current is None:
            raise Fenced(
                f"{token.pipeline}: transaction {token.txid}, slice {token.slice}, try {token.try_number}: a newer try "
                "has the slice, it has voted, or its epoch is over; nothing was staged"
            )


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from (b for b in rest if b.num_rows)
