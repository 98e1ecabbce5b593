"""Writes and votes what a job would, straight into PostgreSQL, so that the protocol can be tested without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, func, insert, select, text, update

from ratchet import Accumulate, Append, Json, Pipeline, Topic, Upsert
from ratchet.ledger import writers
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import dead_letters, events, heads, transactions
from ratchet.ledger.states import State
from ratchet.ledger.topics import Topics
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import OffsetRange, Run, SinkVote, SliceToken, SliceWork, Tag, Vote
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote, take_try
from ratchet.sinks import delta
from ratchet.sinks.checksum import MODULUS, row_hash
from ratchet.sinks.lookup import sink_of, sinks_of
from ratchet.source.interval import Ahead, IntervalEnd
from ratchet.source.letters import letters_of
from ratchet.source.lineage import Lineage
from ratchet.source.offsets import KnownLogs, TopicOffsets
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.reference import Make, staged_rows

MEASURES = ("a_sum", "a_min", "a_max")


SPEC = Pipeline(
    name="line",
    source=Topic("t", key="k string", value=Json("a bigint")),
    transform="tests.ledger.staging:rows_of",
    sinks=[
        Append("rows", columns="a bigint"),
        Accumulate("totals", key="k string", sum="a bigint", min="a bigint", max="a bigint", count="n"),
        Upsert("latest", key="k string", columns="a bigint"),
    ],
    max_records=20,
    slice_records=10,
    max_in_flight=4,
)

PLAIN = SPEC.model_copy(update={"sinks": SPEC.sinks[:2]})
"""Without the sink to which it matters in which partition a key is."""


@dataclass
class Log:
    """What a topic's log looks like, for begin; the tests move its ends."""

    topic: str = "t"
    topic_id: str = "first"
    beginning: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    stable: dict[int, int] = field(default_factory=lambda: {0: 50, 1: 50})

    wanted: dict[datetime, dict[int, int]] = field(default_factory=dict)
    asked: list[IntervalEnd] = field(default_factory=list)
    ahead: dict[int, Ahead] = field(default_factory=dict)

    end: dict[int, int] = field(default_factory=dict)
    lineages: dict[int, Lineage] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)

    since: dict[datetime, dict[int, int]] = field(default_factory=dict)

    def offsets(
        self,
        before: IntervalEnd | None = None,
        known: KnownLogs | None = None,
        since: datetime | None = None,
    ) -> TopicOffsets:
        wanted = self.wanted[before.at] if before else None
        self.asked += [before] if before else []
        logs = (dict(self.end), dict(self.lineages), dict(self.kept)) if known and known.lineages is not None else ()
        ends = dict(self.beginning), dict(self.stable)
        told = {"ahead": self.ahead if before else {}, "since": self.since[since] if since else None}
        return TopicOffsets(Topics.one(self.topic, self.topic_id), *ends, wanted, *logs, **told)


def always_active(dag_id: str, run_id: str) -> bool:
    return True


def start(ledger: Ledger, spec: Pipeline, log: Log, run_id: str, clear_number: int = 0, **how) -> Begun:
    """A begin that must give a transaction."""
    how.setdefault("is_active", always_active)
    begun = begin(ledger, spec, Run("dag", run_id, clear_number), log.offsets, **how)
    assert isinstance(begun, Begun), begun
    return begun


def fail(ledger: Ledger, log: Log, run: str, clear_number: int = 0) -> Begun:
    """A run that begins, gets nowhere, and is settled."""
    begun = start(ledger, SPEC, log, run, clear_number)
    settle(ledger, SPEC, Run("dag", run, clear_number), succeeded=False, reason=f"failed in {run}")
    return begun


def positions(work: SliceWork) -> list[tuple[int, int]]:
    """Every (partition, offset) of a slice."""
    return _positions(work.ranges)


def _positions(ranges: Iterable[OffsetRange]) -> list[tuple[int, int]]:
    return [(r.partition, offset) for r in ranges for offset in range(r.from_offset, r.until_offset)]


def write(ledger: Ledger, spec: Pipeline, work: SliceWork, sink: str, rows: list[dict], attempt: int = 0) -> SinkVote:
    """Write rows as one attempt's writer, whose try nobody looks at; what a vote says of them."""
    if not rows:
        return SinkVote((), 0, 0)
    with ledger.begin() as conn:
        return written(conn, spec, work, sink, rows, attempt)


