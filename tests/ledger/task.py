"""What a slice's job stages, with the stager's own code, in one Spark task that has no Spark around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from ratchet.ledger.work import SinkVote, Tag, Vote
from ratchet.protocol.votes import SliceWork
from ratchet.sinks.checksum import row_hash
from ratchet.sinks.staged import staged_columns
from ratchet.spark import stager
from ratchet.spark.stager import Copying, Stage
from ratchet.spec.pipeline import DEAD_LETTERS

from .staging import SPEC, positions, rows_of, vote_of

_ARROW = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "boolean": pa.bool_()}


@dataclass(frozen=True)
class Attempt:
    """A Spark task attempt, as the stager asks for it."""

    number: int

    def partitionId(self) -> int:  # noqa: N802
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802
        return self.number


@dataclass(frozen=True)
class Task:
    """Stages slices of SPEC."""

    ledger_url: str
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, work: SliceWork, between: Callable[[], object] = lambda: None, attempt: int = 0) -> Vote:
        """Stage the slice's rows; the vote for them.

        `between` is called when half of the first sink's rows are on their way to PostgreSQL.
        """
        self.monkeypatch.setattr(stager.TaskContext, "get", staticmethod(lambda: Attempt(attempt)))
        sinks, then = {DEAD_LETTERS: SinkVote((), 0, 0)}, between
        for sink in SPEC.sinks:
            columns = staged_columns(sink)
            rows = rows_of(SPEC, work)[sink.name]
            half = len(rows) // 2
            copying = Copying(Stage(sink.name, work.stages[sink.name], self.ledger_url), work.token)
            (report,) = copying(_batches(columns, rows[:half], rows[half:], then))
            (said,) = report.to_pylist()
            tag = Tag(said["partition"], said["attempt"])
            sinks[sink.name] = SinkVote((tag,), said["rows"], int(said["checksum"]))
            then = lambda: None  # noqa: E731
        return vote_of(SPEC, len(positions(work)), sinks)


def _batches(columns, first: list[dict], second: list[dict], between: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    yield _batch(columns, first)
    between()
    yield _batch(columns, second)


def _batch(columns, rows: list[dict]) -> pa.RecordBatch:
    hashes = [row_hash(columns, [row[c.name] for c in columns]) for row in rows]
    arrays = [pa.array([row[c.name] for row in rows], _ARROW[c.type]) for c in columns]
    signed = pa.array([h - 2**64 if h >= 2**63 else h for h in hashes], pa.int64())
    return pa.record_batch([*arrays, signed], [*(c.name for c in columns), "_hash"])
