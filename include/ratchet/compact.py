"""Compaction: the deltas of old transactions are merged into a base, and can no longer be revised one by one."""

from __future__ import annotations

from sqlalchemy import Connection, Row, func, select, text, update

from ratchet.ledger import Ledger, lock_pipeline
from ratchet.pipeline import Append, Pipeline
from ratchet.schema import pipelines, transactions
from ratchet.sinks import refold
from ratchet.transaction import State


def compact(ledger: Ledger, spec: Pipeline) -> str | None:
    """Merge the deltas of what was committed longer ago than `keep_deltas`; the line that says so, or None.

    1. Under the commit lock, decide up to which txid nothing may be revised any more. From here on nobody but a
       compaction touches those deltas.
    2. Without that lock, merge them, one row a key. The fold of the deltas stays what it was, so readers and
       revisions of later transactions go on beside it. Broken off, it is done by the next compaction.
    """
    keyed = [sink for sink in spec.sinks if not isinstance(sink, Append)]
    if not keyed:
        # An Append's rows are its deltas, and stay.
        return None
    with ledger.begin() as conn:
        # Step 1
        line = lock_pipeline(conn, spec.name)
        if line is None:
            return None
        until = max(line.compacted, _old_until(conn, spec, line))
        conn.execute(update(pipelines).where(pipelines.c.pipeline == spec.name).values(compacted=until))
    with ledger.begin() as conn:
        # Step 2
        conn.execute(
            text("select pg_advisory_xact_lock(hashtext('ratchet compact'), hashtext(:name))"), {"name": spec.name}
        )
        after = conn.execute(select(pipelines.c.merged).where(pipelines.c.pipeline == spec.name)).scalar_one()
        if after >= until:
            return None
        gone = sum(refold.merge(conn, sink, after, until) for sink in keyed)
        conn.execute(update(pipelines).where(pipelines.c.pipeline == spec.name).values(merged=until))
    return f"{spec.name}: deltas of transactions {after + 1} to {until} are merged into the base, {gone:,} rows fewer"


def _old_until(conn: Connection, spec: Pipeline, line: Row) -> int:
    """The last txid before the first one that is unfinished or not old enough."""
    c = transactions.c
    young = func.coalesce(c.committed_at, c.opened_at) > func.clock_timestamp() - spec.keep_deltas
    first = conn.execute(
        select(func.min(c.txid)).where(
            c.pipeline == spec.name,
            c.revision == 0,
            c.txid > line.compacted,
            c.state.not_in([State.COMMITTED, State.VOIDED]) | young,
        )
    ).scalar_one()
    return line.head if first is None else min(line.head, first - 1)
