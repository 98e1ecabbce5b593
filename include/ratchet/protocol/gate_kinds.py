"""The kinds of gates that a spec may name; each says yes or no to what is prepared, with its numbers."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

from pydantic import Field
from sqlalchemy import CTE, Boolean, Connection, literal_column, select
from sqlalchemy.exc import DBAPIError, OperationalError

from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.sinks import delta
from ratchet.sinks.port import Rows, Sink
from ratchet.spec.parts import DeclaredGate, DeclaredSink
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.values.withheld import postgres_said

Answer = dict[str, object]
"""`{"yes": bool, "why": a line, and the numbers}`."""


@dataclass(frozen=True)
class Prepared:
    """What a gate is asked about: a prepared epoch, and which rows its votes name.

    Of a release `records` are those of its transaction, and `before` has how many rows of it stay: {sink: rows}.
    """

    pipeline: str
    txid: int
    records: int
    written: Mapping[str, tuple[Sink, Rows]]
    """{sink: (itself, the rows for it)}, the dead letters among them."""
    private: bool = False
    """Whether an answer must not show values."""
    before: Mapping[str, int] = field(default_factory=dict[str, int])

    def rows(self, sink: str) -> int:
        """How many rows the transaction has in one sink with those that the votes name."""
        return self.before.get(sink, 0) + self.written[sink][1].count


class Gate(DeclaredGate, ABC, frozen=True):
    """A check on what is prepared; it may read whatever the snapshot shows, and writes nothing."""

    @abstractmethod
    def ask(self, conn: Connection, of: Prepared) -> Answer:
        """Whether the epoch may be committed, and why."""


class MaxDeadLetters(Gate, frozen=True):
    """A gate that limits the dead letters among the records that were read."""

    kind: Literal["max_dead_letters"] = "max_dead_letters"
    ratio: float = Field(kw_only=False, ge=0, le=1)
    """The greatest ratio of dead letters to records."""

    @property
    def title(self) -> str:
        return f"at most {self.ratio:.4g} of the records are dead letters"

    def ask(self, conn: Connection, of: Prepared) -> Answer:
        dead = of.rows(DEAD_LETTERS)
        ratio = dead / of.records if of.records else 0.0
        why = f"{dead:,} of {of.records:,} records are dead letters, {ratio:.4g}; the limit is {self.ratio:.4g}"
        return {"yes": ratio <= self.ratio, "why": why, "dead_letters": dead, "records": of.records, "ratio": ratio}


class MaxChange(Gate, frozen=True):
    """A gate that limits how far the rows per record of one sink move from the median of committed transactions.

    The first transaction passes.
    """

    kind: Literal["max_change"] = "max_change"
    sink: str = Field(kw_only=False)
    """The name of the sink."""
    factor: float = Field(kw_only=False, gt=1, allow_inf_nan=False)
    """By which factor it may change at most, up or down."""
    over: Annotated[int, Field(ge=1, le=1000)] = 10
    """How many transactions the median is of, the last ones."""

    @property
    def title(self) -> str:
        return f"rows of {self.sink} change by {self.factor:.4g} at most"

    def misfit(self, sinks: Sequence[DeclaredSink]) -> str | None:
        if self.sink in {sink.name for sink in sinks}:
            return None
        return f"MaxChange names {self.sink!r}, which is no sink of this pipeline"

    def ask(self, conn: Connection, of: Prepared) -> Answer:
        rows = of.rows(self.sink)
        now = rows / of.records if of.records else 0.0
        before = self._rows_per_record(conn, of)
        numbers = {"rows": rows, "records": of.records, "rows_per_record": now}
        if not before or not of.records:
            return {"yes": True, "why": "there is nothing to compare with", **numbers}
        usual = statistics.median(before)
        least, greatest = usual / self.factor, usual * self.factor
        why = (
            f"{self.sink} has {rows:,} rows of {of.records:,} records, {now:.4g} each; the median of the last "
            f"{len(before)} transactions is {usual:.4g}, so {least:.4g} to {greatest:.4g} may pass"
        )
        return {"yes": least <= now <= greatest, "why": why, "median": usual, "transactions": len(before), **numbers}

    def _rows_per_record(self, conn: Connection, of: Prepared) -> list[float]:
        c = transactions.c
        found = conn.execute(
            select(c.applied, c.records)
            .where(c.pipeline == of.pipeline, c.txid != of.txid, c.revision == 0, c.state == State.COMMITTED)
            .where(c.records > 0)
            .order_by(c.txid.desc())
            .limit(self.over)
        )
        return [row.applied[self.sink]["rows"] / row.records for row in found if self.sink in (row.applied or {})]


class Condition(Gate, frozen=True):
    """A gate that is an SQL expression over the prepared rows, which must be true.

    A sink's prepared rows are a table with the sink's name (`schema_table` for `schema.table`), and so are
    `dead_letters`; every other table is what it is in the database. Nothing can be written.
    """

    kind: Literal["condition"] = "condition"
    name: str = Field(kw_only=False, min_length=1, max_length=100)
    """What the gate demands, in a few words."""
    sql: str = Field(kw_only=False, min_length=1)
    """The expression, as `"not exists (select from orders where amount < 0)"`."""

    @property
    def title(self) -> str:
        return self.name

    def ask(self, conn: Connection, of: Prepared) -> Answer:
        tables: list[CTE] = [
            delta.named(rows, sink).cte(name.replace(".", "_")) for name, (sink, rows) in of.written.items()
        ]
        try:
            # The expression is the spec's, which is code.
            with conn.begin_nested():
                asked = select(literal_column(f"({self.sql})", Boolean)).add_cte(*tables)
                answer = cast("bool | None", conn.execute(asked).scalar_one())
        except OperationalError:
            raise
        except DBAPIError as error:
            assert error.orig is not None, "of a statement that PostgreSQL has refused"
            why = postgres_said(error.orig, private=of.private).splitlines()[0]
            return {"yes": False, "why": f"it cannot be evaluated: {why}"}
        return {"yes": answer is True, "why": f"{self.sql} is {'null' if answer is None else str(answer).lower()}"}
