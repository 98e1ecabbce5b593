"""What the ledger says of the demo's pipelines while they run, and what it says of them afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from ratchet.ledger import topic_rows
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import events, heads, ranges, topics, transactions
from ratchet.ledger.states import State
from ratchet.ledger.work import OffsetRange


@dataclass(frozen=True)
class Progress:
    """Records that are processed (prepared or committed) and committed, over all pipelines watched.

    `until` is {pipeline: {partition: the offset below which all is committed}}; `trouble` is a line on the
    first transaction that was aborted, or None.
    """

    processed: int
    committed: int
    until: dict[str, dict[int, int]]
    trouble: str | None


@dataclass(frozen=True)
class Line:
    """One committed transaction: its ranges, counts and seconds, as the ledger recorded them."""

    pipeline: str
    txid: int
    ranges: tuple[OffsetRange, ...]
    records: int
    rows: dict[str, int]
    process_seconds: float
    wait_seconds: float
    commit_seconds: float


@dataclass(frozen=True)
class Overlap:
    """The greatest number of transactions that were open or prepared at one moment, and the first such moment."""

    transactions: int
    at: datetime | None


def progress(ledger: Ledger, names: Iterable[str]) -> Progress:
    """How far the pipelines are, in one snapshot."""
    t, names = transactions.c, list(names)
    with ledger.begin() as conn:
        sums = dict(
            conn.execute(
                select(t.state, func.sum(t.records))
                .where(t.pipeline.in_(names), t.revision == 0, t.state.in_([State.PREPARED, State.COMMITTED]))
                .group_by(t.state)
            ).all()
        )
        covered = conn.execute(
            select(ranges.c.pipeline, ranges.c.partition, func.max(ranges.c.until_offset))
            .join(heads, heads.c.pipeline == ranges.c.pipeline)
            .where(ranges.c.pipeline.in_(names), ranges.c.txid <= heads.c.txid)
            .group_by(ranges.c.pipeline, ranges.c.partition)
        ).all()
        aborted = conn.execute(
            select(t.pipeline, t.txid, t.epoch, t.reason)
            .where(t.pipeline.in_(names), t.state == State.ABORTED)
            .order_by(t.pipeline, t.txid)
            .limit(1)
        ).one_or_none()
    until: dict[str, dict[int, int]] = {name: {} for name in names}
    for pipeline, partition, offset in covered:
        until[pipeline][partition] = offset
    committed = int(sums.get(State.COMMITTED, 0))
    trouble = None
    if aborted is not None:
        trouble = f"{aborted.pipeline}: transaction {aborted.txid} was aborted: {aborted.reason}"
    return Progress(int(sums.get(State.PREPARED, 0)) + committed, committed, until, trouble)


def lines(ledger: Ledger, name: str) -> list[Line]:
    """The pipeline's committed transactions, in txid order."""
    t, e, r = transactions.c, events.c, ranges.c
    with ledger.begin() as conn:
        found = conn.execute(
            select(t.txid, t.records, t.opened_at, t.prepared_at, t.committed_at, e.detail)
            .join_from(transactions, events, (e.pipeline == t.pipeline) & (e.txid == t.txid) & (e.revision == 0))
            .where(t.pipeline == name, t.revision == 0, t.state == State.COMMITTED, e.move == State.COMMITTED)
            .order_by(t.txid)
        ).all()
        planned = conn.execute(
            select(r.txid, topics.c.topic, r.partition, r.from_offset, r.until_offset)
            .join(topics, topic_rows.is_of(ranges))
            .where(r.pipeline == name, r.txid > 0)
            .order_by(r.txid, r.partition)
        ).all()
    return [
        Line(
            name,
            row.txid,
            tuple(OffsetRange(*of) for txid, *of in planned if txid == row.txid),
            row.records,
            {sink: applied["rows"] for sink, applied in row.detail["applied"].items()},
            (row.prepared_at - row.opened_at).total_seconds(),
            max(0.0, (row.committed_at - row.prepared_at).total_seconds() - row.detail["seconds"]),
            row.detail["seconds"],
        )
        for row in found
    ]


def overlap(ledger: Ledger, name: str) -> Overlap:
    """From the history: how many of the pipeline's transactions were under way at once, at most."""
    with ledger.begin() as conn:
        moves = conn.execute(
            select(events.c.at, events.c.txid, events.c.move)
            .where(events.c.pipeline == name, events.c.revision == 0, events.c.move.in_([s.value for s in State]))
            .order_by(events.c.at, events.c.id)
        ).all()
    under_way: set[int] = set()
    most = Overlap(0, None)
    for at, txid, move in moves:
        (under_way.add if move in (State.OPEN, State.PREPARED) else under_way.discard)(txid)
        if len(under_way) > most.transactions:
            most = Overlap(len(under_way), at)
    return most
