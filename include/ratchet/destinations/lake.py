"""A Delta Lake table as a destination: rows and mark in one version of it.

The mark is two of the transaction identifiers that a table keeps for applications, the step and its token. Of two
versions that are written at once over the same identifier the library, delta-rs, refuses one: that is the comparison.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from ratchet.destinations.arrow_rows import arrow_rows
from ratchet.destinations.content import Change, Content, Puts
from ratchet.destinations.lake_storage import Storage
from ratchet.destinations.port import Mark, Outside, Owner, no_answer, no_entry
from ratchet.destinations.store_errors import passes, said
from ratchet.errors import DestinationRefused, DestinationUnreachable, RatchetError
from ratchet.spec.columns import Column
from ratchet.values.arrow import arrow_schema

if TYPE_CHECKING:
    from ratchet.destinations.delta_lake import DeltaLake
    from ratchet.destinations.object_store import ObjectStore

PIPELINE, SINK = "ratchet.pipeline", "ratchet.sink"
"""The table's properties that say whose it is."""
_UNTRIED = {"columnMapping", "deletionVectors"}
_TRIES = 5
"""So often others may change the table while a step is about to be committed."""
T = TypeVar("T")
_Writes = Callable[[DeltaTable, pa.RecordBatchReader, bool, CommitProperties], None]
"""Writes rows into a table, which has all of their columns and no others or not, as one version of it."""


class _ChangedMeanwhile(DestinationUnreachable):
    """Whoever has changed the table has left the mark: a person, or one who has made the table at the same time."""


