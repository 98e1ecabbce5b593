"""verify: whether the sinks hold exactly what the ledger says that was voted and committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Row, Text, cast, func, select

from ratchet.errors import RecordsLost, TopicChanged
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import dead_letters, pipelines, ranges, transactions
from ratchet.ledger.states import State
from ratchet.protocol.votes import SliceWork, read_votes, voted_work
from ratchet.sinks import fold, refold
from ratchet.sinks.checksum import MODULUS, row_hash
from ratchet.sinks.staged import staged_columns
from ratchet.sinks.tables import delta, target
from ratchet.spec.columns import Column
from ratchet.spec.pipeline import DEAD_LETTERS, Append, Pipeline
from ratchet.spec.types import is_document

NOTHING = (0, 0)
"""Rows and checksum of a sink to which a slice gives nothing."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what, how much of it, and what is wrong, one line a fault."""

    what: str
    checked: int
    faults: tuple[str, ...]


def verify(ledger: Ledger, spec: Pipeline, say: Callable[[str], None] = lambda _: None) -> list[Check]:
    """Hold a pipeline's history, ranges, sinks and dead letters against the ledger, in one snapshot.

    1. The history chain.
    2. Tiling: each partition's ranges follow one another, and every txid has some.
    3. Tags: every row of a sink carries a txid that is committed.
    4. Append and dead letters: for each transaction, the rows and the checksum that its slices voted for.
    5. Keyed sinks: each delta is the one that was applied, and the state is the fold of the deltas.

    `say` is told of each sink as it begins. Deltas that are merged into the base are checked by their fold alone.
    """
    with ledger.snapshot() as conn:
        line = conn.execute(select(pipelines).where(pipelines.c.pipeline == spec.name)).one_or_none()
        if line is None:
            return [Check("the ledger has nothing of this pipeline yet", 0, ())]
        applied = _applied(conn, spec.name)
        checks = [
            Check("history", len(history.read(conn, spec.name)), tuple(history.verify(conn, spec.name))),
            _tiling(conn, line),
        ]
        for sink in [*spec.sinks, None]:
            name = sink.name if sink else DEAD_LETTERS
            say(f"{spec.name}: {name}")
            checks.append(_tags(conn, spec, name, sink, applied))
            if sink is None or isinstance(sink, Append):
                checks.append(_rows(conn, spec, name, sink, applied))
            else:
                checks.append(_deltas(conn, name, sink, [row for row in applied.values() if row.txid > line.compacted]))
                unlike = refold.unlike(conn, sink)
                fault = (f"{unlike:,} rows of the state are not what the deltas fold to",) if unlike else ()
                checks.append(Check(f"{name}: state", 1, fault))
        return checks


