"""The values of a topic's records, by the formats that a topic can be sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from psycopg import sql

from ratchet.destinations import rendered
from ratchet.destinations.rendered import Expression
from ratchet.spec.columns import Column

Row = tuple[Any, ...]
Record = tuple[str | bytes | None, str | bytes | None, str]
"""Value, which is None for a key without a row; key; what its header says."""
Refused = Callable[[str, str], Exception]
"""The error for a row of which no record can be made, by its header, and why."""
_UNKEPT = "a value that JSON does not hold (NaN, an infinity, JSON's null, a day outside of the years 1 to 9999)"


class RecordValues(ABC):
    """Makes records of rows of certain columns."""

    asked: list[Expression]
    """What is asked of each row, before its key and its header."""

    @abstractmethod
    def records(self, rows: Iterable[Row], refused: Refused) -> Iterator[Record]:
        """The record of each row, in their order."""


class JsonValues(RecordValues):
    """Objects whose members are the columns."""

    def __init__(self, fields: Sequence[Column], *, keyed: bool):
        value = rendered.json_of(fields)
        if keyed:
            value = sql.SQL("case when _txid is not null then {} end").format(value)
        self.asked = [rendered.unfit_of(fields), value]

    def records(self, rows: Iterable[Row], refused: Refused) -> Iterator[Record]:
        for unfit, value, key, said in rows:
            if unfit is not None:
                raise refused(said, f"column {unfit} has {_UNKEPT}")
            yield value, key, said
