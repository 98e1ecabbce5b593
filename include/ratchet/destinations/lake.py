"""A Delta Lake table as a destination: rows and mark in one version of it.

The mark is two of the transaction identifiers that a table keeps for applications, the step and its token. Of two
versions that are written at once over the same identifier the library, delta-rs, refuses one: that is the comparison.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from ratchet.destinations.arrow_rows import arrow_rows
from ratchet.destinations.content import Change, Content
from ratchet.destinations.port import Mark, Outside, Owner
from ratchet.errors import DestinationRefused, DestinationUnreachable
from ratchet.sinks.types import POSITION, SOURCE, TXID
from ratchet.spec.columns import Column
from ratchet.values.arrow import arrow_schema

if TYPE_CHECKING:
    from ratchet.destinations.delta_lake import DeltaLake

ADDED = (SOURCE, *POSITION, TXID)
"""Columns that every row has, besides those of the spec."""
PIPELINE, SINK = "ratchet.pipeline", "ratchet.sink"
"""The table's properties that say whose it is."""


class Lake(Outside):
    """The table, in its directory."""

    def __init__(self, declared: DeltaLake, owner: Owner):
        self._declared, self._owner = declared, owner
        self._step = f"ratchet:{owner.pipeline}:{owner.sink}"
        self._token = f"{self._step}:token"

    def mark(self) -> Mark | None:
        with self._told():
            table = self._table()
            return None if table is None else self._mark(table)

    def start(self, mark: Mark) -> None:
        with self._told():
            table = self._made()
            if self._mark(table) is None:
                self._own(table, mark)

    def apply(self, at: Mark, to: Mark, change: Change) -> bool:
        with self._told():
            table = self._table()
            if table is None or self._mark(table) != at:
                return False
            gone = f"_txid = {change.txid}" if change.replaces else None
            return self._write(table, at, to, change, gone)

    def restart(self, at: Mark | None, to: Mark, content: Content | None) -> bool:
        with self._told():
            table = self._made()
            if self._mark(table) != at:
                return False
            if content is None:
                return self._own(table, to)
            # What is a person's own has no txid.
            return self._write(table, at, to, content, "_txid is not null")

    def _table(self) -> DeltaTable | None:
        """The table as it is now; DestinationRefused where it is another pipeline's."""
        try:
            table = DeltaTable(self._declared.name)
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
        table = self._table()
        if table is None:
            schema = pa.schema([field.with_nullable(True) for field in _schema(self._owner.fields)])
            try:
                # Its first mark is a version of its own: two that make the table at once find the same one.
                return DeltaTable.create(
                    self._declared.name,
                    schema,  # pyright: ignore[reportArgumentType]
                    partition_by=list(self._declared.partition_by) or None,
                    configuration={PIPELINE: self._owner.pipeline, SINK: self._owner.sink},
                    raise_if_key_not_exists=False,
                )
            except DeltaError:
                table = self._table()
                if table is None:
                    raise
        if self._mark(table) is None and PIPELINE not in table.metadata().configuration:
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

    def _own(self, table: DeltaTable, mark: Mark) -> bool:
        """Give it a mark and leave its rows; False where somebody else was first."""
        nothing = pa.RecordBatchReader.from_batches(_schema(self._owner.fields), iter(()))
        try:
            write_deltalake(table, nothing, mode="append", schema_mode="merge", commit_properties=self._moved(mark))
        except CommitFailedError:
            return False
        return True

    def _write(self, table: DeltaTable, at: Mark | None, to: Mark, content: Content, gone: str | None) -> bool:
        self._fit(table, content.fields)
        rows = _Rows(arrow_rows(content, (*content.fields, *ADDED), self._where))
        reader = pa.RecordBatchReader.from_batches(_schema(content.fields), rows)
        moved = self._moved(to, content.until)
        try:
            if gone is None:
                write_deltalake(table, reader, mode="append", schema_mode="merge", commit_properties=moved)
            else:
                write_deltalake(
                    table, reader, mode="overwrite", predicate=gone, schema_mode="merge", commit_properties=moved
                )
        except CommitFailedError as error:
            now = self._table()
            if now is None or self._mark(now) != at:
                return False
            raise DestinationUnreachable(
                f"{self._where}: somebody else has changed the table meanwhile; the step is tried again"
            ) from error
        except DeltaError:
            if rows.failed is not None:
                # The library says it in words of its own.
                raise rows.failed from None
            raise
        return True

    def _moved(self, to: Mark, txid: int | None = None) -> CommitProperties:
        said = {"ratchet.pipeline": self._owner.pipeline, "ratchet.step": to.step}
        return CommitProperties(
            custom_metadata=said if txid is None else {**said, "ratchet.txid": txid},
            app_transactions=[Transaction(self._step, to.step), Transaction(self._token, to.token)],
        )

    def _fit(self, table: DeltaTable, fields: Sequence[Column]) -> None:
        """See that the table has the columns that are sent, each of the very type; what is new is added by writing."""
        held, renamed = pa.schema(table.schema().to_arrow()), dict(self._owner.renamed)
        for field in _schema(fields):
            found = held.get_field_index(field.name)
            if found == -1 and held.get_field_index(renamed.get(field.name, "")) != -1:
                raise DestinationRefused(
                    f"{self._where} has no column {field.name}, which was {renamed[field.name]}; rename it there too"
                )
            if found != -1 and held.field(found).type != field.type:
                raise DestinationRefused(
                    f"{self._where}: column {field.name} is {held.field(found).type}, and is written as {field.type}; "
                    "alter it there, or `ratchet detach` the table and name another directory"
                )

    @property
    def _where(self) -> str:
        return f"{self._owner}: {self._declared.address}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, CommitFailedError, TableNotFoundError) as error:
            raise DestinationUnreachable(
                f"{self._where}: {self._said(error)}; what is committed waits for it, and its mark tells what it has "
                "taken"
            ) from error
        except DeltaError as error:
            raise DestinationRefused(
                f"{self._where}: {self._said(error)}; nothing was sent; correct that there, or `ratchet detach "
                f"{self._owner.pipeline} {self._declared.address}`"
            ) from error

    def _said(self, error: Exception) -> str:
        # Its words may quote a value.
        return type(error).__name__ if self._owner.private else " ".join(str(error).split())


class _Rows(Iterator[pa.RecordBatch]):
    """Batches, and the error with which they ended early."""

    def __init__(self, batches: Generator[pa.RecordBatch]):
        self._batches = batches
        self.failed: Exception | None = None

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            self.failed = error
            raise


def _schema(fields: Sequence[Column]) -> pa.Schema:
    return arrow_schema((*fields, *ADDED))
