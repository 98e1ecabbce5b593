"""What is due: up to where a schedule or a person has asked for a line's records.

A run that either of them has started asks for all that there is. The runs that follow it by themselves take that and no
more, so that what comes later waits for the next one that is asked for. Where records start runs, all is due at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, update

from ratchet.errors import RatchetError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line
from ratchet.ledger.schema import pipelines
from ratchet.ledger.transactions import lock_pipeline, read_line
from ratchet.protocol import membership
from ratchet.source.offsets import KnownLogs, TopicOffsets
from ratchet.spec.pipeline import Pipeline

if TYPE_CHECKING:
    from ratchet.protocol.begin import KafkaOffsets


def is_asked_for(spec: Pipeline) -> bool:
    """Whether it matters who has asked for what; by interval each run knows for itself what is its own."""
    return spec.runs is None and spec.plan == "stable"


def ask(conn: Connection, line: Line, offsets: TopicOffsets) -> None:
    """Make due what Kafka has now, beside what was; the caller holds the pipeline's lock."""
    before = line.due or {}
    # What an undecided Kafka transaction holds back has arrived as well, and is taken once that is decided.
    after = {str(p): max(offsets.end.get(p, 0), at, before.get(str(p), 0)) for p, at in offsets.stable.items()}
    if after != before:
        conn.execute(update(pipelines).where(pipelines.c.pipeline == line.pipeline).values(due=after))


def ask_besides(ledger: Ledger, spec: Pipeline, kafka_offsets: KafkaOffsets) -> str | None:
    """Make due what there is, though this run has other work first, or none; why that was not possible, in a line.

    What is adopted is finished without Kafka.
    """
    try:
        with ledger.begin() as conn:
            line = read_line(conn, spec.name)
        offsets = kafka_offsets(None, KnownLogs(line.topics) if line else None)
    except RatchetError as error:
        return f"no more is due than before, since Kafka was not heard: {error}"
    with ledger.begin() as conn:
        line = lock_pipeline(conn, spec.name)
        if line is not None and not membership.made_again(line.topics, offsets):
            ask(conn, line, offsets.of(range(len(line.topics))))
    return None


def limit(spec: Pipeline, line: Line | None, offsets: TopicOffsets) -> dict[int, int] | None:
    """{partition: up to where its records are due}; None where all of them are."""
    if not is_asked_for(spec):
        return None
    due = (line.due if line else None) or {}
    return {p: due.get(str(p), 0) for p in offsets.stable}
