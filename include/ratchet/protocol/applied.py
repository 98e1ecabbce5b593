"""What is applied of committed transactions: which revision the sinks hold, and what its votes say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, select

from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import slices, transactions
from ratchet.ledger.states import State
from ratchet.protocol.votes import vote_from_json
from ratchet.sinks import renames
from ratchet.sinks.checksum import MODULUS
from ratchet.sinks.port import Sink, Voted
from ratchet.sinks.renames import Rename

_AT_A_TIME = 2_000
"""So many rows of the ledger are in memory when all are read."""


def newest_applied(conn: Connection, pipeline: str, txid: int) -> int | None:
    """The revision whose deltas the sinks hold; None when nothing of the transaction was applied."""
    query = select(func.max(transactions.c.revision)).where(
        transactions.c.pipeline == pipeline, transactions.c.txid == txid, transactions.c.state == State.COMMITTED
    )
    return conn.execute(query).scalar_one()


def newest_whole(conn: Connection, pipeline: str, txid: int, *states: State) -> Transaction | None:
    """The newest revision that is no release, of those in one of these states: what it was cut into is the whole."""
    c = transactions.c
    mine = (c.pipeline == pipeline, c.txid == txid, c.releases.is_(None), c.state.in_(states or [*State]))
    query = select(transactions).where(*mine).order_by(c.revision.desc()).limit(1)
    return Transaction.one_or_none(conn.execute(query))


def are_applied(pipeline: str, first: int, last: int) -> tuple[ColumnElement[bool], ...]:
    """The conditions for what was applied of these transactions; the deltas that are kept are the newest one's."""
    c = transactions.c
    return c.pipeline == pipeline, c.txid.between(first, last), c.state == State.COMMITTED, c.applied.is_not(None)


def voted(conn: Connection, pipeline: str, sink: Sink, first: int, last: int) -> Iterator[Voted]:
    """What was committed of each transaction for one sink: by the newest revision, of a spec that had the sink.

    A release adds to what the revision before it has, and takes dead letters away.
    """
    t, s = transactions.c, slices.c
    # For each transaction by itself: joined, its slices might be looked for among all of the line's.
    of_epoch = (s.pipeline == t.pipeline, s.txid == t.txid, s.epoch == t.epoch, s.voted_at.is_not(None))
    votes = select(func.jsonb_agg(s.sinks[sink.name])).where(*of_epoch).scalar_subquery()
    query = select(t.txid, t.releases, t.applied[sink.name].label("applied"), votes.label("votes"))
    query = query.where(*are_applied(pipeline, first, last)).order_by(t.txid, t.revision)
    renamed = renames.of(conn, pipeline, sink)
    rows = conn.execute(query, execution_options={"yield_per": _AT_A_TIME})
    for txid, revisions in groupby(rows, key=lambda row: row.txid):
        yield _sum(txid, list(revisions)[::-1], renamed)


def voted_of(conn: Connection, pipeline: str, sink: Sink, txid: int) -> Voted | None:
    """The same of one transaction; None where nothing of it was applied."""
    return next(voted(conn, pipeline, sink, txid, txid), None)


def _sum(txid: int, newest_first: Sequence[Row[Any, Any, Any, Any]], renamed: Sequence[Rename]) -> Voted:
    # One of a spec without the sink has left there what it had.
    mine = [row for row in newest_first if row.applied] or newest_first[:1]
    whole = next((at for at, row in enumerate(mine) if row.releases is None), len(mine) - 1)
    rows, checksum = 0, 0
    for row in mine[: whole + 1]:
        for vote in (vote_from_json(vote) for vote in row.votes or () if vote):
            rows, checksum = rows + vote.rows, checksum + vote.checksum
        taken: Mapping[str, Any] | None = row.applied["taken"] if "taken" in (row.applied or ()) else None
        if taken:
            rows, checksum = rows - taken["rows"], checksum - int(taken["checksum"])
    applied: Mapping[str, Any] | None = mine[0].applied
    known = int((applied or {}).get("renames", 0))
    return Voted(txid, rows, checksum % MODULUS, applied, partial(renames.today, renames=renamed[known:]))
