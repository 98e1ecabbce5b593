"""The writer: the rows of one attempt of one Spark task, for all its sinks, in one database transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from types import TracebackType

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ratchet.errors import Fenced, LedgerUnreachable, TransformError, WritingFailed
from ratchet.ledger import writers
from ratchet.ledger.connection import Ledger, be_patient, be_quick, driver_of
from ratchet.ledger.fence import hold_try
from ratchet.ledger.work import OffsetRange, Relation, SliceToken, Tag
from ratchet.sinks.binary import encoder_of, wire_batch
from ratchet.sinks.checksum import MODULUS, batch_checksum
from ratchet.sinks.forms import in_one_form
from ratchet.sinks.port import Sink
from ratchet.sinks.spans import Span
from ratchet.sinks.types import PIPELINE, SOURCE, TXID, WRITER
from ratchet.values.arrow import arrow_type
from ratchet.values.withheld import postgres_said

BUFFER_ROWS = 50_000
BUFFER_BYTES = 8 * 2**20
"""What a writer keeps of one sink's rows before it combines and sends them; memory is bounded by it."""

SENT_ROWS = 10_000
"""So many of them are turned into PostgreSQL's form at once."""

_ENDED = (
    psycopg.errors.AdminShutdown,
    psycopg.errors.CrashShutdown,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
"""With these PostgreSQL ends the session, which this end may notice later."""


@dataclass(frozen=True)
class Into:
    """Where a slice's rows are written, carried to the workers by value.

    `relations` maps a sink to its table; `source` is the number of the topic, which each row carries. `private` keeps
    values out of errors.
    """

    ledger_url: str
    token: SliceToken
    ranges: tuple[OffsetRange, ...]
    relations: Mapping[str, Relation]
    source: int
    private: bool = False

    def __repr__(self) -> str:
        # The URL holds a password, and Spark may print a plan.
        return f"Into({self.token}, {', '.join('.'.join(relation) for relation in self.relations.values())})"


@dataclass(frozen=True)
class Written:
    """What a writer has written for one sink: its number, 0 where it has no row, rows, and their checksum."""

    writer: int = 0
    rows: int = 0
    checksum: int = 0


class _Going:
    """What is on its way to one sink."""

    def __init__(self) -> None:
        self.done = Written()
        self.waiting: list[pa.Table] = []
        self.spans = Span()


class Writer:
    """Writes the rows of one task attempt, once; nothing of them stays unless `finish` returns.

    For each sink the attempt is a writer of its own, whose number its rows carry. Raises Fenced when the try is not the
    current one any more, TransformError for a row that the table does not take, WritingFailed, LedgerUnreachable.
    Without rows there is no database transaction.
    """

    def __init__(self, into: Into, tag: Tag, sinks: Sequence[Sink]):
        self._into, self._tag, self._sinks = into, tag, sinks
        self._going = {sink.name: _Going() for sink in sinks}
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
        going = self._going[sink.name]
        going.spans.add(rows)
        going.waiting.append(in_one_form(sink.name, rows, sink.needed, private=self._into.private))
        waiting = going.waiting
        if sum(t.num_rows for t in waiting) >= BUFFER_ROWS or sum(t.nbytes for t in waiting) >= BUFFER_BYTES:
            self._flush(sink)

    def finish(self) -> dict[str, Written]:
        """Send what is waiting, and commit it if the try is still the current one; what was written for each sink."""
        for sink in self._sinks:
            self._flush(sink)
        if self._conn is not None:
            with self._told(), self._refusals(", ".join(sink.name for sink in self._sinks)):
                with _as_the_driver_says_it():
                    for going in self._going.values():
                        if going.done.writer:
                            writers.note(self._conn, going.done.writer, going.done.rows, going.spans.known)
                    be_quick(self._conn)
                    hold_try(self._conn, self._into.token)
                self._open.close()
        return {name: going.done for name, going in self._going.items()}

    def _flush(self, sink: Sink) -> None:
        going = self._going[sink.name]
        waiting, going.waiting = going.waiting, []
        if not waiting:
            return
        combined = sink.combine(pa.concat_tables(waiting)).combine_chunks()
        # What they were made of is needed no more.
        del waiting
        check_not_null(sink, combined, f"{self._where}: ")
        with self._told(), self._refusals(sink.name):
            self._connect()
            done = going.done if going.done.writer else Written(self._register(sink))
            batches = combined.to_batches(max_chunksize=SENT_ROWS)
            self._copy(sink, (self._with_added(sink, batch, done.writer) for batch in batches), combined.num_rows)
            checksum = sum(batch_checksum(sink.written, batch) for batch in batches)
            going.done = Written(done.writer, done.rows + combined.num_rows, (done.checksum + checksum) % MODULUS)
        pa.default_memory_pool().release_unused()

    def _register(self, sink: Sink) -> int:
        assert self._conn is not None, "rows are on their way"
        relation = self._into.relations[sink.name]
        with _as_the_driver_says_it():
            return writers.register(self._conn, self._into.token, self._tag, sink.name, relation)

    def _copy(self, sink: Sink, batches: Iterable[pa.RecordBatch], rows: int) -> None:
        """Send batches, of so many rows together, in one COPY; at least one."""
        wired = (wire_batch(batch, sink.written) for batch in batches)
        first = next(wired)
        columns = sql.SQL(", ").join(map(sql.Identifier, first.schema.names))
        relation = sql.Identifier(*self._into.relations[sink.name])
        statement = sql.SQL("copy {} ({}) from stdin (format binary)").format(relation, columns)
        encoder = encoder_of(first.schema, sink.written)
        assert self._conn is not None, "rows are on their way"
        with driver_of(self._conn).cursor() as cursor:
            with cursor.copy(statement) as copy:
                copy.write(encoder.write_header())
                for batch in chain([first], wired):
                    copy.write(encoder.write_batch(batch))
                copy.write(encoder.finish())
            if cursor.rowcount != rows:
                raise WritingFailed(
                    f"{self._where}: sink {sink.name!r}: PostgreSQL has kept {cursor.rowcount:,} of {rows:,} "
                    "rows; a trigger on the table must leave them alone"
                )

    def _connect(self) -> None:
        """Begin the one database transaction, when there are rows."""
        if self._conn is None:
            ledger = self._open.enter_context(Ledger(self._into.ledger_url, name="ratchet stage"))
            self._conn = self._open.enter_context(ledger.begin())
            # A transform may take its time between two batches.
            be_patient(self._conn)

    def _refusals(self, sink: str) -> AbstractContextManager[None]:
        return refusals_told(self._where, sink, private=self._into.private)

    @property
    def _where(self) -> str:
        token = self._into.token
        return f"{token.pipeline}: {token}, try {token.try_number}"

    def _with_added(self, sink: Sink, batch: pa.RecordBatch, writer: int) -> pa.RecordBatch:
        """The batch with the columns in front that the writer adds."""
        token = self._into.token
        given = {
            TXID.name: token.txid,
            WRITER.name: writer,
            SOURCE.name: self._into.source,
            PIPELINE.name: token.pipeline,
        }
        added = {c.name: pa.repeat(pa.scalar(given[c.name], arrow_type(c.type)), batch.num_rows) for c in sink.added}
        return pa.record_batch([*added.values(), *batch.columns], [*added, *batch.schema.names])

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A connection that was not made or is lost; nothing of the task stays in any case."""
        try:
            yield
        except LedgerUnreachable as error:
            raise type(error)(f"{self._where}: {error}; nothing was voted, the slice is tried again") from error
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            raise LedgerUnreachable(
                f"{self._where}: the ledger did not answer while rows were written: "
                f"{postgres_said(error, private=self._into.private)}; nothing was voted, the slice is tried again"
            ) from error


@contextmanager
def _as_the_driver_says_it() -> Iterator[None]:
    """An error of a statement as psycopg's own, like those of COPY; of a connection that is lost it stays SQLAlchemy's,
    by which its database transaction is ended.
    """
    try:
        yield
    except DBAPIError as error:
        if error.connection_invalidated or error.orig is None:
            raise
        raise error.orig from error


@contextmanager
def refusals_told(where: str, sink: str, *, private: bool = False) -> Iterator[None]:
    """What PostgreSQL says no to while it answers, by what is to be done about it."""
    try:
        yield
    except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.ProgramLimitExceeded, OverflowError) as error:
        # A row that is too big is a limit of the program to PostgreSQL, and to psycopg something that passes.
        why = postgres_said(error, private=private)
        raise TransformError(f"{where}: sink {sink!r}: PostgreSQL cannot hold a value: {why}") from error
    except psycopg.errors.UndefinedTable as error:
        raise Fenced(f"{where}: the table is gone, so its epoch is over; nothing was written") from error
    except (psycopg.OperationalError, psycopg.InternalError) as error:
        if error.sqlstate is None or isinstance(error, _ENDED):
            raise
        # A full disk, a limit of time or memory: that may pass, and may as well be this transaction's own doing.
        raise WritingFailed(
            f"{where}: sink {sink!r}: PostgreSQL could not take the rows: {postgres_said(error, private=private)}; "
            "nothing was voted, the slice is tried again"
        ) from error


def check_not_null(sink: Sink, combined: pa.Table, where: str = "") -> None:
    """TransformError where a column of the sink that is declared `not null` has a null; `where` begins it.

    A table may let it be null: one that did so before the column was declared goes on with its older rows.
    """
    for column in sink.written:
        if not column.nullable and combined.column(column.name).null_count:
            raise TransformError(
                f"{where}sink {sink.name!r}: column {column.name} is declared not null and is null; give those records "
                "up in the transform, or declare the column without not null"
            )


def check_own(sink: Sink, rows: pa.Table, ranges: Sequence[OffsetRange]) -> None:
    """TransformError, with the first foreign row's position, unless all rows are of records of the slice.

    Rows are combined after this, and then nothing would show it any more.
    """
    partition, offset = rows.column("_partition"), rows.column("_offset")
    of: dict[int, tuple[int, int]] = {}
    several: set[int] = set()
    for r in ranges:
        # Of a partition there are several where a loss was taken out of the middle.
        several |= {r.partition} & of.keys()
        of[r.partition] = (r.from_offset, r.until_offset)
    # One look-up a row, however many partitions the slice has; what is of none has an empty range.
    begin, end = np.array([of.get(p, (0, 0)) for p in range(max(of, default=0) + 2)], np.int64).T
    p = np.minimum(pc.fill_null(partition, len(begin) - 1).to_numpy(), len(begin) - 1)
    o = pc.fill_null(offset, -1).to_numpy()
    foreign = (p < 0) | (o < begin[p]) | (o >= end[p])
    for r in (r for r in ranges if r.partition in several):
        foreign &= ~((p == r.partition) & (o >= r.from_offset) & (o < r.until_offset))
    if not foreign.any():
        return
    at = int(foreign.argmax())
    of_partition, of_offset = partition[at].as_py(), offset[at].as_py()
    known = of_partition is not None and of_offset is not None
    place = f"partition {of_partition}, offset {of_offset}" if known else "a row without a position"
    raise TransformError(f"{sink.name}: {place} is not of this slice; a transform keeps _partition and _offset")
