"""DeltaLake: a Delta Lake table in a directory, which Spark, DuckDB, pandas and others read."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import ClassVar, Literal

from pydantic import field_validator

from ratchet.destinations.port import Destination, Outside, Owner
from ratchet.spec.columns import Column
from ratchet.spec.destination import ReachedBy
from ratchet.spec.types import Boolean, Date, Integer, String, Type


def is_for_directories(kind: Type) -> bool:
    """Whether the name of a directory tells each value from all others. Delta Lake's text of a negative decimal is one
    that cannot be read, and that of bytes means others.
    """
    return isinstance(kind, Boolean | Date | Integer | String)


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
        if re.search(r"[%\\\x00-\x1f]", name):
            raise ValueError(f"{name!r}: a directory of a lake has no '%', no backslash and no control character")
        path = PurePosixPath("/" + name.lstrip("/") if name.startswith("/") else name)
        if not path.is_absolute() or ".." in path.parts or len(path.parts) == 1:
            raise ValueError(f"{name!r} is no absolute path of a directory, such as /lake/orders")
        # One table has one address.
        return str(path)

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
        known = {column.name: column for column in fields}
        for name in self.partition_by:
            if name not in known:
                return f"{self.address}: partition_by {name!r} is not one of columns: {', '.join(known)}"
            if not is_for_directories(known[name].type):
                return (
                    f"{self.address}: partition_by {name!r}: the name of a directory does not hold values of type "
                    f"{known[name].type}; use a date, a boolean, a number without fraction, or a string"
                )
        if len(set(self.partition_by)) != len(self.partition_by):
            return f"{self.address}: partition_by names a column twice"
        if known and set(self.partition_by) == set(known):
            return f"{self.address}: partition_by names every column; leave one to the files"
        return None

    @contextmanager
    def open(self, owner: Owner, by: str) -> Generator[Outside]:
        # Specs are read without the library.
        from ratchet.destinations.lake import Lake

        yield Lake(self, owner)
