"""verify: whether the sinks hold exactly what the ledger says that was voted and committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, select

from ratchet.errors import RecordsLost, TopicChanged
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, Transaction
from ratchet.ledger.schema import ranges, sources, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import SliceWork
from ratchet.protocol.votes import read_votes, work_of
from ratchet.sinks.checksum import MODULUS
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Check, Sink, Voted
from ratchet.spec.pipeline import Pipeline

NOTHING = (0, 0)
"""Rows and checksum of a sink to which a slice gives nothing."""


def verify(ledger: Ledger, spec: Pipeline, say: Callable[[str], None] = lambda _: None) -> list[Check]:
    """Hold a pipeline's history, ranges, sinks and dead letters against the ledger, in one snapshot.

    1. The history chain.
    2. Tiling: each partition's ranges follow one another, every txid has some, and those of a later source come later.
    3. Txids: every row of a sink carries one that is committed.
    4. Append and dead letters: for each transaction, the rows and the checksum that its slices voted for.
    5. Keyed sinks: each delta is the one that was applied, and the state is the fold of the deltas.

    `say` is told of each sink as it begins. Deltas that are merged into the base are checked by their fold alone.
    """
    with ledger.snapshot() as conn:
        line = read_line(conn, spec.name)
        if line is None:
            return [Check("the ledger has nothing of this pipeline yet", 0, ())]
        applied = _applied(conn, spec.name)
        checks = [
            Check("history", len(history.read(conn, spec.name)), tuple(history.verify(conn, spec.name))),
            _tiling(conn, line),
        ]
        for sink in sinks_of(spec):
            say(f"{spec.name}: {sink.name}")
            checks.append(_txids(conn, spec, sink, applied, line.head))
            voted = [_voted(conn, spec.name, sink.name, rows) for rows in applied.values()]
            checks += sink.verify(conn, spec.name, voted, line.compacted, line.head)
        return checks


def recompute(
    ledger: Ledger,
    spec: Pipeline,
    run: Callable[[Sequence[SliceWork]], dict[str, tuple[int, int]]],
    since: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> Check:
    """Hold what Kafka and today's transform give against what was committed, transaction by transaction.

    `run` reads and transforms the slices of one once more and gives {sink: (rows, checksum)}. `since` is the first
    txid. What was committed with other code, what is merged into a base, and what Kafka no longer has, cannot be
    recomputed: that is said, and is no fault.
    """
    with ledger.snapshot() as conn:
        line = read_line(conn, spec.name)
        rows = [rows[-1] for rows in _applied(conn, spec.name).values() if rows[-1].txid >= since]
        work = {row.txid: work_of(conn, spec, row) for row in rows}
        kept = {row.txid: _contents(conn, spec, row, line.compacted) for row in rows if line}
    faults: list[str] = []
    checked = 0
    for row in rows:
        where = f"transaction {row.txid}"
        if row.code_hash != spec.code_hash:
            say(f"{where} was committed with code {row.code_hash}, today's is {spec.code_hash}: not recomputed")
            continue
        try:
            given = run(work[row.txid])
        except (RecordsLost, TopicChanged) as error:
            say(f"not recomputed: {error}")
            continue
        checked += 1
        say(f"{where}: {sum(rows for rows, _ in given.values()):,} rows")
        faults += [
            f"{where}: {name} has {there[0]:,} rows with checksum {there[1]}, "
            f"recomputed {given.get(name, NOTHING)[0]:,} with {given.get(name, NOTHING)[1]}"
            for name, there in kept[row.txid].items()
            if given.get(name, NOTHING) != there
        ]
    return Check("recomputed transactions", checked, tuple(faults))


def _contents(conn: Connection, spec: Pipeline, row: Transaction, compacted: int) -> dict[str, tuple[int, int]]:
    """{sink: (rows, checksum)} of a transaction's deltas, where single ones are still there."""
    return {
        sink.name: sink.contents(conn, _voted(conn, spec.name, sink.name, [row]))
        for sink in sinks_of(spec)
        if row.txid > compacted or not sink.is_compacted
    }


def _applied(conn: Connection, pipeline: str) -> dict[int, list[Transaction]]:
    """{txid: the rows of its revisions that were applied, the newest last}; its deltas are those that are kept."""
    c = transactions.c
    found = conn.execute(
        select(transactions)
        .where(c.pipeline == pipeline, c.state == State.COMMITTED, c.applied.is_not(None))
        .order_by(c.txid, c.revision)
    )
    applied: dict[int, list[Transaction]] = {}
    for row in Transaction.all(found):
        applied.setdefault(row.txid, []).append(row)
    return applied


def _tiling(conn: Connection, line: Line) -> Check:
    faults: list[str] = []
    reached: dict[tuple[int, int], int] = {}
    planned: set[int] = set()
    of = (sources.c.pipeline == ranges.c.pipeline) & (sources.c.source == ranges.c.source)
    query = (
        select(ranges, sources.c.topic, sources.c.first_txid)
        .join(sources, of)
        .where(ranges.c.pipeline == line.pipeline)
    )
    rows = conn.execute(query.order_by(ranges.c.txid)).all()
    for row in rows:
        place = (row.source, row.partition)
        if row.txid and row.from_offset != reached.get(place):
            faults.append(
                f"transaction {row.txid}: {row.topic}-{row.partition} starts at {row.from_offset}, "
                f"the range before it ends at {reached.get(place)}"
            )
        if row.txid and (row.first_txid is None or row.txid < row.first_txid):
            faults.append(
                f"transaction {row.txid} is of source {row.source}, which begins with transaction {row.first_txid}"
            )
        reached[place] = row.until_offset
        planned.add(row.txid)
    faults += [f"transaction {txid} has no range" for txid in range(1, line.last_txid + 1) if txid not in planned]
    return Check("ranges", len(rows), tuple(faults))


def _txids(conn: Connection, spec: Pipeline, sink: Sink, applied: dict[int, list[Transaction]], head: int) -> Check:
    """Every txid that visible rows carry is committed."""
    found = sink.txids(conn, spec.name, head)
    faults = [
        f"{sink.name} has rows of transaction {txid}, which is not committed" for txid in found if txid not in applied
    ]
    return Check(f"{sink.name}: txids", len(found), tuple(faults))


def _voted(conn: Connection, pipeline: str, sink: str, applied: Sequence[Transaction]) -> Voted:
    """What was committed of one transaction for one sink: by the newest revision, of a spec that had the sink."""
    row = next((row for row in reversed(applied) if sink in (row.applied or {})), applied[-1])
    votes = [sinks[sink] for _, _, sinks in read_votes(conn, pipeline, row.txid, row.epoch) if sink in sinks]
    rows, checksum = sum(v.rows for v in votes), sum(v.checksum for v in votes) % MODULUS
    return Voted(row.txid, rows, checksum, (row.applied or {}).get(sink))
