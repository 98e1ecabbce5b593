"""What a pipeline asks of the destinations that its sinks name, whatever their kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, InstanceOf, SerializeAsAny

from ratchet.spec.columns import Column
from ratchet.spec.declaration import Declaration

ReachedBy = Literal["postgres", "kafka", "aws", "iceberg", "path"]
"""By an Airflow connection of one of these types, or by a path."""


class DeclaredDestination(Declaration, ABC, frozen=True):
    """A place outside of the ledger's database that gets the rows of a sink, commit by commit."""

    name: str = Field(kw_only=False)
    """What it is called where it is: a topic, a table, a directory."""
    can_revise: ClassVar[bool]
    """Whether rows that it has can give way to others, as a revision asks."""

    @property
    @abstractmethod
    def reached_by(self) -> ReachedBy:
        """What leads to it."""

    @property
    @abstractmethod
    def connection(self) -> str | None:
        """The id of the Airflow connection to it; None for the pipeline's own of that type, or by a path."""

    @property
    def registries(self) -> tuple[str, ...]:
        """The ids of the connections of the registries that get the schemas of its rows."""
        return ()

    @property
    @abstractmethod
    def address(self) -> str:
        """What the ledger, commands and people call it; unlike all others of its pipeline, and of one line."""

    @abstractmethod
    def misfit(self, fields: Sequence[Column], key: Sequence[Column]) -> str | None:
        """Why rows of these declared columns, of which these are their key, cannot be kept there, in a line; None where
        they can.
        """


def _are_destinations(given: object) -> object:
    """pydantic would say the name of a class that no user knows; one need not be a list."""
    parts = cast("Sequence[object]", given if isinstance(given, list | tuple) else (given,))
    for part in parts:
        if not isinstance(part, DeclaredDestination):
            raise ValueError(f"it is a {type(part).__name__}; give an object such as Table(…), or a list of these")
    return tuple(parts)


_One = SerializeAsAny[InstanceOf[DeclaredDestination]]
To = Annotated[_One | Sequence[_One], BeforeValidator(_are_destinations)]
"""One destination, or a list of them, which the validator makes a tuple."""


def listed(to: To) -> tuple[DeclaredDestination, ...]:
    """The destinations of a declaration."""
    # Its validator has made it a tuple.
    return cast("tuple[DeclaredDestination, ...]", to)


def misfit_of_keys(key: Sequence[Column]) -> str | None:
    """Why a destination cannot tell rows by this key, in a line; None where it can."""
    for column in key:
        if column.nullable:
            return f"key {column.name!r} may be null, by which no destination finds a row; declare it not null"
        if column.floating:
            return (
                f"key {column.name!r} is a {column.type}, which a destination may compare otherwise; cast it in the "
                f"transform and declare {column.name} decimal(18,6)"
            )
    return None
