"""The stager: rows go from Spark's tasks straight into the stage, as Arrow batches and binary COPY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ratchet.errors import Fenced, LedgerUnreachable, StagingFailed, TransformError
from ratchet.ledger.connection import PATIENCE, bound
from ratchet.ledger.schema import STAGE_SCHEMA
from ratchet.ledger.work import SinkVote, SliceToken, Tag
from ratchet.sinks.binary import encoder_of, wire_batch
from ratchet.sinks.checksum import MODULUS, spark_hash
from ratchet.spec.columns import Column

_REPORT = "partition int, attempt bigint, rows bigint, checksum string"


@dataclass(frozen=True)
class Stage:
    """Where the rows of a sink are staged: the table `relation`, in the database at `ledger_url`."""

    sink: str
    relation: str
    ledger_url: str

    def __repr__(self) -> str:
        # The URL holds a password, and Spark may print a plan.
        return f"Stage({self.sink}, {self.relation})"


def stage(frame: DataFrame, into: Stage, columns: Sequence[Column], token: SliceToken) -> SinkVote:
    """Stage the frame's rows under this try's tags; the vote names only the attempts that Spark accepted.

    A task that Spark runs twice stages its rows twice, under two attempts; the driver hears of one.
    """
    copying = Copying(into, token, tuple(columns))
    reports = frame.withColumn("_hash", spark_hash(columns)).mapInArrow(copying, _REPORT).collect()
    counted = [r for r in reports if r.rows]
    return SinkVote(
        tags=tuple(sorted((Tag(r.partition, r.attempt) for r in counted), key=lambda t: (t.partition, t.attempt))),
        rows=sum(r.rows for r in counted),
        checksum=sum(int(r.checksum) for r in counted) % MODULUS,
    )


def summed(frame: DataFrame, columns: Sequence[Column]) -> tuple[int, int]:
    """(rows, checksum) of a frame, as a vote would have them."""
    hashes = frame.select(spark_hash(columns).cast("decimal(38,0)").alias("hash"))
    rows, total = hashes.agg(F.count(F.lit(1)), F.sum("hash")).collect()[0]
    return rows, int(total or 0) % MODULUS


_ENDED = (
    psycopg.errors.AdminShutdown,
    psycopg.errors.CrashShutdown,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
"""With these PostgreSQL ends the session, which this end may notice later."""


@dataclass(frozen=True)
class Copying:
    """What each Spark task does with its batches; carried to the workers by value."""

    into: Stage
    token: SliceToken
    columns: tuple[Column, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy the batches in one database transaction, and report one row; no rows, no transaction.

        Raises Fenced, TransformError for a row that the stage does not take, StagingFailed, LedgerUnreachable.
        """
        task = TaskContext.get()
        partition, attempt = task.partitionId(), task.taskAttemptId()
        first = next((b for b in batches if b.num_rows), None)
        if first is None:
            return
        rows, checksum = 0, 0
        with self._told(), self._connect() as conn, self._refusals_told(conn):
            with conn.cursor() as cursor, cursor.copy(self._copy()) as copy:
                encoder = None
                for batch in _chain(first, batches):
                    checksum += int(batch.column("_hash").to_numpy().view(np.uint64).sum())
                    tagged = wire_batch(self._tag(batch, partition, attempt), self.columns)
                    if encoder is None:
                        encoder = encoder_of(tagged.schema, self.columns)
                        copy.write(encoder.write_header())
                    copy.write(encoder.write_batch(tagged))
                    rows += batch.num_rows
                copy.write(encoder.finish())
            self._check_try(conn)
        report = {"partition": [partition], "attempt": [attempt], "rows": [rows], "checksum": [str(checksum % MODULUS)]}
        kinds = [pa.int32(), pa.int64(), pa.int64(), pa.string()]
        yield pa.record_batch([pa.array(v, k) for v, k in zip(report.values(), kinds, strict=True)], list(report))

    def _copy(self) -> sql.Composed:
        return sql.SQL("copy {} from stdin (format binary)").format(sql.Identifier(STAGE_SCHEMA, self.into.relation))

    def _connect(self) -> psycopg.Connection:
        conn = psycopg.connect(self.into.ledger_url, application_name="ratchet stage", **PATIENCE)
        # At its end it holds the transaction's row, for which its abort would wait as long as this process is stopped.
        bound(conn)
        return conn

    @property
    def _where(self) -> str:
        token = self.token
        return f"{token.pipeline}: transaction {token.txid}, slice {token.slice}, try {token.try_number}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A connection that was not made or is lost; nothing of the task stays in any case."""
        try:
            yield
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            raise LedgerUnreachable(
                f"{self._where}: the ledger did not answer while sink {self.into.sink!r} was staged: "
                f"{str(error).strip()}; nothing was voted, the slice is tried again"
            ) from error

    @contextmanager
    def _refusals_told(self, conn: psycopg.Connection) -> Iterator[None]:
        """What PostgreSQL says no to while it answers, by what is to be done about it."""
        try:
            yield
        except psycopg.errors.NotNullViolation as error:
            raise TransformError(
                f"{self._where}: sink {self.into.sink!r}: column {error.diag.column_name} is declared not null and is "
                "null; give those records up in the transform, or declare the column without not null"
            ) from error
        except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.ProgramLimitExceeded) as error:
            # A row that is too big is a limit of the program to PostgreSQL, and to psycopg something that passes.
            raise TransformError(
                f"{self._where}: sink {self.into.sink!r}: PostgreSQL cannot hold a value: {error}"
            ) from error
        except psycopg.errors.UndefinedTable as error:
            raise Fenced(f"{self._where}: the stage is gone, so its epoch is over; nothing was staged") from error
        except (psycopg.OperationalError, psycopg.InternalError) as error:
            if conn.closed or isinstance(error, _ENDED):
                raise
            # A full disk, a limit of time or memory: that may pass, and may as well be this transaction's own doing.
            raise StagingFailed(
                f"{self._where}: sink {self.into.sink!r}: PostgreSQL could not take the rows: {str(error).strip()}; "
                "nothing was voted, the slice is tried again"
            ) from error

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
        token, over = self.token, None
        transaction = conn.execute(
            """
            select epoch, state from ratchet.transactions
            where pipeline = %s and txid = %s and revision = %s
            for share
            """,
            (token.pipeline, token.txid, token.revision),
        ).fetchone()
        if transaction is None:
            over = "there is no such transaction"
        elif transaction[0] != token.epoch:
            over = f"epoch {transaction[0]} has begun, this is epoch {token.epoch}"
        elif transaction[1] != "OPEN":
            over = f"the transaction is {transaction[1]}"
        else:
            over = self._slice_is_over(conn)
        if over:
            raise Fenced(f"{self._where}: {over}; nothing was staged")

    def _slice_is_over(self, conn: psycopg.Connection) -> str | None:
        """Why this try is not the current one of a slice that has yet to vote, or None."""
        token = self.token
        found = conn.execute(
            """
            select try_number, voted_at is not null from ratchet.slices
            where pipeline = %s and txid = %s and epoch = %s and slice = %s
            for share
            """,
            (token.pipeline, token.txid, token.epoch, token.slice),
        ).fetchone()
        if found is None:
            return "there is no such slice"
        if found[1]:
            return f"the slice has voted in try {found[0]}"
        return None if found[0] == token.try_number else f"try {found[0]} has the slice"


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from (b for b in rest if b.num_rows)
