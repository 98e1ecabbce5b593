"""Table: a table in another PostgreSQL database."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import field_validator

from ratchet.destinations.dataset import Dataset
from ratchet.destinations.port import NONE, Destination, Outside, Owner, Registries
from ratchet.spec.columns import Column
from ratchet.spec.declaration import table_name
from ratchet.spec.destination import ReachedBy


class Table(Destination, frozen=True):
    """A table in another PostgreSQL database, which gets every row of its sink, with the columns of the sink's view."""

    can_revise: ClassVar[bool] = True
    kind: Literal["table"] = "table"
    database: str
    """The id of the Airflow connection to the database."""
    _check_name = field_validator("name")(table_name)

    @field_validator("database")
    @classmethod
    def _is_named(cls, database: str) -> str:
        if not database:
            raise ValueError("name the Airflow connection to the database")
        return database

    @property
    def reached_by(self) -> ReachedBy:
        return "postgres"

    @property
    def connection(self) -> str:
        return self.database

    @property
    def address(self) -> str:
        return f"{self.database}:{self.name}"

    @property
    def place(self) -> tuple[str, str]:
        """(schema, table)."""
        schema, _, table = self.name.rpartition(".")
        return schema or "public", table

    def dataset(self, by: str) -> Dataset:
        from psycopg.conninfo import conninfo_to_dict

        found = {name: str(value) for name, value in conninfo_to_dict(by).items()}
        host, port = (found.get(name, other).split(",")[0] for name, other in (("host", "localhost"), ("port", "5432")))
        return Dataset.of_table(host, port, found.get("dbname", found.get("user", "postgres")), self.place)

    def misfit(self, fields: Sequence[Column], key: Sequence[Column]) -> str | None:
        return None

    @contextmanager
    def open(self, owner: Owner, by: str, registries: Registries = NONE) -> Generator[Outside]:
        from ratchet.destinations.elsewhere import Elsewhere

        with Elsewhere.connected(self.address, self.place, owner, by) as outside:
            yield outside
