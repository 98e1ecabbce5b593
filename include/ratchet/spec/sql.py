"""A transform in SQL: a statement for each sink over the records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import Field, field_validator

from ratchet.errors import SpecError
from ratchet.spec.declaration import Declaration
from ratchet.spec.parts import DeclaredSink
from ratchet.spec.source import Topic
from ratchet.spec.statement import RECORDS, statement_of


class Sql(Declaration, frozen=True):
    """Statements in Spark's SQL, which make rows of each record by itself.

    `Sql(orders="select id, amount * 2 as amount from records where amount > 0")`; a name with a dot is a key of a dict,
    `Sql({"shop.orders": "…"})`. The [guide](guide.md#transforms-in-sql) says what a statement may do.
    """

    statements: Annotated[dict[str, str], Field(min_length=1, kw_only=False)]
    """A statement for each sink, by the sink's name; one named `dead_letters` gives records up."""

    def __init__(self, statements: Mapping[str, str] | None = None, /, **named: str) -> None:
        given = dict(statements or {})
        twice = sorted(given.keys() & named.keys())
        if twice:
            raise SpecError(f"Sql.statements: {twice[0]!r} is given twice, in the dict and by its name")
        super().__init__(statements={**given, **named})

    def __str__(self) -> str:
        return f"Sql({', '.join(self.statements)})"

    @field_validator("statements")
    @classmethod
    def _can_be_taken_apart(cls, given: dict[str, str]) -> dict[str, str]:
        for name, text in given.items():
            try:
                statement_of(text)
            except SpecError as error:
                # pydantic takes no message with half of a surrogate pair.
                said = f"statement {name!r}, {error}".encode(errors="backslashreplace").decode()
                raise ValueError(said) from None
        return given

    def misfits(self, source: Topic, sinks: Sequence[DeclaredSink], beside: str) -> Iterator[str]:
        """Why it does not fit a pipeline, a line each; `beside` is the name of a statement that has no sink."""
        names = [sink.name for sink in sinks]
        for name in self.statements:
            if name not in (*names, beside):
                yield (
                    f"statement {name!r} is for no sink; the sinks are {', '.join(names)}, and {beside} is for records "
                    "that are given up"
                )
        for sink in sinks:
            if sink.name not in self.statements:
                yield f"sink {sink.name!r} has no statement; give one, which selects what it declares from {RECORDS}"
        columns = [column.name for column in source.columns]
        for name, text in self.statements.items():
            statement = statement_of(text)
            misfit = statement.misfit(source.names, columns)
            if misfit:
                yield f"statement {name!r}, {misfit}"
        for sink in sinks:
            returns = statement_of(self.statements[sink.name]).returns if sink.name in self.statements else None
            missing = [c.name for c in sink.needed if returns is not None and c.name.lower() not in returns]
            if missing:
                yield (
                    f"statement {sink.name!r} does not return column {missing[0]!r}, which the sink declares; it "
                    f"returns {', '.join(sorted(returns or ()))}"
                )
