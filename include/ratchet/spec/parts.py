"""What a pipeline asks of the sinks and gates that its spec names, whatever their kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pydantic import Field, field_validator

from ratchet.spec.declaration import Declaration, table_name
from ratchet.spec.source import Topic


class DeclaredSink(Declaration, ABC, frozen=True):
    """A table that a pipeline writes; `name` is `table` (in public) or `schema.table`."""

    name: str = Field(kw_only=False)
    _check_name = field_validator("name")(table_name)

    @property
    def table(self) -> tuple[str, str]:
        """(schema, table)."""
        schema, _, table = self.name.rpartition(".")
        return schema or "public", table

    @property
    def needs_key(self) -> bool:
        """Whether a record without a Kafka key is an error."""
        return False

    def misfit(self, source: Topic) -> str | None:
        """Why this source cannot feed the sink, in a line; None where it can."""
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
