"""Append into a table that the user brought: it knows no head, so each commit copies its rows from a stage."""

from __future__ import annotations

from functools import cache
from typing import ClassVar, Literal

from pydantic import field_validator
from sqlalchemy import ColumnElement, Connection, MetaData, Table, case, delete, insert, literal

from ratchet.ledger.topics import PER_TOPIC, Topics
from ratchet.sinks import delta
from ratchet.sinks.kept import Kept
from ratchet.sinks.port import Applied, Delta, Taken, Touched
from ratchet.sinks.types import POSITION, TXID, sql_column
from ratchet.spec.columns import Column, parse_columns
from ratchet.spec.declaration import sink_columns
from ratchet.spec.types import STRING

TOPIC = Column("_topic", STRING, False)


class Copied(Kept, frozen=True):
    """What `Append(…, existing=True)` is: every row that the transform returns, once, in a table of the user's own."""

    is_view: ClassVar[bool] = False
    kind: Literal["copied"] = "copied"
    columns: str
    _check = field_validator("columns")(sink_columns)

    @property
    def needed(self) -> tuple[Column, ...]:
        return parse_columns(self.columns)

    @property
    def written(self) -> tuple[Column, ...]:
        return (*self.needed, *POSITION)

    @property
    def position(self) -> tuple[Column, ...]:
        return POSITION

    @property
    def stages(self) -> bool:
        return True

    @property
    def brings_table(self) -> bool:
        return True

    @property
    def target(self) -> Table:
        return target_table(self.table, self.needed)

    @property
    def rows_table(self) -> Table:
        return self.target

    @property
    def tables(self) -> tuple[Table, ...]:
        return (self.target,)

    @property
    def described(self) -> str:
        return f"every row, once, in a table of your own: `{self.columns}`"

    def fold(self, conn: Connection, of: Delta) -> Applied:
        into, staged = self.target, delta.table(of.rows.relation, self)
        given = {"_topic": _name(of.topics, staged.c._partition), TXID.name: staged.c._txid}
        names = [c.name for c in into.columns]
        picked = delta.named(of.rows, self).with_only_columns(*(given.get(n, staged.c.get(n)) for n in names))
        copying = insert(into).from_select(names, picked).execution_options(preserve_rowcount=True)
        delta.counted(of, self, conn.execute(copying).rowcount)
        return self.noted(of)

    def replace(self, conn: Connection, of: Delta, head: int) -> None:
        """Nothing yet: whoever reads the table sees what is in it, so that is exchanged under the commit lock."""

    def refold(self, conn: Connection, of: Delta, left: Touched | Taken | None, head: int) -> Applied:
        if of.release is None:
            conn.execute(delete(self.target).where(self.target.c._txid == of.txid))
        return self.fold(conn, of)


def _name(topics: Topics, partition: ColumnElement[int]) -> ColumnElement[str]:
    """The topic that a partition of the line is of."""
    if len(topics) == 1:
        return literal(topics.names[0])
    return case(dict(enumerate(topics.names)), value=partition // PER_TOPIC)


@cache
def target_table(place: tuple[str, str], fields: tuple[Column, ...]) -> Table:
    """Rows as readers see them; the same object each time, so that SQLAlchemy compiles a statement about it once."""
    schema, name = place
    return Table(name, MetaData(), *map(sql_column, (*fields, TOPIC, *POSITION, TXID)), schema=schema)
