"""DeltaLake: a Delta Lake table in a directory, which Spark, DuckDB, pandas and others read."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import field_validator

from ratchet.destinations.directory import directory_of, undivided
from ratchet.destinations.port import Destination, Outside, Owner
from ratchet.spec.columns import Column
from ratchet.spec.destination import ReachedBy


class DeltaLake(Destination, frozen=True):
    """A Delta Lake table, which gets every row of its sink; each commit is one version of it.

    Its name is a directory that every process of Airflow sees under the same path.
    """

    reached_by: ClassVar[ReachedBy] = "path"
    can_revise: ClassVar[bool] = True
    kind: Literal["delta_lake"] = "delta_lake"
    partition_by: tuple[str, ...] = ()
    """Columns by which the files of a table that is made are divided into directories: dates, booleans, numbers without
    fraction, or strings, of few values each."""

    @field_validator("name")
    @classmethod
    def _is_directory(cls, name: str) -> str:
        if "://" in name:
            raise ValueError(f"{name!r}: object stores are not supported yet; give a directory, such as /lake/orders")
        return directory_of(name)

    @field_validator("partition_by", mode="before")
    @classmethod
    def _is_list(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given

    @property
    def connection(self) -> None:
        return None

    @property
    def address(self) -> str:
        return f"delta:{self.name}"

    def misfit(self, fields: Sequence[Column]) -> str | None:
        unfit = undivided(self.partition_by, fields)
        return f"{self.address}: {unfit}" if unfit else None

    @contextmanager
    def open(self, owner: Owner, by: str) -> Generator[Outside]:
        # Specs are read without the library.
        from ratchet.destinations.lake import Lake

        yield Lake(self, owner)
