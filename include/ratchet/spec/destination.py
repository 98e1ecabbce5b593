"""What a pipeline asks of the destinations that its sinks name, whatever their kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

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
    @abstractmethod
    def address(self) -> str:
        """What the ledger, commands and people call it; unlike all others of its pipeline, and of one line."""

    @abstractmethod
    def misfit(self, fields: Sequence[Column]) -> str | None:
        """Why rows of these declared columns cannot be kept there, in a line; None where they can."""
