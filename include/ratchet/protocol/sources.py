"""A line's sources: which log its plans are of, and the leader epochs by which a log that was cut is told.

A source is one topic id, and one lineage of its partitions' logs. Where a person accepts that a log was cut, or that a
topic was made again, the next source begins: its offsets may repeat those of the source before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from ratchet.errors import TopicChanged
from ratchet.ledger.rows import Line
from ratchet.ledger.schema import heads, leader_epochs, pipelines, ranges, sources
from ratchet.source.lineage import Lineage
from ratchet.source.offsets import TopicOffsets

FIRST = 1
"""The number of a line's first source."""

Lineages = dict[int, Lineage]
"""{partition: the leader epochs of its log}."""


@dataclass(frozen=True)
class Known:
    """What Kafka's answers are held against: how long a line is, its newest source, and what is known of its logs."""

    last_txid: int
    source: int
    lineages: Lineages

    def has_logs_of(self, other: Known) -> bool:
        """Whether the same is known of the same logs."""
        return (self.source, self.lineages) == (other.source, other.lineages)


NOTHING_KNOWN = Known(0, FIRST, {})
"""Before a pipeline's first run."""


def register(conn: Connection, pipeline: str, offsets: TopicOffsets) -> None:
    """The pipeline's row, made by its first run, and the check that its topic is still the same one."""
    of = {"topic": offsets.topic, "topic_id": offsets.topic_id}
    conn.execute(upsert(pipelines).values(pipeline=pipeline, source=FIRST, **of).on_conflict_do_nothing())
    conn.execute(upsert(heads).values(pipeline=pipeline).on_conflict_do_nothing())
    conn.execute(upsert(sources).values(pipeline=pipeline, source=FIRST, **of).on_conflict_do_nothing())
    topic, topic_id = conn.execute(
        select(pipelines.c.topic, pipelines.c.topic_id).where(pipelines.c.pipeline == pipeline)
    ).one()
    if topic != offsets.topic:
        raise TopicChanged(
            f"{pipeline}: the ledger's ranges are of topic {topic}, the spec's topic is {offsets.topic}; nothing was "
            "planned; give the pipeline a new name, and its sinks new tables, to begin anew with this topic"
        )
    if topic_id != offsets.topic_id:
        raise TopicChanged(
            f"{pipeline}: the ledger's ranges are of topic {topic} with id {topic_id}; Kafka's {offsets.topic} has "
            f"id {offsets.topic_id}: it was deleted and made again; nothing was planned; "
            f"`ratchet accept-loss {pipeline} --reason …` goes on with the records of the new one"
        )


def lineages(conn: Connection, pipeline: str, source: int) -> Lineages:
    """The leader epochs of the logs of a source, as the plans so far have found them."""
    c = leader_epochs.c
    rows = conn.execute(
        select(c.partition, c.leader_epoch, c.from_offset)
        .where(c.pipeline == pipeline, c.source == source)
        .order_by(c.partition, c.leader_epoch)
    )
    found: Lineages = {}
    for partition, epoch, start in rows:
        found[partition] = (*found.get(partition, ()), (epoch, start))
    return found


def known(conn: Connection, line: Line) -> Known:
    """What is known of a line's logs at this moment."""
    return Known(line.last_txid, line.source, lineages(conn, line.pipeline, line.source))


def remember(conn: Connection, line: Line, before: Known, found: Mapping[int, Lineage]) -> None:
    """Keep what the leaders are found to be now; the caller holds the pipeline's lock and has checked the logs."""
    c = leader_epochs.c
    of = {"pipeline": line.pipeline, "source": line.source}
    for partition, lineage in found.items():
        if lineage != before.lineages.get(partition):
            mine = (c.pipeline == line.pipeline, c.source == line.source, c.partition == partition)
            conn.execute(delete(leader_epochs).where(*mine))
            rows = [{**of, "partition": partition, "leader_epoch": e, "from_offset": at} for e, at in lineage]
            conn.execute(insert(leader_epochs), rows)


def cut_logs(previous: Mapping[int, int], offsets: TopicOffsets) -> dict[int, int]:
    """{partition: up to where its log is still the one that was planned up to `previous`}, where it was cut.

    A log that has grown again since is told by its leader epochs alone.
    """
    found: dict[int, int] = {}
    for partition, until in previous.items():
        same = offsets.same(partition, until)
        if partition in offsets.stable and same < until:
            found[partition] = same
    return found


def topic_of(conn: Connection, pipeline: str, source: int) -> tuple[str, str]:
    """The name and Kafka's id of a source's topic."""
    c = sources.c
    row = conn.execute(select(c.topic, c.topic_id).where(c.pipeline == pipeline, c.source == source)).one()
    return row.topic, row.topic_id


def source_of(conn: Connection, pipeline: str, txid: int) -> int:
    """The source that a transaction's ranges are of."""
    query = select(func.max(ranges.c.source)).where(ranges.c.pipeline == pipeline, ranges.c.txid == txid)
    return conn.execute(query).scalar_one()


def ends(conn: Connection, pipeline: str, source: int) -> dict[int, int] | None:
    """{partition: up to where a source can still be read}; None for the newest, which has no end.

    A later source of the same topic has the same records below where it starts, one of another topic has none.
    """
    rows = conn.execute(
        select(sources.c.source, sources.c.topic_id)
        .where(sources.c.pipeline == pipeline, sources.c.source >= source)
        .order_by(sources.c.source)
    ).all()
    found: dict[int, int] | None = None
    for row in rows[1:]:
        starts = _starts(conn, pipeline, row.source)
        same = row.topic_id == rows[0].topic_id
        before = found
        found = {p: min(at if same else 0, (before or {}).get(p, at)) for p, at in starts.items()}
    return found


def open_next(conn: Connection, line: Line, offsets: TopicOffsets, starts: Mapping[int, int]) -> int:
    """Begin the next source, whose partitions start there; the caller holds the pipeline's lock."""
    number = line.source + 1
    of = {"topic": offsets.topic, "topic_id": offsets.topic_id}
    conn.execute(insert(sources).values(pipeline=line.pipeline, source=number, **of))
    conn.execute(update(pipelines).where(pipelines.c.pipeline == line.pipeline).values(source=number, due=None, **of))
    row = {"pipeline": line.pipeline, "source": number, "txid": 0, "from_offset": None}
    conn.execute(insert(ranges), [{**row, "partition": p, "until_offset": at} for p, at in sorted(starts.items())])
    row = {"pipeline": line.pipeline, "source": number}
    epochs = [
        {**row, "partition": p, "leader_epoch": epoch, "from_offset": at}
        for p, lineage in offsets.lineages.items()
        for epoch, at in lineage
    ]
    if epochs:
        conn.execute(insert(leader_epochs), epochs)
    return number


def _starts(conn: Connection, pipeline: str, source: int) -> dict[int, int]:
    c = ranges.c
    rows = conn.execute(
        select(c.partition, c.until_offset).where(c.pipeline == pipeline, c.source == source, c.txid == 0)
    )
    return {partition: at for partition, at in rows}
