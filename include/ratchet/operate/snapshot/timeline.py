"""One pipeline over time: a page of its transactions, the newest first, how long they took, and what sinks keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import quantiles

from sqlalchemy import Connection, func, literal_column, select, true

from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import events, expired, ranges, targets, transactions
from ratchet.ledger.states import State
from ratchet.operate.attention import standings
from ratchet.operate.snapshot.phases import Phase, phases_of, seconds_of, told
from ratchet.operate.snapshot.result import Result, letters_before, result_of, rows_of
from ratchet.operate.snapshot.status import Status, Waits, statuses

PAGE = 100
"""So many transactions are on a page where nobody says how many."""


@dataclass(frozen=True)
class Bar:
    """A transaction, or a revision of one, over time: opened, first tried, prepared, committed.

    `offsets` is how many are planned, `records` how many were read; `rows` is what the commit applied, by sink. `waits`
    and `before` are those of its standing, where it is unfinished. `phases` are also of when it stood still. Of
    a release `releases` is which dead letters it takes, and `letters` how many there were before. `result` is what
    readers see of the transaction, at the bar of the revision that it is; one that they saw before it `is_replaced`.
    """

    txid: int
    revision: int
    state: State
    epoch: int
    dag_id: str
    run_id: str
    clear_number: int
    opened_at: datetime
    first_try_at: datetime | None
    prepared_at: datetime | None
    committed_at: datetime | None
    offsets: int
    records: int | None
    rows: Mapping[str, int]
    waits: Waits | None
    before: int | None
    failures: int
    halted_at: datetime | None
    reason: str | None
    code: str
    phases: tuple[Phase, ...]
    releases: str | None
    letters: int | None
    result: Result | None
    is_replaced: bool


@dataclass(frozen=True)
class Took:
    """How long the committed transactions of a page took in one phase, in seconds.

    Not counted is when they were halted, or no run had them.
    """

    phase: str
    transactions: int
    median: float
    p95: float


@dataclass(frozen=True)
class Kept:
    """The table of a sink: what its deltas mean, what readers see there, and up to which transaction rows expired."""

    schema: str
    name: str
    kind: str
    shows: str
    expired_until: int
    expired_rows: int


@dataclass(frozen=True)
class Timeline:
    """A pipeline's status, and a page of its transactions, the newest first.

    `earlier` is what to ask for to see those before, None where there are none. Up to `compacted` deltas are merged, or
    about to be, and nothing can be revised; up to `pruned` the ledger has no rows of transactions.
    """

    status: Status
    bars: tuple[Bar, ...]
    earlier: int | None
    took: tuple[Took, ...]
    sinks: tuple[Kept, ...]
    compacted: int
    merged: int
    pruned: int


def timeline(ledger: Ledger, pipeline: str, before: int | None = None, most: int = PAGE) -> Timeline:
    """A page of a pipeline's transactions: those before txid `before`, or the newest."""
    with ledger.snapshot() as conn:
        return read(conn, pipeline, before, most)


def read(conn: Connection, pipeline: str, before: int | None = None, most: int = PAGE) -> Timeline:
    """The same within a snapshot."""
    lines = standings(conn, [pipeline])
    status = statuses(conn, [pipeline], lines=lines)[pipeline]
    if pipeline not in lines:
        return Timeline(status, (), None, (), (), 0, 0, 0)
    line = lines[pipeline].line
    last = line.last_txid if before is None else min(before - 1, line.last_txid)
    first = max(last - most, line.pruned) + 1
    bars = _bars(conn, status, first, last)
    earlier = first if first - 1 > line.pruned else None
    marks = (line.compacted, line.merged, line.pruned)
    return Timeline(status, bars, earlier, tuple(_took(bars)), _sinks(conn, pipeline), *marks)


def _bars(conn: Connection, status: Status, first: int, last: int) -> tuple[Bar, ...]:
    c, e, r = transactions.c, events.c, ranges.c
    # The literal is part of the statement, and the first try one of the first events.
    tries = (e.pipeline == c.pipeline, e.txid == c.txid, e.revision == c.revision, e.move == literal_column("'try'"))
    tried = select(e.at).where(*tries).order_by(e.seq).limit(1).lateral("tried")
    planned = select(func.sum(r.until_offset - r.from_offset).label("offsets"))
    planned = planned.where(r.pipeline == c.pipeline, r.txid == c.txid).lateral("planned")
    query = (
        select(transactions, tried.c.at.label("first_try_at"), planned.c.offsets)
        .select_from(transactions.join(tried, true(), isouter=True).join(planned, true()))
        .where(c.pipeline == status.pipeline, c.txid.between(first, last))
        .order_by(c.txid.desc(), c.revision.desc())
    )
    stands = {(row.txid, row.revision): row for row in status.unfinished}
    found: list[Bar] = []
    rows = [(Transaction.of(row), row) for row in conn.execute(query).mappings()]
    said = told(conn, status.pipeline, [t for t, _ in rows])
    all_of: dict[int, list[Transaction]] = {}
    for t, _ in rows:
        all_of.setdefault(t.txid, []).append(t)
    results = {txid: result_of(of) for txid, of in all_of.items()}
    for t, row in rows:
        result = results[t.txid]
        stand = stands.get((t.txid, t.revision))
        found.append(
            Bar(
                t.txid,
                t.revision,
                t.state,
                t.epoch,
                t.dag_id,
                t.run_id,
                t.clear_number,
                t.opened_at,
                row["first_try_at"],
                t.prepared_at,
                t.committed_at,
                int(row["offsets"] or 0),
                t.records,
                rows_of(t),
                stand.waits if stand else None,
                stand.before if stand else None,
                t.failures,
                t.halted_at,
                t.reason,
                t.code_hash,
                phases_of(
                    t,
                    row["first_try_at"],
                    said.get((t.txid, t.revision), ()),
                    waits=stand is not None and stand.waits in (Waits.TURN, Waits.PAUSE),
                    ends=stand is None,
                    now=status.at,
                ),
                t.releases,
                letters_before(t, all_of[t.txid]),
                result if result and result.revision == t.revision else None,
                t.applied is not None and result is not None and t.revision < result.revision,
            )
        )
    return tuple(found)


def _took(bars: Sequence[Bar]) -> list[Took]:
    """How long each phase took: until the first try, until all slices had voted, until the commit; and all of it."""
    whole = [bar for bar in bars if not bar.revision and bar.first_try_at and bar.prepared_at and bar.committed_at]
    phases = {of: (of,) for of in ("start", "process", "commit")}
    found: list[Took] = []
    for phase, names in {**phases, "all": tuple(phases)}.items() if whole else ():
        spans = [seconds_of(bar.phases, *names) for bar in whole]
        cuts = quantiles(spans, n=20, method="inclusive") if len(spans) > 1 else spans * 19
        found.append(Took(phase, len(spans), cuts[9], cuts[18]))
    return found


def _sinks(conn: Connection, pipeline: str) -> tuple[Kept, ...]:
    t, e = targets.c, expired.c
    gone = select(func.max(e.until_txid).label("until"), func.sum(e.rows).label("rows"))
    gone = gone.where(e.pipeline == t.pipeline, e.schema == t.schema, e.name == t.name).lateral("gone")
    query = select(t.schema, t.name, t.fold, gone.c.until, gone.c.rows).join(gone, true())
    rows = conn.execute(query.where(t.pipeline == pipeline).order_by(t.schema, t.name))
    return tuple(
        Kept(schema, name, fold["kind"], fold["shows"], int(until or 0), int(count or 0))
        for schema, name, fold, until, count in rows
    )