def written(
    conn: Connection, spec: Pipeline, work: SliceWork, sink: str, rows: list[dict], attempt: int = 0
) -> SinkVote:
    """Rows and registration of a writer, in the caller's database transaction."""
    kind, token, relation = sink_of(spec, sink), work.token, work.relations[sink]
    number = writers.register(conn, token, Tag(0, attempt), sink, relation)
    given = {"_txid": token.txid, "_writer": number, "_source": work.source, "_pipeline": token.pipeline}
    added = {c.name: given[c.name] for c in kind.added}
    conn.execute(insert(delta.table(relation, kind)), [{**added, **row} for row in rows])
    writers.note(conn, number, len(rows), spans_of(rows))
    checksum = sum(row_hash(kind.written, [row.get(c.name) for c in kind.written]) for row in rows) % MODULUS
    return SinkVote((number,), len(rows), checksum)


def spans_of(rows: list[dict]) -> dict[int, tuple[int, int]] | None:
    """{partition: (first, last offset)} of rows with positions, where these ascend."""
    places = [(row["_partition"], row["_offset"], row.get("_n", 0)) for row in rows if "_offset" in row]
    if len(places) < len(rows) or places != sorted(set(places)):
        return None
    first = {p: o for p, o, _ in reversed(places)}
    last = {p: o for p, o, _ in places}
    return {p: (first[p], last[p]) for p in first}


def write_all(ledger: Ledger, spec: Pipeline, work: SliceWork, rows: dict[str, list[dict]]) -> dict[str, SinkVote]:
    """Write {sink: rows}; what a vote says of each."""
    return {name: write(ledger, spec, work, name, of) for name, of in rows.items()}


def rows_of(spec: Pipeline, work: SliceWork) -> dict[str, list[dict]]:
    """What the transform of the tests gives: each record's own position as its value."""
    at = [{"_partition": p, "_offset": o, "_n": 0} for p, o in positions(work)]
    made = {
        "rows": [{"a": r["_offset"], **r} for r in at],
        "totals": [{"k": str(r["_partition"]), **dict.fromkeys(MEASURES, r["_offset"]), "n": 1} for r in at],
        "latest": [
            {"k": f"{r['_partition']}-{r['_offset'] % 5}", "a": r["_offset"], "_deleted": False, **r} for r in at
        ],
    }
    return {name: rows for name, rows in made.items() if name in {sink.name for sink in spec.sinks}}


def vote_of(spec: Pipeline, work: SliceWork, sinks: dict[str, SinkVote], **changed) -> Vote:
    whole = {DEAD_LETTERS: SinkVote((), 0, 0), **sinks}
    said = dict(
        records=len(positions(work)),
        ranges=work.ranges,
        sinks=whole,
        dead_letters=0,
        reached={},
        code_hash=spec.code_hash,
    )
    return Vote(**{**said, "application_id": "test", "seconds": {}, **changed})


def a_try(ledger: Ledger, begun: Begun, number: int = 0, spec: Pipeline = SPEC) -> SliceWork:
    """A try at one slice, which must be there to be taken."""
    work = take_try(ledger, spec, begun.claim, number)
    assert isinstance(work, SliceWork), work
    return work


def do_slice(ledger: Ledger, spec: Pipeline, begun: Begun, number: int) -> SliceToken:
    """Take a try at one slice, write its rows, vote."""
    work = a_try(ledger, begun, number, spec)
    sinks = write_all(ledger, spec, work, rows_of(spec, work))
    cast_vote(ledger, spec, work.token, vote_of(spec, work, sinks))
    return work.token


def finish(ledger: Ledger, begun: Begun, writes: Callable[[SliceWork], Vote]) -> None:
    """Process what has not voted, and commit."""
    for part in begun.slices:
        work = take_try(ledger, SPEC, begun.claim, part.number)
        if isinstance(work, SliceWork):
            cast_vote(ledger, SPEC, work.token, writes(work))
    assert isinstance(commit(ledger, SPEC, begun.claim), Committed)