def recompute(
    ledger: Ledger,
    spec: Pipeline,
    run: Callable[[SliceWork], dict[str, tuple[int, int]]],
    since: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> Check:
    """Hold what Kafka and today's transform give, slice by slice, against what was voted for and committed.

    `run` reads and transforms a slice once more and gives {sink: (rows, checksum)}. `since` is the first txid. What
    was committed with other code, and what Kafka no longer has, cannot be recomputed: that is said, and is no fault.
    """
    with ledger.snapshot() as conn:
        rows = [row for row in _applied(conn, spec.name).values() if row.txid >= since]
        work = {row.txid: voted_work(conn, spec, row) for row in rows}
    faults, checked = [], 0
    for row in rows:
        where = f"transaction {row.txid}"
        if row.code_hash != spec.code_hash:
            say(f"{where} was committed with code {row.code_hash}, today's is {spec.code_hash}: not recomputed")
            continue
        for part, voted in work[row.txid]:
            try:
                given = run(part)
            except (RecordsLost, TopicChanged) as error:
                say(f"not recomputed: {error}")
                continue
            checked += 1
            say(f"{where}, slice {part.token.slice}: {sum(rows for rows, _ in given.values()):,} rows")
            faults += [
                f"{where}, slice {part.token.slice}: {name} has {vote.rows:,} rows with checksum {vote.checksum}, "
                f"recomputed {given.get(name, NOTHING)[0]:,} with {given.get(name, NOTHING)[1]}"
                for name, vote in voted.items()
                if given.get(name, NOTHING) != (vote.rows, vote.checksum)
            ]
    return Check("recomputed slices", checked, tuple(faults))


def _applied(conn: Connection, pipeline: str) -> dict[int, Row]:
    """{txid: the row of the revision whose deltas the sinks hold}."""
    c = transactions.c
    rows = conn.execute(
        select(transactions)
        .where(c.pipeline == pipeline, c.state == State.COMMITTED, c.applied.is_not(None))
        .order_by(c.txid, c.revision)
    )
    return {row.txid: row for row in rows}


def _tiling(conn: Connection, line: Row) -> Check:
    faults: list[str] = []
    reached: dict[tuple[str, int], int] = {}
    planned: set[int] = set()
    rows = conn.execute(select(ranges).where(ranges.c.pipeline == line.pipeline).order_by(ranges.c.txid)).all()
    for row in rows:
        place = (row.topic_id, row.partition)
        if row.txid and row.from_offset != reached.get(place):
            faults.append(
                f"transaction {row.txid}: {row.topic}-{row.partition} starts at {row.from_offset}, "
                f"the range before it ends at {reached.get(place)}"
            )
        reached[place] = row.until_offset
        planned.add(row.txid)
    faults += [f"transaction {txid} has no range" for txid in range(1, line.last_txid + 1) if txid not in planned]
    return Check("ranges", len(rows), tuple(faults))


def _tags(conn: Connection, spec: Pipeline, name: str, sink, applied: dict[int, Row]) -> Check:
    """Every txid that rows carry is committed."""
    if sink is None:
        found = select(dead_letters.c.txid).where(dead_letters.c.pipeline == spec.name).distinct()
    else:
        found = select(target(sink).c._txid).distinct()
    txids = conn.execute(found).scalars().all()
    faults = [f"{name} has rows of transaction {txid}, which is not committed" for txid in txids if txid not in applied]
    return Check(f"{name}: txids", len(txids), tuple(faults))


def _rows(conn: Connection, spec: Pipeline, name: str, sink: Append | None, applied: dict[int, Row]) -> Check:
    """Rows and checksum of each transaction as they stand, against the sum of its votes."""
    found: dict[int, tuple[int, int]] = {}
    for txid, hashed in _hashes(conn, spec, sink):
        rows, checksum = found.get(txid, (0, 0))
        found[txid] = (rows + 1, (checksum + hashed) % MODULUS)
    faults = []
    for txid, row in applied.items():
        votes = [sinks[name] for _, _, sinks in read_votes(conn, spec.name, txid, row.epoch) if name in sinks]
        voted = (sum(v.rows for v in votes), sum(v.checksum for v in votes) % MODULUS)
        there = found.get(txid, (0, 0))
        if there[0] != voted[0]:
            faults.append(f"{name}: transaction {txid} has {there[0]:,} rows, its votes say {voted[0]:,}")
        elif there != voted:
            faults.append(f"{name}: transaction {txid} has other contents than its votes say")
    return Check(f"{name}: rows and checksums", sum(rows for rows, _ in found.values()), tuple(faults))


def _hashes(conn: Connection, spec: Pipeline, sink: Append | None) -> Iterator[tuple[int, int]]:
    """(txid, hash) of every row that readers see."""
    columns: tuple[Column, ...] = staged_columns(sink)
    if sink is None:
        c = dead_letters.c
        given = {"_partition": c.partition, "_offset": c.offset, "headers": cast(c.headers, Text)}
        query = select(c.txid, *(given.get(k.name, c.get(k.name)) for k in columns)).where(c.pipeline == spec.name)
    else:
        into = target(sink)
        held = (cast(into.c[k.name], Text) if is_document(k.type) else into.c[k.name] for k in columns)
        query = select(into.c._txid, *held)
    for txid, *cells in conn.execution_options(yield_per=5_000).execute(query):
        yield txid, row_hash(columns, cells)


def _deltas(conn: Connection, name: str, sink, rows: list[Row]) -> Check:
    faults = [
        f"{name}: the delta of transaction {row.txid} is not the one that was committed"
        for row in rows
        if name in row.applied and fold.fingerprint(conn, sink, row.txid) != row.applied[name]["fingerprint"]
    ]
    count = conn.execute(select(func.count()).select_from(delta(sink))).scalar_one()
    return Check(f"{name}: deltas", count, tuple(faults))
