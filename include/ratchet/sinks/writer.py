"""The writer: what one attempt of one Spark task stages, for all its sinks, in one database transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ratchet.errors import Fenced, LedgerUnreachable, StagingFailed, TransformError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.fence import hold_try
from ratchet.ledger.schema import STAGE_SCHEMA
from ratchet.ledger.work import OffsetRange, SliceToken, Tag
from ratchet.sinks.binary import encoder_of, wire_batch
from ratchet.sinks.checksum import MODULUS, batch_checksum
from ratchet.sinks.forms import in_one_form
from ratchet.sinks.port import Sink

BUFFER_ROWS = 100_000
BUFFER_BYTES = 16 * 2**20
"""What a writer keeps of one sink's rows before it combines and sends them; memory is bounded by it."""

_ENDED = (
    psycopg.errors.AdminShutdown,
    psycopg.errors.CrashShutdown,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
"""With these PostgreSQL ends the session, which this end may notice later."""


@dataclass(frozen=True)
class Into:
    """Where a slice's rows are staged, carried to the workers by value: `stages` maps a sink to its table."""

    ledger_url: str
    token: SliceToken
    ranges: tuple[OffsetRange, ...]
    stages: Mapping[str, str]

    def __repr__(self) -> str:
        # The URL holds a password, and Spark may print a plan.
        return f"Into({self.token}, {', '.join(self.stages.values())})"


@dataclass(frozen=True)
class Written:
    """What a writer has staged for one sink: rows, and their checksum."""

    rows: int = 0
    checksum: int = 0


class Writer:
    """Stages the rows of one task attempt, which carry its tag; nothing of them stays unless `finish` returns.

    Raises Fenced when the try is not the current one any more, TransformError for a row that the stage does not take,
    StagingFailed, LedgerUnreachable. Without rows there is no database transaction.
    """

    def __init__(self, into: Into, tag: Tag, sinks: Sequence[Sink]):
        self._into, self._tag, self._sinks = into, tag, sinks
        self._written = {sink.name: Written() for sink in sinks}
        self._waiting: dict[str, list[pa.Table]] = {sink.name: [] for sink in sinks}
        self._open = ExitStack()
        self._conn: Connection | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What the connection has lost meanwhile is noticed here.
        with self._told():
            self._open.__exit__(kind, raised, trace)

    def write(self, sink: Sink, rows: pa.Table) -> None:
        """Take rows with the columns that the sink needs and their positions, which must be of the slice."""
        if not rows.num_rows:
            return
        check_own(sink, rows, self._into.ranges)
        waiting = self._waiting[sink.name]
        waiting.append(in_one_form(sink.name, rows, sink.needed))
        if sum(t.num_rows for t in waiting) >= BUFFER_ROWS or sum(t.nbytes for t in waiting) >= BUFFER_BYTES:
            self._flush(sink)

    def finish(self) -> dict[str, Written]:
        """Send what is waiting, and commit it if the try is still the current one; what was staged for each sink."""
        for sink in self._sinks:
            self._flush(sink)
        if self._conn is not None:
            with self._told(), refusals_told(self._where, ", ".join(sink.name for sink in self._sinks)):
                try:
                    hold_try(self._conn, self._into.token)
                except DBAPIError as error:
                    if error.connection_invalidated or error.orig is None:
                        raise
                    raise error.orig from error
                self._open.close()
        return self._written

    def _flush(self, sink: Sink) -> None:
        waiting, self._waiting[sink.name] = self._waiting[sink.name], []
        if not waiting:
            return
        combined = sink.combine(pa.concat_tables(waiting))
        done, rows, checksum = self._written[sink.name], 0, 0
        with self._told(), refusals_told(self._where, sink.name):
            connection = self._connection()
            for batch in combined.combine_chunks().to_batches():
                rows, checksum = rows + batch.num_rows, checksum + batch_checksum(sink.staged, batch)
                self._copy(connection, sink, wire_batch(self._with_tag(batch), sink.staged))
        self._written[sink.name] = Written(done.rows + rows, (done.checksum + checksum) % MODULUS)

    def _copy(self, connection: psycopg.Connection, sink: Sink, batch: pa.RecordBatch) -> None:
        relation = sql.Identifier(STAGE_SCHEMA, self._into.stages[sink.name])
        statement = sql.SQL("copy {} from stdin (format binary)").format(relation)
        encoder = encoder_of(batch.schema, sink.staged)
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(encoder.write_header())
            copy.write(encoder.write_batch(batch))
            copy.write(encoder.finish())

    def _connection(self) -> psycopg.Connection:
        """The driver's connection, within the one database transaction; opened when there are rows."""
        if self._conn is None:
            ledger = self._open.enter_context(Ledger(self._into.ledger_url, name="ratchet stage"))
            self._conn = self._open.enter_context(ledger.begin())
        driver = self._conn.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return driver

    @property
    def _where(self) -> str:
        token = self._into.token
        return f"{token.pipeline}: {token}, try {token.try_number}"

    def _with_tag(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the four tags in front."""
        token, count = self._into.token, batch.num_rows
        tags = {
            "_slice": pa.repeat(pa.scalar(token.slice, pa.int32()), count),
            "_try": pa.repeat(pa.scalar(token.try_number, pa.int32()), count),
            "_task_partition": pa.repeat(pa.scalar(self._tag.partition, pa.int32()), count),
            "_task_attempt": pa.repeat(pa.scalar(self._tag.attempt, pa.int64()), count),
        }
        return pa.record_batch([*tags.values(), *batch.columns], [*tags, *batch.schema.names])

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A connection that was not made or is lost; nothing of the task stays in any case."""
        try:
            yield
        except LedgerUnreachable as error:
            raise LedgerUnreachable(f"{self._where}: {error}; nothing was voted, the slice is tried again") from error
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            raise LedgerUnreachable(
                f"{self._where}: the ledger did not answer while rows were staged: {str(error).strip()}; nothing was "
                "voted, the slice is tried again"
            ) from error


@contextmanager
def refusals_told(where: str, sink: str) -> Iterator[None]:
    """What PostgreSQL says no to while it answers, by what is to be done about it."""
    try:
        yield
    except psycopg.errors.NotNullViolation as error:
        raise TransformError(
            f"{where}: sink {sink!r}: column {error.diag.column_name} is declared not null and is null; give those "
            "records up in the transform, or declare the column without not null"
        ) from error
    except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.ProgramLimitExceeded, OverflowError) as error:
        # A row that is too big is a limit of the program to PostgreSQL, and to psycopg something that passes.
        raise TransformError(f"{where}: sink {sink!r}: PostgreSQL cannot hold a value: {error}") from error
    except psycopg.errors.UndefinedTable as error:
        raise Fenced(f"{where}: the stage is gone, so its epoch is over; nothing was staged") from error
    except (psycopg.OperationalError, psycopg.InternalError) as error:
        if error.sqlstate is None or isinstance(error, _ENDED):
            raise
        # A full disk, a limit of time or memory: that may pass, and may as well be this transaction's own doing.
        raise StagingFailed(
            f"{where}: sink {sink!r}: PostgreSQL could not take the rows: {str(error).strip()}; nothing was voted, "
            "the slice is tried again"
        ) from error


def check_own(sink: Sink, rows: pa.Table, ranges: Sequence[OffsetRange]) -> None:
    """TransformError, with the first foreign row's position, unless all rows are of records of the slice.

    Rows are combined after this, and then nothing would show it any more.
    """
    partition, offset = rows.column("_partition"), rows.column("_offset")
    of = {r.partition: (r.from_offset, r.until_offset) for r in ranges}
    # One look-up a row, however many partitions the slice has; what is of none has an empty range.
    begin, end = np.array([of.get(p, (0, 0)) for p in range(max(of, default=0) + 2)], np.int64).T
    p = np.minimum(pc.fill_null(partition, len(begin) - 1).to_numpy(), len(begin) - 1)
    o = pc.fill_null(offset, -1).to_numpy()
    foreign = (p < 0) | (o < begin[p]) | (o >= end[p])
    if not foreign.any():
        return
    at = int(foreign.argmax())
    of_partition, of_offset = partition[at].as_py(), offset[at].as_py()
    known = of_partition is not None and of_offset is not None
    place = f"partition {of_partition}, offset {of_offset}" if known else "a row without a position"
    raise TransformError(f"{sink.name}: {place} is not of this slice; a transform keeps _partition and _offset")