class Lake(Outside):
    """The table, in its directory or object store."""

    GONE = (
        "there is no such table here, or it has no mark any more (a disk that is not mounted on this machine looks "
        "like that, or a connection to another store, and who makes the table anew would write into its place)"
    )

    def __init__(self, declared: DeltaLake, owner: Owner, store: ObjectStore | None = None):
        self._declared, self._owner = declared, owner
        self._store, self._storage = store, Storage.of(declared.name, store)
        self._step = f"ratchet:{owner.pipeline}:{owner.sink}"
        self._token = f"{self._step}:token"

    def mark(self) -> Mark | None:
        with self._told():
            table = self._table()
            return None if table is None else self._mark(table)

    def start(self, mark: Mark) -> None:
        with self._told():
            _again(partial(self._start, mark))

    def apply(self, at: Mark, to: Mark, change: Change | Puts) -> bool:
        with self._told():
            return _again(partial(self._apply, at, to, change))

    def counted(self) -> Iterator[tuple[int, int]]:
        with self._told():
            table = self._table()
            if table is None:
                return
            asked = "select _txid, count(*) as rows from held where _txid is not null group by _txid"
            for batch in QueryBuilder().register("held", table).execute(asked):
                found = pa.record_batch(batch)
                yield from zip(*(column.to_pylist() for column in found.columns), strict=True)

    def restart(self, at: Mark | None, to: Mark, content: Content | None) -> bool:
        with self._told():
            return _again(partial(self._restart, at, to, content))

    def _start(self, mark: Mark) -> None:
        table = self._made()
        if self._mark(table) is None:
            self._own(table, None, mark)

    def _apply(self, at: Mark, to: Mark, change: Change | Puts) -> bool:
        table = self._table()
        if table is None or self._mark(table) != at:
            return False
        if isinstance(change, Puts):
            self._see_that_it_merges(table)
            return self._write(table, at, to, change, self._merged) and self._moved_to(at, to)
        gone = f"_txid = {change.txid}" if change.replaces else None
        return self._write(table, at, to, change, partial(_written, gone=gone))

    def _restart(self, at: Mark | None, to: Mark, content: Content | None) -> bool:
        table = self._made()
        if self._mark(table) != at:
            return False
        if content is None:
            return self._own(table, at, to)
        # What is a person's own has no txid.
        return self._write(table, at, to, content, partial(_written, gone="_txid is not null"))

    def _table(self) -> DeltaTable | None:
        """The table as it is now; DestinationRefused where it is another pipeline's."""
        try:
            table = DeltaTable(self._storage.place, storage_options=self._storage.options)
        except TableNotFoundError:
            return None
        properties = table.metadata().configuration
        whose = properties.get(PIPELINE), properties.get(SINK)
        if whose not in ((None, None), (self._owner.pipeline, self._owner.sink)):
            raise DestinationRefused(
                f"{self._where} is a destination of {whose[0]}: {whose[1]} already; name another directory, or unset "
                f"the table's properties {PIPELINE} and {SINK} where that is over, and delete its rows"
            )
        return table

    def _made(self) -> DeltaTable:
        """The table, made where there is none; one that is there is this sink's, or has no rows."""
        if self._store is not None and not self._store.compares():
            raise DestinationRefused(
                f"{self._where}: the store does not honour If-None-Match: it has put an object over one that was "
                "there, and of two commits at once one would be lost; nothing was sent; use a store that does"
            )
        table = self._table()
        if table is None:
            schema = pa.schema([field.with_nullable(True) for field in arrow_schema(self._owner.columns)])
            try:
                # Its first mark is a version of its own: two that make the table at once find the same one.
                return DeltaTable.create(
                    self._storage.place,
                    schema,  # pyright: ignore[reportArgumentType]
                    partition_by=list(self._declared.partition_by) or None,
                    configuration={PIPELINE: self._owner.pipeline, SINK: self._owner.sink},
                    raise_if_key_not_exists=False,
                    storage_options=self._storage.options,
                )
            except DeltaError:
                table = self._table()
                if table is None:
                    raise
        if self._mark(table) is None and PIPELINE not in table.metadata().configuration:
            self._fit(table, self._owner.columns)
            if table.file_uris():
                raise DestinationRefused(
                    f"{self._where} has rows already, and none is this pipeline's; name another directory, or delete "
                    "them"
                )
            properties = {PIPELINE: self._owner.pipeline, SINK: self._owner.sink}
            table.alter.set_table_properties(properties, raise_if_not_exists=False)
        return table

    def _mark(self, table: DeltaTable) -> Mark | None:
        step, token = table.transaction_version(self._step), table.transaction_version(self._token)
        return None if step is None or token is None else Mark(step, token)

    def _own(self, table: DeltaTable, at: Mark | None, to: Mark) -> bool:
        """Give it a mark and leave its rows; False where somebody else was first."""
        before = table.version()
        nothing = pa.RecordBatchReader.from_batches(pa.schema(table.schema().to_arrow()), iter(()))
        try:
            write_deltalake(table, nothing, mode="append", commit_properties=self._moved(to))
        except CommitFailedError as error:
            return self._after(before, at, error)
        return True

    def _write(self, table: DeltaTable, at: Mark | None, to: Mark, content: Content, written: _Writes) -> bool:
        is_alike = self._fit(table, content.columns)
        divided = self._divided(table)
        columns = content.columns
        if isinstance(content, Puts):
            # Of a key that has no row any more the others are null.
            columns = tuple(c if c in content.key else replace(c, nullable=True) for c in columns)
        rows = _Rows(arrow_rows(content, columns, self._where), divided, self._where)
        reader = pa.RecordBatchReader.from_batches(arrow_schema(columns), rows)
        moved, before = self._moved(to, content.until), table.version()
        try:
            written(table, reader, is_alike, moved)
        except CommitFailedError as error:
            return self._after(before, at, error)
        except Exception:
            if rows.failed is not None:
                # The library says it in words of its own.
                raise rows.failed from None
            raise
        finally:
            # Else what is kept of an error keeps the cursor in the midst of its rows.
            rows.close()
        return True

    def _merged(self, table: DeltaTable, reader: pa.RecordBatchReader, is_alike: bool, moved: CommitProperties) -> None:
        """Put the rows of keys in place of what stands under them. A person's own row, without a txid, is left."""
        keys, columns = (
            [f"`{column.name}`" for column in self._owner.key],
            [f"`{name}`" for name in reader.schema.names],
        )
        values = {column: f"puts.{column}" for column in columns}
        merging = table.merge(
            reader,
            " and ".join(f"at.{key} = puts.{key}" for key in keys),
            source_alias="puts",
            target_alias="at",
            merge_schema=not is_alike,
            commit_properties=moved,
        )
        merging = merging.when_matched_delete("puts._txid is null")
        merging = merging.when_matched_update({c: v for c, v in values.items() if c not in keys})
        merging.when_not_matched_insert(values, "puts._txid is not null").execute()

    @property
    def _key_names(self) -> list[str]:
        return [column.name for column in self._owner.key]

    def _moved_to(self, at: Mark, to: Mark) -> bool:
        """Whether the mark is there, which the library leaves where a merge has changed no row."""
        table = self._table()
        if table is None:
            return False
        mark = self._mark(table)
        return mark == to or (mark == at and self._own(table, at, to))

    def _see_that_it_merges(self, table: DeltaTable) -> None:
        features = sorted({*(table.protocol().reader_features or ())} & _UNTRIED)
        if features:
            raise DestinationRefused(
                f"{self._where} has {', '.join(features)}, with which it is not tried whether rows of keys give way; "
                "nothing was sent; name another directory"
            )

    def _after(self, version: int, at: Mark | None, error: CommitFailedError) -> Literal[False]:
        """False where another has moved the mark since the version that was read; else the error of the commit."""
        now = self._table()
        if now is None or self._mark(now) != at:
            return False
        if now.version() == version:
            # Nobody was in the way: it is the table that cannot be written so.
            raise self._refused(error) from error
        raise _ChangedMeanwhile(
            f"{self._where}: somebody else has changed the table meanwhile; the step is tried again"
        ) from error

    def _moved(self, to: Mark, txid: int | None = None) -> CommitProperties:
        said = {"ratchet.pipeline": self._owner.pipeline, "ratchet.step": to.step}
        return CommitProperties(
            custom_metadata=said if txid is None else {**said, "ratchet.txid": txid},
            app_transactions=[Transaction(self._step, to.step), Transaction(self._token, to.token)],
        )

    def _fit(self, table: DeltaTable, columns: tuple[Column, ...]) -> bool:
        """See that each column that is there has the very type that is sent; whether all are there, and no other."""
        held, renamed = pa.schema(table.schema().to_arrow()), dict(self._owner.renamed)
        spelt = {name.casefold(): name for name in held.names}
        otherwise = "`ratchet detach` it and name another directory, or move the table away and `ratchet attach --anew`"
        for field in arrow_schema(columns):
            name = field.name
            found = spelt.get(name.casefold())
            if found is None and renamed.get(name) in held.names:
                raise DestinationRefused(f"{self._where} has no column {name}, which was {renamed[name]}; {otherwise}")
            if found is not None and found != name:
                raise DestinationRefused(
                    f"{self._where} has a column {found}, and {name} differs from it only in case; {otherwise}"
                )
            if found is not None and held.field(name).type != field.type:
                raise DestinationRefused(
                    f"{self._where}: column {name} is {held.field(name).type}, and is written as {field.type}; "
                    f"{otherwise}"
                )
        return set(held.names) == {column.name for column in columns}

    def _divided(self, table: DeltaTable) -> list[str]:
        """The texts among the columns by which the table is divided; DestinationRefused for values that no name has."""
        held = pa.schema(table.schema().to_arrow())
        kinds = {name: held.field(name).type for name in table.metadata().partition_columns}
        for name, kind in kinds.items():
            # A column of somebody else's has no values of ours.
            if not (pa.types.is_integer(kind) or kind in (pa.bool_(), pa.date32(), pa.string())):
                raise DestinationRefused(
                    f"{self._where} is divided by {name}, a {kind}, of which the name of a directory does not hold "
                    "every value; name another directory"
                )
        return [name for name, kind in kinds.items() if kind == pa.string()]

    @property
    def _where(self) -> str:
        return f"{self._owner}: {self._declared.address}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except RatchetError:
            raise
        except Exception as error:
            # Also what the library raises without a class of its own: no other destination waits for this one.
            if passes(error) or isinstance(error, CommitFailedError | TableNotFoundError):
                raise no_answer(self._where, self._said(error)) from error
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> DestinationRefused:
        return no_entry(self._where, self._said(error), self._owner, self._declared.address)

    def _said(self, error: Exception) -> str:
        return said(error, self._owner.private)


