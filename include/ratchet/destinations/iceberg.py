"""Iceberg: a table in an Apache Iceberg catalog, which Spark, Trino, DuckDB and others read."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import field_validator

from ratchet.destinations.dataset import Dataset
from ratchet.destinations.port import NONE, Destination, Outside, Owner, Registries
from ratchet.spec.columns import Column
from ratchet.spec.destination import ReachedBy
from ratchet.spec.types import Binary, Boolean, Date, Decimal, Integer, String, Timestamp, Type, Uuid

PARTITION = "_source_partition"
"""What `_partition` is called there: Iceberg's own readers keep that name for themselves."""
RESERVED = frozenset(
    {"_partition", "_file", "_pos", "_deleted", "_spec_id", "_row_id", "_last_updated_sequence_number"}
    | {"_change_type", "_change_ordinal", "_commit_snapshot_id", PARTITION}
)
"""Names that readers of Iceberg have given to columns of their own, in small letters."""
_TRANSFORM = re.compile(r"(?:(\w+)\(\s*(?:(\d+)\s*,\s*)?(\w+)\s*\)|(\w+))")
_KINDS: dict[str, tuple[type, ...]] = {
    "identity": (Boolean, Date, Decimal, Integer, String, Timestamp, Uuid),
    "year": (Date, Timestamp),
    "month": (Date, Timestamp),
    "day": (Date, Timestamp),
    "hour": (Timestamp,),
    "bucket": (Binary, Date, Decimal, Integer, String, Timestamp, Uuid),
    "truncate": (Binary, Decimal, Integer, String),
}
_SIZED = ("bucket", "truncate")


@dataclass(frozen=True)
class Part:
    """One of the values by which a table is divided: a column, or a transform of one, by Iceberg's names."""

    transform: str
    column: str
    size: int | None = None

    @property
    def name(self) -> str:
        """What the value is called there, as Spark would call it."""
        ending = {"identity": "", "truncate": "_trunc"}.get(self.transform, f"_{self.transform}")
        return self.column + ending

    def fits(self, kind: Type) -> bool:
        return isinstance(kind, _KINDS[self.transform])


def part_of(said: str) -> Part:
    """What `day(at)`, `bucket(16, customer_id)` or `customer_id` means; ValueError for what is none of these."""
    found = _TRANSFORM.fullmatch(said.strip())
    if found is not None:
        transform, size, column, bare = found.groups()
        if bare:
            return Part("identity", bare)
        is_sized = transform in _SIZED
        if transform in _KINDS and transform != "identity" and is_sized == bool(size) and size != "0":
            return Part(transform, column, int(size) if size else None)
    raise ValueError(
        f"{said!r} divides no table; give a column, or year, month, day or hour of one as 'day(at)', or "
        "'bucket(16, customer_id)', or 'truncate(10, name)'"
    )


class Iceberg(Destination, frozen=True):
    """An Apache Iceberg table, which gets every row of its sink; each commit is one snapshot of it."""

    can_revise: ClassVar[bool] = True
    kind: Literal["iceberg"] = "iceberg"
    catalog: str
    """The id of the Airflow connection to the catalog, of type `iceberg`."""
    partition_by: tuple[str, ...] = ()
    """By what the files of a table that is made are divided, by Iceberg's transforms: `day(at)`, `bucket(16,
    customer_id)`, or a column as it is."""

    @field_validator("name")
    @classmethod
    def _is_table(cls, name: str) -> str:
        if not re.fullmatch(r"[\w-]+(\.[\w-]+)+", name):
            raise ValueError(f"{name!r} is no table in a namespace; give both, as sales.orders")
        return name

    @field_validator("catalog")
    @classmethod
    def _is_named(cls, catalog: str) -> str:
        if not catalog:
            raise ValueError("name the Airflow connection to the catalog")
        return catalog

    @field_validator("partition_by", mode="before")
    @classmethod
    def _is_list(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given

    @field_validator("partition_by")
    @classmethod
    def _are_parts(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for said in given:
            part_of(said)
        return given

    @property
    def reached_by(self) -> ReachedBy:
        return "iceberg"

    @property
    def connection(self) -> str:
        return self.catalog

    @property
    def address(self) -> str:
        return f"{self.catalog}:{self.name}"

    @property
    def parts(self) -> tuple[Part, ...]:
        """By what a table that is made is divided."""
        return tuple(map(part_of, self.partition_by))

    def dataset(self, by: str) -> Dataset:
        """Where its files are, which the catalog knows: so whatever reads them calls it."""
        # Specs are read without the library.
        from ratchet.destinations.iceberg_catalog import opened

        with opened(self.catalog, by, self.address) as catalog:
            return Dataset.of_place(catalog.load_table(self.name).location())

    def misfit(self, fields: Sequence[Column], key: Sequence[Column]) -> str | None:
        known = {column.name: column for column in fields}
        spelt: dict[str, str] = {}
        for name in known:
            if name.casefold() in RESERVED:
                return f"{self.address}: readers of Iceberg have a column {name} of their own; call it otherwise"
            if spelt.setdefault(name.casefold(), name) != name:
                return f"{self.address}: {spelt[name.casefold()]} and {name} differ only in case, which readers do not"
        for part in self.parts:
            if part.column not in known:
                return f"{self.address}: partition_by {part.column!r} is not one of columns: {', '.join(known)}"
            kind = known[part.column].type
            if not part.fits(kind):
                return f"{self.address}: partition_by {part.column!r}: Iceberg has no {part.transform} of a {kind}"
            if part.transform != "identity" and part.name.casefold() in spelt:
                return (
                    f"{self.address}: partition_by {part.column!r}: Iceberg calls its {part.transform} {part.name}, "
                    "and a column has that name; call the column otherwise"
                )
        columns = [part.column for part in self.parts]
        return f"{self.address}: partition_by names a column twice" if len(set(columns)) != len(columns) else None

    @contextmanager
    def open(self, owner: Owner, by: str, registries: Registries = NONE) -> Generator[Outside]:
        # Specs are read without the library.
        from ratchet.destinations.iceberg_table import IcebergTable

        with IcebergTable.connected(self, owner, by) as outside:
            yield outside
