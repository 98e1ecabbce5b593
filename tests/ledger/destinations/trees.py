"""A pipeline whose rows go to files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from ratchet import Files
from ratchet.destinations.file_log import Version
from ratchet.destinations.port import Destination

from .lakes import LakeOf


@dataclass
class FilesOf(LakeOf):
    """A pipeline whose rows go to files below a directory."""

    @property
    def to(self) -> Destination:
        return Files(str(self.path), **self.more)

    def table(self) -> pa.Table:
        """What a reader of directories finds, with the columns that are names of directories."""
        form = self.more.get("format", "parquet")
        return ds.dataset(str(self.data), format=form, partitioning="hive", exclude_invalid_files=True).to_table()

    def rows(self) -> list[tuple]:
        return super().rows() if self.seen() else []

    def seen(self) -> list[str]:
        """The files that readers see, below the directory."""
        return sorted(str(path.relative_to(self.data)) for path in self.data.rglob("*") if path.is_file())

    @property
    def path(self) -> Path:
        return Path(self.where.name)

    @property
    def data(self) -> Path:
        return self.path / "data"

    def hidden(self, name: str) -> list[str]:
        """What is in a directory that readers do not see."""
        return sorted(path.name for path in (self.path / "_ratchet" / name).glob("*"))

    def record(self, number: int) -> Version:
        return Version.model_validate_json(self.place(number).read_bytes())

    def place(self, number: int) -> Path:
        return self.path / "_ratchet/log" / f"{number // 1000:010d}" / f"{number:010d}"