class _Rows(Iterator[pa.RecordBatch]):
    """Batches, which another thread takes, and the error with which they ended early."""

    def __init__(self, batches: Generator[pa.RecordBatch], divided: Sequence[str], where: str):
        self._batches, self._divided, self._where = batches, divided, where
        self._taking, self._is_closed = Lock(), False
        self.failed: Exception | None = None

    def __next__(self) -> pa.RecordBatch:
        with self._taking:
            if self._is_closed:
                # No end that could pass for that of all rows.
                raise RuntimeError("it was closed")
            try:
                batch = next(self._batches)
                self._check(batch)
            except StopIteration:
                raise
            except Exception as error:
                self.failed = error
                raise
            return batch

    def close(self) -> None:
        """Give the cursor back; whoever still takes batches gets an error."""
        with self._taking:
            self._is_closed = True
            self._batches.close()

    def _check(self, batch: pa.RecordBatch) -> None:
        for name in self._divided:
            if name in batch.schema.names and pc.any(pc.equal(batch.column(name), "")).as_py():
                raise DestinationRefused(
                    f"{self._where}: column {name}, by which the table is divided, has an empty text, which Delta Lake "
                    "does not tell from null; nothing was sent; have the transform write null, or another text"
                )


def _again(change: Callable[[], T]) -> T:
    """What a change comes to, which is made once more where others have changed the table while it was made."""
    for _ in range(_TRIES - 1):
        with suppress(_ChangedMeanwhile):
            return change()
    return change()


def _written(
    table: DeltaTable, reader: pa.RecordBatchReader, is_alike: bool, moved: CommitProperties, gone: str | None
) -> None:
    """Add rows, in place of those that are `gone`."""
    # Tables whose columns are mapped take rows by this way alone.
    schema_mode = None if is_alike else "merge"
    if gone is None:
        write_deltalake(table, reader, mode="append", schema_mode=schema_mode, commit_properties=moved)
    else:
        write_deltalake(
            table, reader, mode="overwrite", predicate=gone, schema_mode=schema_mode, commit_properties=moved
        )
