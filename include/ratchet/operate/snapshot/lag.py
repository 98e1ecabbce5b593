"""How far lines are behind Kafka, in records and seconds, and when retention deletes what they have not taken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select, true

from ratchet.ledger import topic_rows
from ratchet.ledger.schema import heads, pipelines, ranges, topics
from ratchet.ledger.topics import of_line
from ratchet.operate.attention import Standing as Position
from ratchet.operate.attention import standings
from ratchet.operate.snapshot.status import names_of
from ratchet.source.topics import Ends, Place
from ratchet.spec.pipeline import Pipeline

Times = Callable[[Mapping[Place, int]], Mapping[Place, datetime]]
"""Asks for the times of records at these offsets, as `Topics.times` does; what is not told is left out."""


@dataclass(frozen=True)
class PartitionLag:
    """A partition of a line: `since` is the first offset that is not committed, `planned` up to where plans go.

    `oldest_at` is the time of the first record that is not committed; `deleted_at` is when retention deletes it, at the
    earliest, None where nothing says. `lost` is how many offsets are deleted that no plan had taken.
    """

    topic: str
    partition: int
    beginning: int
    since: int
    planned: int
    stable: int
    lag: int
    lost: int
    oldest_at: datetime | None
    deleted_at: datetime | None


@dataclass(frozen=True)
class Lag:
    """How far a line is behind: `records` are the offsets that are not committed, `waiting` those that no plan has.

    `seconds` is how old the oldest of them is, `deleted_at` when the first of them may be deleted; both are None where
    nothing waits, or Kafka has not said it. `is_told` is False where Kafka tells nothing of a topic, and
    `is_made_again` where one is another than that of the ledger's ranges: then only the offsets in flight count.
    `topic` is the name, or the names. `paused_behind` is the transaction behind which a person has stopped the line,
    None where nobody has.
    """

    pipeline: str
    topic: str
    at: datetime
    records: int
    waiting: int
    in_flight: int
    seconds: float | None
    deleted_at: datetime | None
    lost: int
    is_told: bool
    is_made_again: bool
    partitions: tuple[PartitionLag, ...]
    paused_behind: int | None


def lags(
    conn: Connection, names: Collection[str], ends: Mapping[str, Ends], times: Times = lambda _: {}
) -> dict[str, Lag]:
    """How far these lines are behind what the brokers hold; without those that have no line."""
    lines = standings(conn, names)
    now: datetime = conn.execute(select(func.clock_timestamp())).scalar_one()
    flying = _in_flight(conn, lines)
    asked: dict[Place, set[int]] = {}
    for name, of in lines.items():
        if not _are_the_same(of, ends):
            continue
        for partition, (since, _) in _open(of, ends, flying.get(name, {})).items():
            topic, at = of.line.topics.place(partition)
            offsets = asked.setdefault((topic, at), set())
            offsets.add(since)
            if ends[topic].retention_bytes is not None:
                offsets.add(ends[topic].beginning[at])
    found = _times(asked, times)
    return {name: _lag(now, of, ends, flying.get(name, {}), found) for name, of in lines.items()}


def topics_asked(conn: Connection, specs: Iterable[Pipeline]) -> set[str]:
    """The names of the topics of which Kafka is asked: those of the lines and, of others, those that a spec names."""
    specs = list(specs)
    lines = standings(conn, [spec.name for spec in specs])
    named: set[str] = set()
    for spec in specs:
        named |= {*lines[spec.name].line.topics.names} if spec.name in lines else {*spec.source.names}
    return named


_Flying = dict[tuple[str, int], tuple[int, int]]
"""{(topic id, partition): (the first offset that is planned and not committed, how many are)}."""


def _in_flight(conn: Connection, lines: Mapping[str, Position]) -> dict[str, _Flying]:
    """{pipeline: its offsets in flight}, of the transactions behind each head."""
    h, p, r, t = heads.c, pipelines.c, ranges.c, topics.c
    txids = func.generate_series(h.txid + 1, p.last_txid).table_valued("txid").render_derived("txids")
    # OFFSET 0 has PostgreSQL look up each transaction by itself, whatever it expects of their number.
    mine = select(ranges).where(r.pipeline == h.pipeline, r.txid == txids.c.txid).offset(0).lateral("mine")
    m = mine.c
    count = func.sum(m.until_offset - m.from_offset)
    query = (
        select(h.pipeline, t.topic_id, m.partition, func.min(m.from_offset), count)
        .join(pipelines, p.pipeline == h.pipeline)
        .join(txids, true())
        .join(mine, true())
        .join(topics, topic_rows.is_of(mine))
        .where(h.pipeline.in_(list(lines)))
        .group_by(h.pipeline, t.topic_id, m.partition)
    )
    found: dict[str, _Flying] = {}
    for pipeline, topic_id, partition, first, offsets in conn.execute(query):
        found.setdefault(pipeline, {})[topic_id, partition] = (first, int(offsets))
    return found


def _are_the_same(of: Position, ends: Mapping[str, Ends]) -> bool:
    """Whether all topics of the line are told of, and are those that its ranges are of."""
    return all(
        each.name in ends and ends[each.name].topic_id == each.topic_id for each in of.line.topics if not each.left
    )


def _open(of: Position, ends: Mapping[str, Ends], flying: _Flying) -> dict[int, tuple[int, int]]:
    """{partition: (the first offset that is not committed, up to where it is planned)}, of those that have any."""
    found: dict[int, tuple[int, int]] = {}
    for number, each in enumerate(of.line.topics):
        if each.left:
            continue
        for at, stable in sorted(ends[each.name].stable.items()):
            partition = of_line(number, at)
            # As in a plan: a partition that has come since the line began starts at 0.
            planned = of.planned.get(partition, 0)
            since = flying.get((each.topic_id, partition), (planned, 0))[0]
            if since < stable:
                found[partition] = since, planned
    return found


def _times(asked: Mapping[Place, Collection[int]], times: Times) -> dict[tuple[Place, int], datetime]:
    """{(place, offset): the record's time}; of a partition each look asks for one offset."""
    found: dict[tuple[Place, int], datetime] = {}
    left = {place: sorted(offsets) for place, offsets in asked.items()}
    while left:
        look = {place: offsets.pop() for place, offsets in left.items()}
        found |= {(place, look[place]): at for place, at in times(look).items()}
        left = {place: offsets for place, offsets in left.items() if offsets}
    return found


def _lag(
    now: datetime,
    of: Position,
    ends: Mapping[str, Ends],
    flying: _Flying,
    times: Mapping[tuple[Place, int], datetime],
) -> Lag:
    line, in_flight = of.line, sum(offsets for _, offsets in flying.values())
    named = ", ".join(names_of(line))
    if not _are_the_same(of, ends):
        told = all(each.name in ends for each in line.topics if not each.left)
        again = any(ends[each.name].topic_id != each.topic_id for each in line.topics if each.name in ends)
        unknown = (None, None, 0, told, again, ())
        return Lag(line.pipeline, named, now, in_flight, 0, in_flight, *unknown, line.paused_behind)
    parts: list[PartitionLag] = []
    waiting = 0
    for partition, (since, planned) in _open(of, ends, flying).items():
        place = topic, at = line.topics.place(partition)
        told = ends[topic]
        stable, beginning = told.stable[at], told.beginning[at]
        behind = max(stable - max(planned, beginning), 0)
        waiting += behind
        parts.append(
            PartitionLag(
                topic,
                at,
                beginning,
                since,
                planned,
                stable,
                behind + flying.get((told.topic_id, partition), (0, 0))[1],
                max(beginning - planned, 0),
                times.get((place, since)),
                _deleted_at(now, told, at, since, times.get((place, since)), times.get((place, beginning))),
            )
        )
    oldest = min((part.oldest_at for part in parts if part.oldest_at), default=None)
    return Lag(
        line.pipeline,
        named,
        now,
        waiting + in_flight,
        waiting,
        in_flight,
        max((now - oldest).total_seconds(), 0.0) if oldest else None,
        min((part.deleted_at for part in parts if part.deleted_at), default=None),
        sum(part.lost for part in parts),
        True,
        False,
        tuple(parts),
        line.paused_behind,
    )


def _deleted_at(
    now: datetime, told: Ends, partition: int, since: int, oldest: datetime | None, first: datetime | None
) -> datetime | None:
    """When the record at `since` may be deleted at the earliest.

    By time, when it is as old as is kept: its segment goes no earlier. By size, when so many bytes have come behind it
    as are kept, at the pace at which the log has grown since its first record.
    """
    moments: list[datetime] = []
    if told.retention_ms is not None and oldest:
        moments.append(oldest + timedelta(milliseconds=min(told.retention_ms, _LONGEST_MS)))
    held, size = told.stable[partition] - told.beginning[partition], told.bytes.get(partition)
    if told.retention_bytes is not None and size and held > 0 and first and first < now:
        behind = size * (told.stable[partition] - since) / held
        pace = size / (now - first).total_seconds()
        seconds = max(told.retention_bytes - behind, 0) / pace
        moments.append(now + timedelta(seconds=min(seconds, _LONGEST_MS / 1000)))
    return min(moments, default=None)


_LONGEST_MS = 100 * 365 * 86_400_000
"""A hundred years; a topic that keeps records for longer keeps them for ever."""
