"""PREPARED: the state of a transaction whose slices have all voted, and what its votes say together."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import slices, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import move
from ratchet.ledger.work import Absent, counted
from ratchet.spec.pipeline import Pipeline


@dataclass(frozen=True)
class Prepared:
    """What the votes of an epoch say together: the records, and the declared fields that no message has."""

    row: Transaction
    records: int
    absent: tuple[Absent, ...]

    def __str__(self) -> str:
        said = f"{self.row}: every slice has voted, {counted(self.records, 'record is', 'records are')} prepared"
        return "; ".join([said, *map(str, self.absent)])


def prepare_if_complete(conn: Connection, spec: Pipeline, row: Transaction) -> Prepared | None:
    """OPEN → PREPARED if every slice of the epoch has voted; None if one has not.

    A revision of a compacted topic that lacks records is given up instead: PREPARED it is not then. The caller holds
    the transaction's lock.
    """
    mine = (slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
    missing, voted = conn.execute(
        select(func.count().filter(slices.c.voted_at.is_(None)), func.sum(slices.c.records)).where(*mine)
    ).one()
    if missing:
        return None
    records = int(voted)
    before = _read_before(conn, row) if spec.source.compacted else None
    if before is not None and records != before:
        why = (
            f"compaction has removed some of its records: {records:,} were read, and {before:,} when its result was "
            "made"
        )
        now = func.clock_timestamp()
        row = move(conn, row, State.ABORTED, who=row.run_id, why=why, reason=why, halted_at=now, claim_ended=True)
        return Prepared(row, records, ())
    row = move(
        conn,
        row,
        State.PREPARED,
        who=row.run_id,
        why="every slice has voted",
        detail={"records": records},
        prepared_at=func.clock_timestamp(),
        records=records,
    )
    return Prepared(row, records, tuple(_absent(conn, row)))


def _read_before(conn: Connection, row: Transaction) -> int | None:
    """How many records the result has that a revision is to replace; None where it replaces none.

    Compaction only takes records away, so as many are the same ones.
    """
    c = transactions.c
    if not row.revision or row.releases is not None:
        return None
    mine = (c.pipeline == row.pipeline, c.txid == row.txid)
    whole = select(c.records).where(*mine, c.state == State.COMMITTED, c.releases.is_(None))
    return conn.execute(whole.order_by(c.revision.desc()).limit(1)).scalar_one_or_none()


def _absent(conn: Connection, row: Transaction) -> list[Absent]:
    """The declared fields that no message of an epoch has, of those slices that had a good one."""
    told = conn.execute(
        select(slices.c.absent)
        .where(slices.c.pipeline == row.pipeline, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
        .where(slices.c.voted_at.is_not(None), slices.c.absent.is_not(None))
        .order_by(slices.c.slice)
    ).scalars()
    lists = [
        [Absent(column, field, tuple(names)) for column, field, names in absent]
        for absent in told
        if absent is not None
    ]
    if not lists:
        return []
    everywhere = set[str].intersection(*({a.column for a in absent} for absent in lists))
    return [a for a in lists[0] if a.column in everywhere]
