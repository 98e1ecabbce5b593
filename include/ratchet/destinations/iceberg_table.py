"""An Iceberg table as a destination: rows and mark in one snapshot of it.

The mark is in the table's properties, which outlive the snapshots, and is changed by the commit that adds the snapshot.
Each change of the mark adds one, and each commit asserts that the table's branch is still at the snapshot at which the
mark was read: that is the comparison. The library would put a commit that is refused behind what others have done, and
try it again; here the mark is looked at before that.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.expressions import NotNull
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.transforms import parse_transform
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError

from ratchet.destinations.arrow_rows import arrow_rows
from ratchet.destinations.content import Change, Content, Puts
from ratchet.destinations.iceberg import Iceberg, Part
from ratchet.destinations.iceberg_catalog import has_tables, make_tables, opened
from ratchet.destinations.iceberg_files import DataFiles
from ratchet.destinations.iceberg_gone import Gone, OfKeys, OfTransaction
from ratchet.destinations.iceberg_types import (
    as_written,
    is_alike,
    parquet_schema,
    schema_of,
    written_schema,
)
from ratchet.destinations.port import Mark, Outside, Owner, no_answer, no_entry
from ratchet.errors import DestinationRefused, DestinationUnreachable, RatchetError
from ratchet.sinks.types import TXID
from ratchet.spec.columns import Column

PIPELINE, SINK, STEP, TOKEN = "ratchet.pipeline", "ratchet.sink", "ratchet.step", "ratchet.token"
"""Properties of the table, which say whose it is and what it took last; snapshots have them too, with the txid."""
_TRIES = 5
"""So often others may change the table while a step is about to be committed."""


class IcebergTable(Outside):
    """The table, in its catalog."""

    GONE = "there is no such table in the catalog, or it has no mark any more, since somebody has replaced its rows"

    def __init__(self, declared: Iceberg, owner: Owner, catalog: Catalog):
        self._declared, self._owner, self._catalog = declared, owner, catalog

    @classmethod
    @contextmanager
    def connected(cls, declared: Iceberg, owner: Owner, by: str) -> Generator[IcebergTable]:
        """The table, by the properties of its catalog as JSON."""
        where = f"{owner}: {declared.address}"
        with ExitStack() as stack:
            with _told(where, owner):
                catalog = stack.enter_context(opened(declared.catalog, by, where))
            yield cls(declared, owner, catalog)

    def mark(self) -> Mark | None:
        with self._told():
            table = self._table()
            return None if table is None else self._mark(table)

    def start(self, mark: Mark) -> None:
        with self._told():
            self._make()
            self._write(None, mark, None, None)

    def apply(self, at: Mark, to: Mark, change: Change | Puts) -> bool:
        with self._told():
            if isinstance(change, Puts):
                return self._write(at, to, change, OfKeys([column.name for column in change.key]))
            return self._write(at, to, change, OfTransaction(change.txid) if change.replaces else None)

    def counted(self) -> Iterator[tuple[int, int]]:
        with self._told():
            table = self._table()
            if table is None:
                return
            ours = NotNull(TXID.name)  # pyright: ignore[reportCallIssue]
            for batch in table.scan(ours, selected_fields=(TXID.name,)).to_arrow_batch_reader():
                for count in batch.column(0).value_counts():
                    yield count["values"].as_py(), count["counts"].as_py()

    def restart(self, at: Mark | None, to: Mark, content: Content | None) -> bool:
        with self._told():
            self._make()
            # What is a person's own has no txid.
            return self._write(at, to, content, None if content is None else OfTransaction(None))

    def _table(self) -> Table | None:
        """The table as it is now; DestinationRefused where it is another pipeline's, or of a form that is not tried."""
        if not has_tables(self._catalog):
            return None
        try:
            table = self._catalog.load_table(self._declared.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        whose = table.properties.get(PIPELINE), table.properties.get(SINK)
        if whose not in ((None, None), (self._owner.pipeline, self._owner.sink)):
            raise DestinationRefused(
                f"{self._where} is a destination of {whose[0]}: {whose[1]} already; name another table, or unset its "
                f"properties {PIPELINE} and {SINK} where that is over, and delete its rows"
            )
        if table.format_version != 2:
            raise DestinationRefused(
                f"{self._where} has version {table.format_version} of Iceberg's format, and 2 is supported; name "
                "another table"
            )
        return table

    def _make(self) -> None:
        """Make the table where there is none; one that is there is this sink's, or has no rows."""
        table = self._table() or self._created()
        if table is None or self._mark(table) is not None or PIPELINE in table.properties:
            return
        self._fit(_Once(table), self._owner.columns)
        if any(table.scan().plan_files()):
            raise DestinationRefused(
                f"{self._where} has rows already, and none is this pipeline's; name another table, or delete them"
            )

    def _created(self) -> Table | None:
        """The table, made; None where somebody else was first."""
        make_tables(self._catalog)
        schema = schema_of(self._owner.columns)
        spec = PartitionSpec(
            *(_partition(schema, part, number) for number, part in enumerate(self._declared.parts, 1000))
        )
        made = self._declared.name, schema
        properties = {PIPELINE: self._owner.pipeline, SINK: self._owner.sink, "format-version": "2"}
        try:
            try:
                return self._catalog.create_table(*made, partition_spec=spec, properties=properties)
            except NoSuchNamespaceError:
                try:
                    self._catalog.create_namespace(self._declared.name.rpartition(".")[0])
                except (NamespaceAlreadyExistsError, IntegrityError):
                    pass
                return self._catalog.create_table(*made, partition_spec=spec, properties=properties)
        except TableAlreadyExistsError:
            return None

    def _mark(self, table: Table) -> Mark | None:
        """What the table took last. Where somebody has set its branch to an earlier snapshot, it is that one's; where
        the last of ours is not behind its rows, as when the table was replaced, there is none.
        """
        said, snapshot = _mark_of(table.properties), table.current_snapshot()
        if said is None or snapshot is None:
            return None
        while (found := _mark_in(snapshot)) is None:
            earlier = snapshot.parent_snapshot_id
            before = None if earlier is None else table.metadata.snapshot_by_id(earlier)
            if before is None:
                # Whoever lets snapshots expire may leave the one behind without a parent.
                is_replaced = earlier is None and said in map(_mark_in, table.snapshots())
                return None if is_replaced else said
            snapshot = before
        return found

    def _write(self, at: Mark | None, to: Mark, content: Content | None, gone: Gone | None) -> bool:
        """Take the rows, those that are `gone` away, and move the mark; False where it is not `at`."""
        files: DataFiles | None = None
        for _ in range(_TRIES):
            table = self._table()
            if (None if table is None else self._mark(table)) != at or table is None:
                return False
            step = _Once(table)
            if content is not None:
                schema = self._fit(step, content.columns)
                if files is None:
                    files = DataFiles(table.io, step.table_metadata, self._where)
                    self._fill(files, content, schema, gone)
                elif _layout(files.metadata) != _layout(step.table_metadata):
                    break
            self._stage(step, to, content, files, gone)
            try:
                step.once()
            except CommitFailedException:
                # Of its own accord the library would repeat it behind whatever has changed the table.
                continue
            return True
        raise DestinationUnreachable(
            f"{self._where}: somebody else has changed the table meanwhile; the step is tried again"
        )

    def _fill(self, files: DataFiles, content: Content, schema: Schema, gone: Gone | None) -> None:
        columns, into = content.columns, parquet_schema(schema)
        # Else what is kept of an error keeps the cursor in the midst of its rows.
        with closing(arrow_rows(content, columns, self._where)) as rows:
            batches = (as_written(batch, columns, into, self._where) for batch in rows)
            files.write(gone.living(batches) if isinstance(gone, OfKeys) else batches, schema)

    def _stage(
        self, step: _Once, to: Mark, content: Content | None, files: DataFiles | None, gone: Gone | None
    ) -> None:
        mine = {PIPELINE: self._owner.pipeline, SINK: self._owner.sink}
        said = {**mine, STEP: str(to.step), TOKEN: str(to.token)}
        step.set_properties(said)
        update = step.update_snapshot({**said, "ratchet.txid": str(content.until)} if content else said)
        added = files.done if files else []
        dropped = []
        if files is not None and gone is not None:
            rewritten = DataFiles(files.io, step.table_metadata, self._where)
            dropped = rewritten.without_rows(gone)
            added = [*added, *rewritten.done]
        # One of appended files alone is one that readers of a stream take.
        snapshot = update.overwrite() if dropped else update.merge_append()
        if gone is not None and dropped:
            snapshot.delete_by_predicate(gone.filter)
        for file in dropped:
            snapshot.delete_data_file(file)
        for file in added:
            snapshot.append_data_file(file)
        snapshot.commit()

    def _fit(self, step: _Once, columns: Sequence[Column]) -> Schema:
        """What is written of the table; see that each column has the very type, and add those that are not there."""
        held, renamed = step.table_metadata.schema(), dict(self._owner.renamed)
        spelt = {field.name.casefold(): field for field in held.fields}
        written, new = {}, []
        for column, field in zip(columns, schema_of(columns).fields, strict=True):
            name = field.name
            written[name] = column.nullable
            found = spelt.get(name.casefold())
            if found is None:
                if renamed.get(name) in held.column_names:
                    raise DestinationRefused(
                        f"{self._where} has no column {name}, which was {renamed[name]}; rename it there too"
                    )
                new.append(field)
            elif found.name != name:
                raise DestinationRefused(
                    f"{self._where} has a column {found.name}, and {name} differs from it only in case; rename it there"
                )
            elif not is_alike(found.field_type, field.field_type):
                raise DestinationRefused(
                    f"{self._where}: column {name} is {found.field_type}, and is written as {field.field_type}; alter "
                    "it there, or rename it there, and a new one is added"
                )
        for field in held.fields:
            if field.required and written.get(field.name, True):
                raise DestinationRefused(
                    f"{self._where}: column {field.name} is required there, and rows may lack it; make it optional"
                )
        if new:
            with step.update_schema() as update:
                for field in new:
                    update.add_column(field.name, field.field_type)
        return written_schema(step.table_metadata.schema(), columns)

    @property
    def _where(self) -> str:
        return f"{self._owner}: {self._declared.address}"

    def _told(self) -> AbstractContextManager[None]:
        return _told(self._where, self._owner)


class _Once(Transaction):
    """Changes of a table that are committed as they are, or not at all."""

    def once(self) -> None:
        """Commit them; CommitFailedException where the table is not what it was."""
        self._table._do_commit(
            self._updates, (*self._requirements, AssertTableUUID(uuid=self._table.metadata.table_uuid))
        )


@contextmanager
def _told(where: str, owner: Owner) -> Iterator[None]:
    try:
        yield
    except RatchetError:
        raise
    except Exception as error:
        # Also what the library raises without a class of its own: no other destination waits for this one.
        refused = isinstance(error, BadRequestError | ForbiddenError | OAuthError | UnauthorizedError)
        passes = (
            isinstance(error, OSError | RESTError | OperationalError | InterfaceError | NoSuchTableError)
            and not refused
        )
        # Its words may quote a value.
        said = type(error).__name__ if owner.private else " ".join(str(error).split())
        if passes:
            raise no_answer(where, said) from error
        raise no_entry(where, said, owner, where.removeprefix(f"{owner}: ")) from error


def _mark_of(said: dict[str, str]) -> Mark | None:
    return Mark(int(said[STEP]), int(said[TOKEN])) if STEP in said and TOKEN in said else None


def _mark_in(snapshot: Snapshot) -> Mark | None:
    return _mark_of(snapshot.summary.additional_properties) if snapshot.summary else None


def _layout(metadata: TableMetadata) -> tuple[object, ...]:
    """What files that are written already rest on."""
    return metadata.table_uuid, metadata.schema(), metadata.spec()


def _partition(schema: Schema, part: Part, number: int) -> PartitionField:
    said = part.transform if part.size is None else f"{part.transform}[{part.size}]"
    source = schema.find_field(part.column).field_id
    return PartitionField(source_id=source, field_id=number, transform=parse_transform(said), name=part.name)
