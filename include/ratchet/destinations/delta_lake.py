"""DeltaLake: a Delta Lake table in a directory or an object store, which Spark, DuckDB, pandas and others read."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from ratchet.destinations.dataset import Dataset
from ratchet.destinations.directory import directory_of, undivided
from ratchet.destinations.object_store import ObjectStore, check_connection, is_in_store, spelt
from ratchet.destinations.port import NONE, Destination, Outside, Owner, Registries
from ratchet.spec.columns import Column
from ratchet.spec.destination import ReachedBy


class DeltaLake(Destination, frozen=True):
    """A Delta Lake table, which gets every row of its sink; each commit is one version of it.

    Its name is a directory that every process of Airflow sees under the same path, or a place in an object store with
    the interface of Amazon S3: `s3://bucket/orders`.
    """

    can_revise: ClassVar[bool] = True
    kind: Literal["delta_lake"] = "delta_lake"
    store: str | None = None
    """The id of the Airflow connection to the object store, of type `aws`; none for a directory."""
    partition_by: tuple[str, ...] = ()
    """Columns by which the files of a table that is made are divided into directories: dates, booleans, numbers without
    fraction, or strings, of few values each."""

    @field_validator("name")
    @classmethod
    def _is_place(cls, name: str) -> str:
        # One table has one address.
        return spelt(name) if is_in_store(name) else directory_of(name)

    @model_validator(mode="after")
    def _has_its_connection(self) -> DeltaLake:
        check_connection(self.name, self.store)
        return self

    @field_validator("partition_by", mode="before")
    @classmethod
    def _is_list(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given

    @property
    def reached_by(self) -> ReachedBy:
        return "aws" if is_in_store(self.name) else "path"

    @property
    def connection(self) -> str | None:
        return self.store

    @property
    def address(self) -> str:
        return f"delta:{self.name}"

    def dataset(self, by: str) -> Dataset:
        return Dataset.of_place(self.name)

    def misfit(self, fields: Sequence[Column], key: Sequence[Column]) -> str | None:
        unfit = undivided(self.partition_by, fields)
        return f"{self.address}: {unfit}" if unfit else None

    @contextmanager
    def open(self, owner: Owner, by: str, registries: Registries = NONE) -> Generator[Outside]:
        # Specs are read without the library.
        from ratchet.destinations.lake import Lake

        yield Lake(self, owner, ObjectStore.at(self.name, by) if is_in_store(self.name) else None)
