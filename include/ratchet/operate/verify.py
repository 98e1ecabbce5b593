"""verify: whether the sinks hold exactly what the ledger says that was voted and committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from sqlalchemy import Connection, exists, literal_column, select

from ratchet.errors import RecordsLost, SettingsError, TopicChanged
from ratchet.ledger import history, steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.faults import Faults
from ratchet.ledger.rows import Line, Prune, Transaction
from ratchet.ledger.schema import ranges, sources, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import SliceWork, counted, name_of
from ratchet.operate.prune import newest as newest_prune
from ratchet.protocol.applied import are_applied, voted
from ratchet.protocol.votes import work_of
from ratchet.sinks import erasures, retention
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Check, Sink, Stretch
from ratchet.spec.pipeline import Pipeline

Say = Callable[[str], None]
"""Told how far a check has come, in a line."""
NOTHING = (0, 0)
"""Rows and checksum of a sink to which a slice gives nothing."""
_STRETCH = 1_000_000
"""The rows of so many transactions are read in one pass, with some bytes in memory for each transaction."""
_AT_A_TIME = 2_000
"""So many rows of the ledger are in memory when all are read."""
_TOLD_EVERY = 100_000
_RECOMPUTED_AT_ONCE = 100
"""The work of so many transactions is read before they are recomputed."""


def verify(ledger: Ledger, spec: Pipeline, since: int = 1, say: Say = lambda _: None) -> list[Check]:
    """Hold a pipeline's history, ranges, sinks and dead letters against the ledger, in one snapshot.

    1. The history chain.
    2. Tiling: each partition's ranges follow one another, every txid has some, and those of a later source come later.
    3. Txids: every row of a sink carries one that is committed.
    4. Append and dead letters: for each transaction, the rows and the checksum that its slices voted for.
    5. Keyed sinks: each delta is the one that was applied, and the state is the fold of the deltas.

    Of transactions before `since`, and of those that are pruned, nothing is looked at; the first check says so. What
    follows them is held against their last commit's hash and where their ranges end. `say` is told of progress. Deltas
    that are merged into the base are checked by their fold alone. Memory does not grow with what is checked.
    SettingsError where there is no transaction `since`.
    """
    with ledger.snapshot() as conn:
        line = read_line(conn, spec.name)
        if line is None:
            return [Check("the ledger has nothing of this pipeline yet", 0, ())]
        if since > max(line.last_txid, 1):
            raise SettingsError(f"{spec.name}: there is no transaction {since} yet; the last is {line.last_txid}")
        # The states of keys are all there, whatever is pruned.
        keys_since = since
        since, pruned = max(since, line.pruned + 1), newest_prune(conn, spec.name)
        # Of what is pruned only the record knows the last hash.
        is_next = pruned is not None and since == pruned.last_txid + 1
        before = pruned.last_commit if pruned and is_next else history.hash_before(conn, spec.name, since)
        say(f"{spec.name}: history")
        events = history.count(conn, spec.name, since)
        checks = [
            _scope(conn, spec, line, since, pruned, before),
            Check("history", events, tuple(history.verify(conn, spec.name, since, before, say))),
            _tiling(conn, line, since, say),
        ]
        checks += _destinations(conn, line)
        for sink in sinks_of(spec):
            say(f"{spec.name}: {sink.name}")
            checks.append(_txids(conn, sink, line, since))
            checks += _sink(conn, sink, line, since, keys_since, say)
        return checks


def _scope(conn: Connection, spec: Pipeline, line: Line, since: int, pruned: Prune | None, before: str) -> Check:
    """What is looked at, and what is not."""
    recorded = pruned.last_txid if pruned else 0
    faults = () if line.pruned == recorded else (f"{line.pruned} are said to be pruned, {recorded} are recorded",)
    said = f"transactions {since} to {line.last_txid}"
    if since > 1:
        said += f"; 1 to {since - 1} are taken as verified" + (f", up to commit {before}" if before else "")
    if line.pruned:
        said += f"; 1 to {line.pruned} are pruned"
    for sink in sinks_of(spec):
        expired = retention.until(conn, line.pipeline, [sink.table])
        if expired >= since:
            said += f"; rows of {sink.name} have expired up to {expired}"
    return Check(said, line.last_txid - since + 1, faults)


def _destinations(conn: Connection, line: Line) -> Iterator[Check]:
    """That every commit since there are destinations is a step, and how far each destination has come."""
    known = steps.destinations_of(conn, line.pipeline)
    if not known:
        return
    faults = Faults()
    count, lost = steps.unnumbered(conn, line.pipeline)
    for txid, revision in lost:
        faults.add(f"{name_of(txid, revision)} is committed, and no step of destinations")
    for of in known:
        if of.is_attached and of.step < line.step:
            faults.add(f"{of.destination} has step {of.step} of {line.step}; the maintenance sends it the rest")
    yield Check("steps of destinations", count, tuple(faults.lines))


def recompute(
    ledger: Ledger,
    spec: Pipeline,
    run: Callable[[Sequence[SliceWork]], dict[str, tuple[int, int]]],
    since: int = 1,
    say: Say = lambda _: None,
) -> Check:
    """Hold what Kafka and today's transform give against what was committed, transaction by transaction.

    `run` reads and transforms the slices of one once more and gives {sink: (rows, checksum)}. `since` is the first
    txid. What was committed with other code, what is merged into a base, what has expired or was erased, and what Kafka
    no longer has, or has compacted, cannot be recomputed, which is no fault.
    """
    with ledger.snapshot() as conn:
        line = read_line(conn, spec.name)
    faults = Faults()
    checked = 0
    since = max(since, line.pruned + 1 if line else 1)
    for first in range(since, line.last_txid + 1 if line else since, _RECOMPUTED_AT_ONCE):
        for parts, work, kept in _committed(ledger, spec, first, first + _RECOMPUTED_AT_ONCE - 1):
            where = f"transaction {parts[0].txid}"
            other = next((part.code_hash for part in parts if part.code_hash != spec.code_hash), None)
            if other:
                say(f"{where} was committed with code {other}, today's is {spec.code_hash}: not recomputed")
                continue
            try:
                given = run(work)
            except (RecordsLost, TopicChanged) as error:
                say(f"not recomputed: {error}")
                continue
            checked += 1
            say(f"{where}: {counted(sum(rows for rows, _ in given.values()), 'row')}")
            for name, there in kept.items():
                anew = given.get(name, NOTHING)
                if spec.source.compacted and anew[0] < there[0]:
                    # Of a key's records in a range the last one goes last, so what is left of a delta is as it was.
                    say(f"{where}: {name} not recomputed: compaction has removed some of its records")
                elif anew != there:
                    has = f"{name} has {counted(there[0], 'row')} with checksum {there[1]}"
                    faults.add(f"{where}: {has}, recomputed {anew[0]:,} with {anew[1]}")
    return Check("recomputed transactions", checked, tuple(faults.lines))


def _committed(
    ledger: Ledger, spec: Pipeline, first: int, last: int
) -> list[tuple[list[Transaction], list[SliceWork], dict[str, tuple[int, int]]]]:
    """The newest committed revision of each of these transactions with the releases that were added to it, the slices
    of its epoch, and what it has given: {sink: (rows, checksum)} of its deltas, where single ones are still there.
    """
    c = transactions.c
    newest_first = select(transactions).where(*are_applied(spec.name, first, last))
    with ledger.snapshot() as conn:
        line = read_line(conn, spec.name)
        assert line is not None, "a line that has begun stays"
        rows = Transaction.all(conn.execute(newest_first.order_by(c.txid, c.revision.desc())))
        parts = {txid: _with_releases(of) for txid, of in groupby(rows, key=lambda row: row.txid)}
        kept: dict[int, dict[str, tuple[int, int]]] = {txid: {} for txid in parts}
        for sink in sinks_of(spec):
            gone = retention.until(conn, spec.name, [sink.table])
            erased = erasures.of(conn, spec.name, sink.table, first, last)
            for one in voted(conn, spec.name, sink, first, last):
                is_there = one.txid > gone and one.txid not in erased
                if is_there and (one.txid > line.compacted or not sink.is_compacted):
                    kept[one.txid][sink.name] = sink.contents(conn, one)
        return [(of, work_of(conn, spec, of[-1]), kept[txid]) for txid, of in parts.items()]


def _with_releases(newest_first: Iterator[Transaction]) -> list[Transaction]:
    """The releases behind the newest revision that is none, and that one, which is the last."""
    found: list[Transaction] = []
    for row in newest_first:
        found.append(row)
        if row.releases is None:
            break
    return found


def _tiling(conn: Connection, line: Line, since: int, say: Say) -> Check:
    faults = Faults()
    reached = _reached(conn, line, since)
    of = (sources.c.pipeline == ranges.c.pipeline) & (sources.c.source == ranges.c.source)
    query = select(ranges, sources.c.first_txid).join(sources, of)
    query = query.where(ranges.c.pipeline == line.pipeline, ranges.c.txid >= since)
    count, txid = 0, since - 1
    for row in conn.execute(query.order_by(ranges.c.txid), execution_options={"yield_per": _AT_A_TIME}):
        count += 1
        if not count % _TOLD_EVERY:
            say(f"{line.pipeline}: ranges, transaction {row.txid:,}")
        place = (row.source, row.partition)
        if row.from_offset != reached.get(place):
            faults.add(
                f"transaction {row.txid}: {line.topics.said(row.partition)} starts at {row.from_offset}, "
                f"the range before it ends at {reached.get(place)}"
            )
        if row.first_txid is None or row.txid < row.first_txid:
            faults.add(
                f"transaction {row.txid} is of source {row.source}, which begins with transaction {row.first_txid}"
            )
        reached[place] = row.until_offset
        for missing in range(txid + 1, row.txid):
            faults.add(f"transaction {missing} has no range")
        txid = row.txid
    for missing in range(txid + 1, line.last_txid + 1):
        faults.add(f"transaction {missing} has no range")
    return Check("ranges", count, tuple(faults.lines))


def _reached(conn: Connection, line: Line, since: int) -> dict[tuple[int, int], int]:
    """{(source, partition): where its ranges of transactions before `since` end}."""
    seen, newest = ranges.alias("seen"), ranges.alias("newest")
    of = [newest.c[name] == seen.c[name] for name in ("pipeline", "source", "partition")]
    until = select(newest.c.until_offset).where(*of, newest.c.txid < since).order_by(newest.c.until_offset.desc())
    places = select(seen.c.source, seen.c.partition, until.limit(1).scalar_subquery())
    mine = (seen.c.pipeline == line.pipeline, seen.c.txid == literal_column("0"))
    return {(source, partition): at for source, partition, at in conn.execute(places.where(*mine))}


def _txids(conn: Connection, sink: Sink, line: Line, since: int) -> Check:
    """Every txid that visible rows carry is committed."""
    found = sink.txids(line.pipeline, since, line.head).subquery("found")
    c = transactions.c
    mine = (c.pipeline == line.pipeline, c.txid == found.c._txid, c.state == State.COMMITTED, c.applied.is_not(None))
    faults = Faults()
    count = 0
    query = select(found.c._txid, exists().where(*mine))
    for txid, is_committed in conn.execute(query, execution_options={"yield_per": _AT_A_TIME}):
        count += 1
        if not is_committed:
            faults.add(f"{sink.name} has rows of transaction {txid}, which is not committed")
    return Check(f"{sink.name}: txids", count, tuple(faults.lines))


def _sink(conn: Connection, sink: Sink, line: Line, since: int, keys_since: int, say: Say) -> Iterator[Check]:
    """What a sink keeps of each transaction, a stretch of them at a time, and its state."""
    parts: list[Check] = []
    for first in range(since, line.head + 1, _STRETCH) or [since]:
        # None is visible where `since` is above the head.
        last = max(first - 1, min(first + _STRETCH - 1, line.head))
        of = Stretch(line.pipeline, first, last, line.compacted, say)
        parts.append(sink.verify(conn, of, voted(conn, line.pipeline, sink, first, of.last)))
    faults = tuple(fault for part in parts for fault in part.faults)
    yield Check(parts[0].what, sum(part.checked for part in parts), faults)
    state = sink.verify_state(conn, keys_since, line.head)
    if state is not None:
        yield state
