"""Files: files in a directory, in Parquet, CSV or JSON, which whatever reads files reads."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import field_validator

from ratchet.destinations.dataset import Dataset
from ratchet.destinations.directory import directory_of, undivided
from ratchet.destinations.fitting import unfit_for_json
from ratchet.destinations.port import NONE, Destination, Outside, Owner, Registries
from ratchet.spec.columns import Column
from ratchet.spec.destination import ReachedBy

LEVELS = "ratchet_version", "ratchet_txid"
"""Of the directories of files, from above: what readers of directories take for columns."""
FileFormat = Literal["parquet", "csv", "json"]


class Files(Destination, frozen=True):
    """Files in a directory, which get every row of an Append; each commit is a directory `ratchet_version=N` in
    `data`, which is what readers read.

    Its name is a directory that every process of Airflow sees under the same path.
    """

    can_revise: ClassVar[bool] = True
    kind: Literal["files"] = "files"
    format: FileFormat = "parquet"
    """`"parquet"`; `"csv"` with a line of names; or `"json"`, an object a line."""
    partition_by: tuple[str, ...] = ()
    """Columns by which files are divided into directories, `day=2013-01-01`, and which the files then lack: dates,
    booleans, numbers without fraction, or strings, of few values each."""

    @field_validator("name")
    @classmethod
    def _is_directory(cls, name: str) -> str:
        if "://" in name:
            raise ValueError(
                f"{name!r}: an object store shows files one by one, so that readers would see half a commit; use "
                "DeltaLake there, or give a directory, such as /lake/orders"
            )
        return directory_of(name)

    @field_validator("partition_by", mode="before")
    @classmethod
    def _is_list(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given

    @property
    def reached_by(self) -> ReachedBy:
        return "path"

    @property
    def connection(self) -> None:
        return None

    @property
    def address(self) -> str:
        return f"files:{self.name}"

    def dataset(self, by: str) -> Dataset:
        return Dataset.of_place(self.name)

    def misfit(self, fields: Sequence[Column], key: Sequence[Column]) -> str | None:
        if key:
            return (
                f"{self.address}: a row of a key cannot give way in files that readers list; use DeltaLake or Iceberg, "
                "or send the rows of an Append"
            )
        unfit = undivided(self.partition_by, fields)
        if unfit:
            return f"{self.address}: {unfit}"
        for column in fields:
            if column.name.casefold() in LEVELS:
                return f"{self.address}: column {column.name!r}: directories are called so; name the column otherwise"
            unfit = None if self.format == "parquet" else unfit_for_json(column.type)
            if unfit:
                return f"{self.address}: column {column.name!r}: {unfit}"
        return None

    @contextmanager
    def open(self, owner: Owner, by: str, registries: Registries = NONE) -> Generator[Outside]:
        # Specs are read without Arrow.
        from ratchet.destinations.file_tree import Tree

        yield Tree(self, owner)
