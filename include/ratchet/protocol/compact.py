"""Compaction: the deltas of old transactions are merged into a base, and can no longer be revised one by one."""

from __future__ import annotations

import time
from datetime import timedelta

from sqlalchemy import Connection, func, select, update

from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line
from ratchet.ledger.schema import pipelines, prunes, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import lock_pipeline, lock_rows
from ratchet.ledger.work import counted
from ratchet.sinks import exchanged, layout
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.spec.pipeline import Pipeline

STEP_RECORDS = 1_000_000
"""The deltas of transactions of so many records are merged at once, and of one transaction at least."""
STEP_TRANSACTIONS = 10_000
"""And so many transactions at most."""
STEPS_SECONDS = 30
"""When so much time is over, the next compaction goes on: whoever compacts has other things to do."""


def compact(ledger: Ledger, spec: Pipeline) -> str | None:
    """Merge the deltas of what was committed longer ago than `keep_deltas`; the line that says so, or None.

    1. Under the commit lock, decide up to which txid nothing may be revised any more. From here on nobody but a
       compaction touches those deltas.
    2. Without that lock, merge them, one row a key, some transactions at a time. The fold of the deltas stays what it
       was, so readers and revisions of later transactions go on beside it. Broken off, the next compaction goes on.
    """
    keyed = [sink for sink in sinks_of(spec) if sink.is_compacted]
    if not keyed:
        return None
    with ledger.begin() as conn:
        # Step 1
        line = lock_pipeline(conn, spec.name)
        if line is None:
            return None
        misfit = layout.misfit(conn, spec)
        if misfit:
            # By a spec of before, what was migrated for a newer one would lose the columns that it does not know.
            return f"{spec.name}: nothing is compacted: {misfit}"
        until = line.compacted
        if not steps.behind(conn, line):
            # Which keys a step has touched a destination that has still to get it is told by its delta.
            until = max(until, old_until(conn, line, line.compacted, spec.keep_deltas))
        conn.execute(update(pipelines).where(pipelines.c.pipeline == spec.name).values(compacted=until))
    # Step 2
    merged, fewer, started = line.merged, 0, time.monotonic()
    while merged < until:
        with ledger.begin() as conn:
            merged, gone = _merge_some(conn, spec.name, keyed, until)
        fewer += gone
        if time.monotonic() - started > STEPS_SECONDS:
            break
    if merged == line.merged:
        return None
    left = f"; {merged + 1} to {until} are left to the next time" if merged < until else ""
    return (
        f"{spec.name}: deltas of transactions {line.merged + 1} to {merged} are merged into the base, "
        f"{counted(fewer, 'row fewer', 'rows fewer')}{left}"
    )


def _merge_some(conn: Connection, pipeline: str, keyed: list[Sink], until: int) -> tuple[int, int]:
    """(up to where deltas are merged now, how many rows went); a revision, or another compaction, is waited for."""
    lock_rows(conn, pipeline)
    after = conn.execute(select(pipelines.c.merged).where(pipelines.c.pipeline == pipeline)).scalar_one()
    if after >= until:
        return after, 0
    to = step(conn, pipeline, after, until)
    gone = sum(sink.merge(conn, after, to) for sink in keyed)
    for sink in keyed:
        exchanged.forget(conn, pipeline, sink.table, to)
    conn.execute(update(pipelines).where(pipelines.c.pipeline == pipeline).values(merged=to))
    return to, gone


def step(conn: Connection, pipeline: str, after: int, until: int) -> int:
    """Up to which txid the next step goes, of those behind `after`; of what is pruned no records are known."""
    c = transactions.c
    most = min(until, after + STEP_TRANSACTIONS)
    records = func.sum(func.coalesce(c.records, 0)).over(order_by=c.txid)
    mine = (c.pipeline == pipeline, c.revision == 0, c.txid > after, c.txid <= most)
    upto = select(c.txid, records.label("records")).where(*mine).subquery("upto")
    beyond = conn.execute(select(func.min(upto.c.txid)).where(upto.c.records > STEP_RECORDS)).scalar_one()
    return most if beyond is None else max(after + 1, beyond - 1)


def old_until(conn: Connection, line: Line, after: int, age: timedelta) -> int:
    """The last txid before the first one behind `after` that is unfinished, or was committed less long ago.

    Of what is pruned that is known for each prune alone.
    """
    c, p = transactions.c, prunes.c
    since = func.clock_timestamp() - age
    left = select(func.min(c.txid)).where(
        c.pipeline == line.pipeline,
        c.revision == 0,
        c.txid > after,
        c.state.not_in([State.COMMITTED, State.VOIDED]) | (func.coalesce(c.committed_at, c.opened_at) > since),
    )
    gone = select(func.min(p.first_txid)).where(
        p.pipeline == line.pipeline, p.last_txid > after, p.committed_before > since
    )
    first = conn.execute(select(func.least(left.scalar_subquery(), gone.scalar_subquery()))).scalar_one()
    return line.head if first is None else min(line.head, first - 1)
