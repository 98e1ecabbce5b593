"""Parquet files of an Iceberg table: rows in files of a bounded size each, and files without the rows that give way.

pyiceberg's own way from Arrow to Parquet makes an array of structs that is null an empty one, and takes a whole table
at a time where the table is divided; what it knows of metrics and options is used.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions.visitors import ROWS_MUST_MATCH, _StrictMetricsEvaluator
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ParquetFormatWriter, pyarrow_to_schema
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, DoubleType, FloatType

from ratchet.destinations.iceberg_gone import Gone
from ratchet.errors import DestinationRefused

BYTES = 128 << 20
"""So much of a step is in memory, and becomes one file; what comes of it in the file is a part of that."""
BYTES_DIVIDED = 16 << 20
"""So much is divided at a time: of less there would be a few rows for each partition."""
_ROWS = 1 << 16
"""So many of a file are read at a time."""
_ROWS_TOLD = 1 << 20
"""And so many of the columns alone by which rows are told."""
_MICROS_OF_DAY, _MICROS_OF_HOUR = 86_400_000_000, 3_600_000_000
_Key = tuple[Any, ...]


@dataclass
class DataFiles:
    """Data files of a table as it is; nothing refers to them until they are part of a snapshot."""

    io: FileIO
    metadata: TableMetadata
    where: str
    done: list[DataFile] = field(default_factory=list[DataFile])
    _numbers: count[int] = field(default_factory=count)
    _write: uuid.UUID = field(default_factory=uuid.uuid4)

    def write(self, batches: Iterator[pa.RecordBatch], schema: Schema) -> None:
        """Write rows, those of each partition in files of their own; `schema` is what the batches have."""
        held: dict[_Key, list[pa.RecordBatch]] = {}
        sizes: dict[_Key, int] = {}
        for table in _grouped(batches, BYTES_DIVIDED):
            for batch in table.combine_chunks().to_batches():
                for key, rows in self._divided(batch, schema):
                    held.setdefault(key, []).append(rows)
                    sizes[key] = sizes.get(key, 0) + rows.nbytes
            while sum(sizes.values()) >= BYTES:
                largest = max(sizes, key=sizes.__getitem__)
                self._one(iter(held.pop(largest)), schema, largest, self.metadata.default_spec_id)
                del sizes[largest]
        for key, rows in held.items():
            self._one(iter(rows), schema, key, self.metadata.default_spec_id)

    def without_rows(self, gone: Gone) -> list[DataFile]:
        """The files that have rows which give way; `done` has the other rows of these then."""
        found = DataScan(table_metadata=self.metadata, io=self.io, row_filter=gone.filter).plan_files()
        all_match = _StrictMetricsEvaluator(self.metadata.schema(), gone.filter).eval
        return [
            task.file
            for task in found
            if (gone.is_told and all_match(task.file) == ROWS_MUST_MATCH) or self._has_left(task, gone)
        ]

    def _has_left(self, task: FileScanTask, gone: Gone) -> bool:
        """Write the rows of a file that do not give way; whether others do."""
        of = task.file
        if task.delete_files or of.file_format != FileFormat.PARQUET or of.spec_id != self.metadata.default_spec_id:
            raise DestinationRefused(
                f"{self.where}: rows that give way share the file {of.file_path} with others, and it has row-level "
                "deletes, or is no Parquet, or is divided otherwise than the table is now; rewrite it by "
                "rewrite_data_files; nothing was sent"
            )
        with self.io.new_input(of.file_path).open() as opened, pq.ParquetFile(opened) as file:
            schema = pyarrow_to_schema(file.schema_arrow)
            wanted = [self.metadata.schema().find_field(name).field_id for name in gone.names]
            if not {*wanted} <= {*schema.field_ids}:
                return False
            names = [schema.find_field(number).name for number in wanted]
            batches = file.iter_batches(_ROWS_TOLD, columns=names)
            masks = [gone.matching([batch.column(name) for name in names]) for batch in batches]
            # A bit for each row of the file.
            mask = pa.chunked_array(masks, pa.bool_()).combine_chunks()
            found = mask.true_count
            if 0 < found < of.record_count:
                self.done.append(self._file(_left(file, mask), schema, of.partition, of.spec_id))
            return found > 0

    def _one(self, batches: Iterator[pa.RecordBatch], schema: Schema, key: _Key, spec_id: int) -> None:
        self.done.append(self._file(batches, schema, Record(*key), spec_id))

    def _file(self, batches: Iterator[pa.RecordBatch], schema: Schema, partition: Record, spec_id: int) -> DataFile:
        location = load_location_provider(self.metadata.location, self.metadata.properties)
        path = location.new_data_location(f"00000-{next(self._numbers)}-{self._write}.parquet")
        output = self.io.new_output(path)
        writer = ParquetFormatWriter(output, schema, self.metadata.properties)
        with writer:
            for rows in _grouped(batches, BYTES):
                writer.write(rows)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=len(output),
            sort_order_id=None,
            spec_id=spec_id,
            equality_ids=None,
            key_metadata=None,
            **writer.result().to_serialized_dict(),
        )

    def _divided(self, batch: pa.RecordBatch, schema: Schema) -> Iterator[tuple[_Key, pa.RecordBatch]]:
        """The rows of each partition, and its values as Iceberg keeps them."""
        parts = self.metadata.spec().fields
        if not parts:
            yield (), batch
            return
        names = [str(number) for number in range(len(parts))]
        keys = pa.table([self._value(part, batch, schema) for part in parts], names=names)
        numbered = keys.append_column("row", pa.array(np.arange(len(batch), dtype=np.int32)))
        groups = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])
        for key, rows in zip(groups.select(names).to_pylist(), groups["row_list"], strict=True):
            yield tuple(key.values()), batch.take(rows.values)

    def _value(self, part: PartitionField, batch: pa.RecordBatch, schema: Schema) -> pa.Array:
        kind = self.metadata.schema().find_field(part.source_id).field_type
        if part.source_id not in schema.field_ids or isinstance(part.transform, VoidTransform):
            # A column of somebody else's has no values of ours.
            return pa.nulls(len(batch), pa.int32())
        if isinstance(kind, FloatType | DoubleType):
            raise DestinationRefused(
                f"{self.where} is divided by {part.name}, a {kind}, of which not every value is like itself; name "
                "another table"
            )
        values = batch.column(schema.fields.index(schema.find_field(part.source_id)))
        match part.transform:
            case IdentityTransform():
                return _physical(values)
            case YearTransform() | MonthTransform() | DayTransform() | HourTransform():
                return _in_time(part.transform, values, isinstance(kind, DateType))
            case transform:
                return transform.pyarrow_transform(kind)(values)


def _physical(values: pa.Array) -> pa.Array:
    """Days and moments as numbers."""
    if pa.types.is_timestamp(values.type):
        return values.view(pa.int64())
    return values.view(pa.int32()) if pa.types.is_date(values.type) else values


def _in_time(transform: object, values: pa.Array, is_date: bool) -> pa.Array:
    """Whole years, months, days or hours since 1970. pyiceberg's core has a wrong day for some moments before that."""
    numbers = _physical(values)
    if not is_date and isinstance(transform, DayTransform | HourTransform):
        return _floored(numbers, _MICROS_OF_DAY if isinstance(transform, DayTransform) else _MICROS_OF_HOUR)
    if isinstance(transform, DayTransform):
        return numbers
    # Without its zone, which is UTC, no database of zones is asked.
    local = values if is_date else numbers.view(pa.timestamp("us"))
    years = pc.subtract(pc.year(local), 1970)
    if isinstance(transform, YearTransform):
        return years.cast(pa.int32())
    return pc.add(pc.multiply(years, 12), pc.subtract(pc.month(local), 1)).cast(pa.int32())


def _floored(numbers: pa.Array, unit: int) -> pa.Array:
    quotient = pc.divide(numbers, unit)
    is_before = pc.less(numbers, pc.multiply(quotient, unit))
    return pc.subtract(quotient, is_before.cast(pa.int64())).cast(pa.int32())


def _left(file: pq.ParquetFile, gone: pa.BooleanArray) -> Iterator[pa.RecordBatch]:
    """The rows of a file that do not give way."""
    done = 0
    for batch in file.iter_batches(_ROWS):
        yield batch.filter(pc.invert(gone.slice(done, len(batch))))
        done += len(batch)


def _grouped(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """The same rows in tables of this size."""
    held, found = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        found += batch.nbytes
        if found >= size:
            yield pa.Table.from_batches(held)
            held, found = [], 0
    if held:
        yield pa.Table.from_batches(held)
