"""What is applied of committed transactions: which revision the sinks hold, and what its votes say of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from sqlalchemy import ColumnElement, Connection, func, select

from ratchet.ledger.schema import slices, transactions
from ratchet.ledger.states import State
from ratchet.protocol.votes import vote_from_json
from ratchet.sinks.checksum import MODULUS
from ratchet.sinks.port import Voted

_AT_A_TIME = 2_000
"""So many rows of the ledger are in memory when all are read."""


def newest_applied(conn: Connection, pipeline: str, txid: int) -> int | None:
    """The revision whose deltas the sinks hold; None when nothing of the transaction was applied."""
    query = select(func.max(transactions.c.revision)).where(
        transactions.c.pipeline == pipeline, transactions.c.txid == txid, transactions.c.state == State.COMMITTED
    )
    return conn.execute(query).scalar_one()


def are_applied(pipeline: str, first: int, last: int) -> tuple[ColumnElement[bool], ...]:
    """The conditions for what was applied of these transactions; the deltas that are kept are the newest one's."""
    c = transactions.c
    return c.pipeline == pipeline, c.txid.between(first, last), c.state == State.COMMITTED, c.applied.is_not(None)


def voted(conn: Connection, pipeline: str, sink: str, first: int, last: int) -> Iterator[Voted]:
    """What was committed of each transaction for one sink: by the newest revision, of a spec that had the sink."""
    t, s = transactions.c, slices.c
    # For each transaction by itself: joined, its slices might be looked for among all of the line's.
    of_epoch = (s.pipeline == t.pipeline, s.txid == t.txid, s.epoch == t.epoch, s.voted_at.is_not(None))
    votes = select(func.jsonb_agg(s.sinks[sink])).where(*of_epoch).scalar_subquery()
    query = select(t.txid, t.applied[sink].label("applied"), votes.label("votes"))
    query = query.where(*are_applied(pipeline, first, last)).order_by(t.txid, t.revision)
    rows = conn.execute(query, execution_options={"yield_per": _AT_A_TIME})
    for txid, revisions in groupby(rows, key=lambda row: row.txid):
        newest_first = list(revisions)[::-1]
        row = next((row for row in newest_first if row.applied), newest_first[0])
        voted = [vote_from_json(vote) for vote in row.votes or () if vote]
        rows_of, checksum = sum(v.rows for v in voted), sum(v.checksum for v in voted) % MODULUS
        yield Voted(txid, rows_of, checksum, row.applied)
