"""Files that are being written, of one version: few are open at a time, and little is held in memory."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.destinations.file_log import File, sync
from ratchet.destinations.files import FileFormat

_HELD = 64 << 20
"""So many bytes of rows wait at most, so that what is written at once is long."""
_OPEN = 64


class Writers:
    """The files below a directory, which is made for them; raises OSError."""

    def __init__(self, root: Path, form: FileFormat, header: bytes):
        self._root, self._form, self._header = root, form, header
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._held = 0
        self._open: dict[str, _Writer] = {}
        self._count = 0
        self._done: list[File] = []

    def write(self, place: str, rows: pa.RecordBatch) -> None:
        """Take rows for the directory of this name below the root."""
        self._waiting.setdefault(place, []).append(rows)
        self._held += rows.nbytes
        if self._held > _HELD:
            self._flush()

    def finish(self) -> tuple[File, ...]:
        """See that all is on the disk; what was written."""
        self._flush()
        while self._open:
            self._end(next(iter(self._open)))
        for directory, _, _ in os.walk(self._root):
            sync(Path(directory))
        return tuple(self._done)

    def abandon(self) -> None:
        """Let go of what is open."""
        for writer in self._open.values():
            writer.file.close()
        self._open.clear()

    def _flush(self) -> None:
        for place, batches in self._waiting.items():
            self._of(place, batches[0].schema).write(pa.Table.from_batches(batches))
        self._waiting, self._held = {}, 0

    def _of(self, place: str, schema: pa.Schema) -> _Writer:
        # That which was written last is closed last.
        writer = self._open.pop(place, None) or self._opened(place, schema)
        self._open[place] = writer
        return writer

    def _opened(self, place: str, schema: pa.Schema) -> _Writer:
        if len(self._open) == _OPEN:
            self._end(next(iter(self._open)))
        path = f"{place}/part-{self._count:05d}.{self._form}"
        self._count += 1
        (self._root / place).mkdir(parents=True, exist_ok=True)
        file = (self._root / path).open("xb")
        return _Parquet(path, file, schema) if self._form == "parquet" else _Lines(path, file, self._header)

    def _end(self, place: str) -> None:
        self._done.append(self._open.pop(place).finish())


class _Writer(ABC):
    def __init__(self, path: str, file: BinaryIO):
        self._path, self.file, self._rows = path, file, 0

    @abstractmethod
    def write(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows

    def finish(self) -> File:
        size = self.file.tell()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return File(path=self._path, rows=self._rows, bytes=size)


class _Parquet(_Writer):
    def __init__(self, path: str, file: BinaryIO, schema: pa.Schema):
        super().__init__(path, file)
        self._writer = pq.ParquetWriter(file, schema)

    def write(self, rows: pa.Table) -> None:
        super().write(rows)
        self._writer.write_table(rows)

    def finish(self) -> File:
        self._writer.close()
        return super().finish()


class _Lines(_Writer):
    def __init__(self, path: str, file: BinaryIO, header: bytes):
        super().__init__(path, file)
        file.write(header)

    def write(self, rows: pa.Table) -> None:
        super().write(rows)
        for line in rows.column(0).to_pylist():
            self.file.write(line.encode() + b"\n")
