"""The work of a slice's job, as Spark's tasks and the driver do it, by arithmetic; and what is said of its failures."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select
from sqlalchemy.exc import ProgrammingError

from ratchet import Accumulate
from ratchet.errors import Fenced, OutcomeUnknown
from ratchet.ledger.connection import Ledger
from ratchet.ledger.fence import hold_try
from ratchet.ledger.rows import Transaction
from ratchet.ledger.schema import events, slices
from ratchet.ledger.work import SinkVote, SliceToken, SliceWork, Vote
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.checksum import MODULUS, row_hash
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.writer import refusals_told
from ratchet.spec.columns import Column
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from tests.ledger.staging import written
from tests.proof.reference import Make, staged_rows, whole
from tests.proof.simulate.shapes import NAME


def failure(epoch: int, slice_number: int, try_number: int) -> str:
    """What a try says that comes to nothing; no other try of the transaction says the same."""
    return f"try {try_number} of slice {slice_number} in epoch {epoch} has failed"


def latest_event(conn: Connection, token: SliceToken) -> tuple[str, str | None]:
    """What happened last to a transaction: (move, why)."""
    of = (events.c.pipeline == NAME, events.c.txid == token.txid, events.c.revision == token.revision)
    last = conn.execute(select(events).where(*of).order_by(events.c.seq.desc()).limit(1)).one()
    return last.move, last.detail.get("why")


def failing(conn: Connection, row: Transaction) -> set[str]:
    """What the present tries of a transaction's epoch would say if they came to nothing."""
    epoch = (slices.c.pipeline == NAME, slices.c.txid == row.txid, slices.c.epoch == row.epoch)
    trying = select(slices.c.epoch, slices.c.slice, slices.c.try_number).where(*epoch, slices.c.voted_at.is_(None))
    return {failure(*part) for part in conn.execute(trying)}


def process(
    ledger: Ledger, spec: Pipeline, work: SliceWork, records: Sequence[tuple[int, int]], make: Make, attempts: int
) -> None:
    """Write what the slice's records, by (partition, offset), give and vote, each so many times.

    A vote whose outcome is unknown is cast once more: what was done is found.
    """
    vote = vote_on(ledger, spec, work, records, make, attempts)
    for _ in range(attempts):
        _cast(ledger, spec, work.token, vote)


def _cast(ledger: Ledger, spec: Pipeline, token: SliceToken, vote: Vote) -> None:
    try:
        cast_vote(ledger, spec, token, vote)
    except OutcomeUnknown:
        with ledger.begin() as conn:
            of = [column == getattr(token, column.name) for column in (*slices.primary_key, slices.c.try_number)]
            is_cast = conn.execute(select(slices.c.voted_at).where(*of)).scalar() is not None
        try:
            cast_vote(ledger, spec, token, vote)
        except Fenced as error:
            assert not is_cast, f"{token} has voted, and was told {error}"
            raise


def vote_on(
    ledger: Ledger, spec: Pipeline, work: SliceWork, records: Sequence[tuple[int, int]], make: Make, attempts: int
) -> Vote:
    """Write what the slice's records give, as Spark's tasks would, and say what is written."""
    staged = staged_rows(spec, records, make)
    sinks = {name: _write(ledger, spec, work, name, rows, attempts) for name, rows in staged.items()}
    return Vote(
        records=len(records),
        ranges=work.ranges,
        sinks=sinks,
        dead_letters=sinks[DEAD_LETTERS].rows,
        reached={r.partition: r.until_offset for r in work.ranges},
        code_hash=spec.code_hash,
        application_id="simulated",
        seconds={},
    )


def recomputed(spec: Pipeline, records: Sequence[tuple[int, int]], make: Make) -> dict[str, tuple[int, int]]:
    """What the records of a transaction give, once more: {sink: (rows, checksum)}, one row a key."""
    kept = {name: _one_a_key(spec, name, rows) for name, rows in staged_rows(spec, records, make).items()}
    return {name: (len(rows), _checksum(sink_of(spec, name).written, rows)) for name, rows in kept.items()}


def _one_a_key(spec: Pipeline, name: str, rows: list[dict]) -> list[dict]:
    """What is kept of written rows, by plain Python."""
    keys = sink_of(spec, name).key_names
    if not keys:
        return rows
    of: dict[tuple, list[dict]] = {}
    for row in rows:
        of.setdefault(tuple(row[key] for key in keys), []).append(row)
    sink = spec.sink(name)
    if isinstance(sink, Accumulate):
        return [
            {**same[0], **{measure: whole(sink, measure, same) for measure in sink.measures}} for same in of.values()
        ]
    return [_last(same, sink.order) for same in of.values()]


def _last(rows: list[dict], order: str | None) -> dict:
    def rank(row: dict) -> tuple:
        at = row[order] if order else None
        return at is not None, at or 0, row["_offset"], row["_partition"]

    return max(rows, key=rank)


def _checksum(columns: Sequence[Column], rows: list[dict]) -> int:
    return sum(row_hash(columns, [row.get(c.name) for c in columns]) for row in rows) % MODULUS


def _write(ledger: Ledger, spec: Pipeline, work: SliceWork, name: str, rows: list[dict], attempts: int) -> SinkVote:
    """One Spark task, run so many times; the last is the one that Spark accepts."""
    said, token = SinkVote((), 0, 0), work.token
    if not rows:
        return said
    for attempt in range(attempts):
        with ledger.begin() as conn:
            with refusals_told(f"{token.pipeline}: {token}, try {token.try_number}", name):
                try:
                    said = written(conn, spec, work, name, rows, attempt)
                except ProgrammingError as error:
                    # Of its own connection the writer hears it as PostgreSQL says it.
                    raise error.orig from error
            # The writer's own last statements, which keep late tries out.
            hold_try(conn, token)
    return said
