"""What commits have brought: of each transaction its ranges, its rows in each sink, and how far the line has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_line, read_transaction
from ratchet.ledger.work import Claim, OffsetRange
from ratchet.protocol import plan


@dataclass(frozen=True)
class Effect:
    """A committed transaction, or a committed revision of one; `rows` are those of its delta, by sink."""

    txid: int
    revision: int
    ranges: tuple[OffsetRange, ...]
    rows: Mapping[str, int]
    committed_at: datetime


@dataclass(frozen=True)
class Effects:
    """Transactions that are committed, in order.

    `watermark` is of the whole line: {partition: before which offset every record has taken effect, or is given up}. Of
    a line of several topics a partition is named as `topic-partition`, of another one by its number.
    """

    pipeline: str
    transactions: tuple[Effect, ...]
    watermark: Mapping[str, int]


def effects_of(ledger: Ledger, claim: Claim, committed: tuple[int, ...], besides: int = 0) -> Effects:
    """What is committed of the claim's transaction and of those that its commit took along, in order.

    With `besides`, also of so many right behind it: a commit that is tried again does not know any more which it took.
    Nothing of what is voided.
    """
    with ledger.snapshot() as conn:
        line = read_line(conn, claim.pipeline)
        assert line is not None, "a foreign key holds each transaction to its pipeline"
        behind = () if claim.revision else range(claim.txid, min(claim.txid + besides, line.head) + 1)
        wanted = sorted({(claim.txid, claim.revision), *((txid, claim.revision) for txid in (*committed, *behind))})
        _, reached = plan.reached(conn, line)
        only = len(line.topics) == 1
        watermark = {str(p) if only else line.topics.said(p): at for p, at in sorted(reached.items())}
        found = [read_transaction(conn, claim.pipeline, *row) for row in wanted]
        effects = [
            Effect(
                row.txid,
                row.revision,
                tuple(plan.ranges_of(conn, row.pipeline, row.txid)),
                {sink: int(str(applied["rows"])) for sink, applied in (row.applied or {}).items()},
                row.committed_at,
            )
            for row in found
            if row.state == State.COMMITTED and row.committed_at is not None
        ]
    return Effects(claim.pipeline, tuple(effects), watermark)
