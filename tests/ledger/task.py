"""What a slice's job writes, by the writer that jobs use, in one task that has no Spark around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest

from ratchet.ledger.work import SinkVote, SliceWork, Tag, Vote
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.port import Sink
from ratchet.sinks.types import POSITION
from ratchet.sinks.writer import Into, Writer
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.values.arrow import arrow_schema

from .staging import SPEC, positions, vote_of


@dataclass(frozen=True)
class Task:
    """Writes slices of SPEC."""

    ledger_url: str
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, work: SliceWork, between: Callable[[], object] = lambda: None, attempt: int = 0) -> Vote:
        """Write the slice's rows; the vote for them.

        `between` is called when half of the first sink's rows are on their way to PostgreSQL.
        """
        # So that rows are on their way before the last of them are known.
        self.monkeypatch.setattr("ratchet.sinks.writer.BUFFER_ROWS", 1)
        sinks, then = {DEAD_LETTERS: SinkVote((), 0, 0)}, between
        into, tag = Into(self.ledger_url, work.token, work.ranges, work.relations, work.source), Tag(0, attempt)
        for declared in SPEC.sinks:
            sink = sink_of(SPEC, declared.name)
            rows = needed_rows(sink, work)
            half = len(rows) // 2
            with Writer(into, tag, (sink,)) as writer:
                writer.write(sink, rows[:half])
                then()
                writer.write(sink, rows[half:])
                done = writer.finish()[sink.name]
            sinks[sink.name] = SinkVote((done.writer,), done.rows, done.checksum)
            then = lambda: None  # noqa: E731
        return vote_of(SPEC, work, sinks)


def needed_rows(sink: Sink, work: SliceWork) -> pa.Table:
    """What SPEC's transform gives for a sink, each record's own position as its value."""
    rows = [
        {"k": str(p) if sink.name == "totals" else f"{p}-{o % 5}", "a": o, "_deleted": False} | _place(p, o)
        for p, o in positions(work)
    ]
    columns = (*sink.needed, *(c for c in sink.written if c.name.startswith("_")))
    place = [c for c in POSITION if c not in columns]
    return pa.Table.from_pylist(rows, schema=arrow_schema((*columns, *place)))


def _place(partition: int, offset: int) -> dict[str, int]:
    return {"_partition": partition, "_offset": offset, "_n": 0}
