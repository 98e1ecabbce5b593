"""What a pipeline asks of the sinks and gates that its spec names, whatever their kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Self, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ratchet.spec.columns import IDENTIFIER, Column
from ratchet.spec.declaration import Declaration, table_name
from ratchet.spec.destination import DeclaredDestination
from ratchet.spec.source import Topic
from ratchet.spec.types import WIDER


class Arrivals(Declaration, frozen=True):
    """Records start runs; while enough of them wait, runs follow one another."""

    min_records: Annotated[int, Field(ge=1)] = 1
    """A run starts when so many records wait that no run will take, counted in offsets."""
    max_wait: Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(days=365))] = timedelta(minutes=1)
    """A run starts when the oldest of them has waited for so long."""


def _pairs(given: object) -> object:
    return tuple(cast("Mapping[object, object]", given).items()) if isinstance(given, Mapping) else given


Renamed = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)]
"""(column, what it was called), of a spec's `{column: what it was called}`."""


class DeclaredSink(Declaration, ABC, frozen=True):
    """A table that a pipeline writes."""

    name: str = Field(kw_only=False)
    """The table: `table`, which is in schema `public`, or `schema.table`."""
    renamed: Renamed = ()
    """What columns were called, as `{"customer": "client"}`: `migrate` renames what is there instead of adding an empty
    column. Once that is done it may be left out.
    """
    _check_name = field_validator("name")(table_name)

    @property
    def table(self) -> tuple[str, str]:
        """(schema, table)."""
        schema, _, table = self.name.rpartition(".")
        return schema or "public", table

    @model_validator(mode="after")
    def _renames_fit(self) -> Self:
        was = [old for _, old in self.renamed]
        for new, old in self.renamed:
            if new not in self.named:
                raise ValueError(f"renamed: {new!r} is not one of its columns: {', '.join(self.named)}")
            if not IDENTIFIER.fullmatch(old):
                raise ValueError(f"renamed: {old!r} is not a legal column name")
            if old in self.named:
                raise ValueError(
                    f"renamed: {old!r} is a column of the spec itself; leave out of renamed what is done, and let two "
                    "columns exchange their names by way of a third one, a migration for each step"
                )
            if was.count(old) > 1:
                raise ValueError(f"renamed: two columns were {old!r}")
        return self

    @property
    def named(self) -> list[str]:
        """The names that the declaration gives to columns."""
        return [column.name for column in self.needed]

    @property
    def destinations(self) -> tuple[DeclaredDestination, ...]:
        """Where its rows go besides."""
        return ()

    @property
    def needs_key(self) -> bool:
        """Whether a record without a Kafka key is an error."""
        return False

    @property
    def takes_deletions(self) -> bool:
        """Whether a record that deletes its key means anything to it."""
        return False

    @property
    @abstractmethod
    def needed(self) -> tuple[Column, ...]:
        """The columns that a transform returns for the sink, without hidden ones."""

    def misfit(self, source: Topic) -> str | None:
        """Why this source cannot feed the sink, in a line; None where it can."""
        return None

    def lacks(self, source: Topic) -> str | None:
        """What this source alone cannot give the sink, in a line; None where it gives all.

        Columns that it does not declare as the sink needs them, and what a tombstone that deletes is to the sink.
        """
        if source.deletes and not self.takes_deletions:
            return (
                f"{self.name!r} knows no deletions, and of each one in topic {source.title!r} it would get a row "
                "without values; give a transform that says what a deletion is to it"
            )
        found = {column.name: column for column in source.columns}
        for column in self.needed:
            if column.name not in found:
                return (
                    f"{self.name!r} needs column {column.name!r}, which topic {source.title!r} does not declare; "
                    "without a transform each sink takes the columns of its own names: declare it in the source, by "
                    "from if the field has another name, or give a transform"
                )
            actual = found[column.name].type
            if actual != column.type and column.type not in WIDER.get(actual, ()):
                return (
                    f"{self.name!r} declares column {column.name!r} {column.type}, and topic {source.title!r} "
                    f"{actual}; make the two agree, or give a transform that casts it"
                )
        return None


class DeclaredGate(Declaration, ABC, frozen=True):
    """A check on the staged rows before they are committed."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it demands, in a few words, which tell it from the other gates of its pipeline."""

    def misfit(self, sinks: Sequence[DeclaredSink]) -> str | None:
        """Why the gate does not fit these sinks, in a line; None where it does."""
        return None