def prepare(ledger: Ledger, spec: Pipeline, begun: Begun) -> None:
    """Process every slice of a transaction."""
    for part in begun.slices:
        do_slice(ledger, spec, begun, part.number)


def committed(ledger: Ledger, log: Log, run: str) -> Begun:
    """A transaction that its run has committed, and that run at its end."""
    begun = start(ledger, SPEC, log, run)
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    settle(ledger, SPEC, Run("dag", run), succeeded=True)
    return begun


def state(ledger: Ledger, txid: int) -> State:
    with ledger.begin() as conn:
        return State(read_transaction(conn, SPEC.name, txid).state)


def head(ledger: Ledger) -> int:
    with ledger.begin() as conn:
        return conn.execute(select(heads.c.txid)).scalar_one_or_none() or 0


def appended(ledger: Ledger) -> list[tuple[int, int, int, int]]:
    """(partition, offset, n, txid) of every visible row, sorted: a multiset, never a count."""
    rows = sink_of(SPEC, "rows").target.c
    with ledger.begin() as conn:
        found = conn.execute(select(rows._partition, rows._offset, rows._n, rows._txid))
        return sorted(tuple(row) for row in found)


def positions_of(begun: Begun) -> list[tuple[int, int]]:
    """Every (partition, offset) of a transaction."""
    return [at for part in begun.slices for at in _positions(part.ranges)]


def planned(*begun) -> list[tuple[int, int, int, int]]:
    """The rows that these transactions must have appended."""
    return sorted((partition, offset, 0, b.claim.txid) for b in begun for partition, offset in positions_of(b))


def expire(ledger: Ledger) -> None:
    """Let every lease run out, by the database's clock."""
    with ledger.begin() as conn:
        conn.execute(update(transactions).values(lease_until=func.clock_timestamp() - text("interval '1 second'")))


def is_waiting(ledger: Ledger) -> bool:
    """Whether somebody waits for a lock in this database."""
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with ledger.begin() as conn:
        return conn.execute(text(query)).scalar_one() > 0


def do(ledger: Ledger, spec: Pipeline, begun: Begun, make: Make) -> None:
    """Process every slice, each record (partition, offset) giving what `make` says for each sink."""
    for part in begun.slices:
        work = a_try(ledger, begun, part.number, spec)
        cast_vote(ledger, spec, work.token, made_vote(ledger, spec, work, make))


def made_vote(ledger: Ledger, spec: Pipeline, work: SliceWork, make: Make) -> Vote:
    """Write what `make` says of each record that a job reads of a slice; the vote for it."""
    read = records_of(ledger, work)
    sinks = write_all(ledger, spec, work, staged_rows(spec, read, make))
    return vote_of(spec, work, sinks, dead_letters=sinks[DEAD_LETTERS].rows, records=len(read))


def records_of(ledger: Ledger, work: SliceWork) -> list[tuple[int, int]]:
    """Every (partition, offset) that a job reads of a slice: of a release its dead letters."""
    letters = letters_of(work, ledger.url)
    if letters is None:
        return positions(work)
    batches = list(letters.read(work.ranges))
    return [(row["_partition"], row["_offset"]) for batch in batches for row in batch.to_pylist()]


def contents(ledger: Ledger, spec: Pipeline) -> dict[str, list[tuple]]:
    """Every row that readers see, by sink, sorted; of dead letters (topic, partition, offset, txid, error)."""
    c = dead_letters.c
    dead = select(c.topic, c.partition, c.offset, c.txid, c.error).where(c.pipeline == spec.name)
    queries = {**{sink.name: select(sink.target) for sink in sinks_of(spec) if sink.tables}, DEAD_LETTERS: dead}
    with ledger.begin() as conn:
        return {name: sorted(map(tuple, conn.execute(query)), key=repr) for name, query in queries.items()}


def moves_of(ledger: Ledger) -> list[tuple]:
    """(txid, revision, move) of every event, in order."""
    with ledger.begin() as conn:
        return [tuple(row) for row in conn.execute(select(events.c.txid, events.c.revision, events.c.move))]


def is_whole(ledger: Ledger, *begun: Begun) -> None:
    """The sinks hold these transactions, each once, and the ledger agrees."""
    assert appended(ledger) == planned(*begun)
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []
