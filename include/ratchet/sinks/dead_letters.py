"""The dead letters: records that give no row, with their bytes and the reason; a sink of every pipeline."""

from __future__ import annotations

from typing import ClassVar, Literal

from sqlalchemy import ColumnElement, Connection, FromClause, Table, delete

from ratchet.errors import StageMismatch
from ratchet.ledger import letters
from ratchet.ledger.schema import DELTA_SCHEMA, SCHEMA, dead_letter_deltas, dead_letters
from ratchet.ledger.work import Relation
from ratchet.sinks.kept import Kept
from ratchet.sinks.port import Applied, Delta, Taken, Touched
from ratchet.sinks.types import PIPELINE, POSITION
from ratchet.spec.columns import Column
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.spec.types import BINARY, STRING, TIMESTAMP

PLACE = POSITION[:2]
"""A record is one dead letter at most."""


class DeadLetters(Kept, frozen=True):
    """Records that give no row, with their bytes and the reason, in the ledger."""

    is_view: ClassVar[bool] = True
    name: str = DEAD_LETTERS
    kind: Literal["dead_letters"] = "dead_letters"

    @property
    def table(self) -> tuple[str, str]:
        return SCHEMA, dead_letters.name

    @property
    def needed(self) -> tuple[Column, ...]:
        return (
            Column("timestamp", TIMESTAMP),
            Column("key", BINARY),
            Column("value", BINARY),
            Column("headers", STRING),
            Column("error", STRING, False),
        )

    @property
    def written(self) -> tuple[Column, ...]:
        return (*self.needed, *PLACE)

    @property
    def added(self) -> tuple[Column, ...]:
        return (*super().added, PIPELINE)

    @property
    def position(self) -> tuple[Column, ...]:
        return PLACE

    @property
    def home(self) -> Relation:
        return DELTA_SCHEMA, dead_letter_deltas.name

    @property
    def rows_table(self) -> Table:
        return dead_letter_deltas

    @property
    def target(self) -> Table:
        return dead_letters

    @property
    def tables(self) -> tuple[Table, ...]:
        """The ledger's own migration makes it, for all pipelines together."""
        return ()

    @property
    def described(self) -> str:
        return "records that cannot be read or that the transform gives up, with the reason"

    def mine(self, rows: FromClause, pipeline: str) -> list[ColumnElement[bool]]:
        return [rows.c._pipeline == pipeline]

    def _give_way(self, conn: Connection, of: Delta) -> Taken | None:
        """Of a release, those that it has read; what they were is noted, since their transaction's votes name them."""
        if of.release is None:
            return super()._give_way(conn, of)
        which = letters.taken(of.pipeline, of.txid, of.release.errors)
        taken = self.sum_of(conn, of.pipeline, of.txid, which)
        conn.execute(delete(self.rows_table).where(*which))
        if taken.rows != of.release.letters:
            raise StageMismatch(
                f"{of.pipeline}: transaction {of.txid}: {taken.rows:,} dead letters would be taken away, the release's "
                f"votes say {of.release.letters:,}"
            )
        return taken

    def refold(self, conn: Connection, of: Delta, left: Touched | Taken | None, head: int) -> Applied:
        noted = super().refold(conn, of, left, head)
        if isinstance(left, Taken):
            # The checksum as text, since JSON numbers are not 64 bits wide.
            noted["taken"] = {"rows": left.rows, "checksum": str(left.checksum)}
        return noted
