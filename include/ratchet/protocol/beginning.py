"""Where a line begins: at which offset of each partition, and by which rule of its spec; decided once, and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, literal, select, update

from ratchet.errors import Fenced, SpecError
from ratchet.ledger.rows import Line
from ratchet.ledger.schema import ranges, sources
from ratchet.ledger.topics import Topics, of_line
from ratchet.ledger.work import utc
from ratchet.source.offsets import TopicOffsets
from ratchet.spec.pipeline import Pipeline
from ratchet.spec.source import Offsets

FIRST = 1
"""The number of a line's first source."""
_NAMED = 3
"""So many partitions are named in a line; the ledger has all."""
_LONGEST_RULE = 100


@dataclass(frozen=True)
class Beginning:
    """Where a line begins in each partition that it finds, where the logs began then, and by which rule of the spec."""

    topics: Topics
    rule: str
    starts: dict[int, int]
    logs: dict[int, int]

    def __str__(self) -> str:
        places = [f"{self.topics.said(p)} at {at}" for p, at in sorted(self.starts.items())]
        more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
        before = sum(at - self.logs[p] for p, at in self.starts.items())
        left = f"; the {before:,} offsets that Kafka had before that are no part of it" if before else ""
        return f"the line begins by begin={_short(self.rule)}: {', '.join(places[:_NAMED])}{more}{left}"

    @classmethod
    def read(cls, topics: Topics, said: Mapping[str, Any]) -> Beginning:
        """From the form in which the ledger has it."""
        return cls(topics, said["rule"], *(_numbers(said[name]) for name in ("starts", "logs")))

    @property
    def stored(self) -> dict[str, Any]:
        """As the ledger and the history have it."""
        return {"rule": self.rule, "starts": _texts(self.starts), "logs": _texts(self.logs)}


def chosen(spec: Pipeline, offsets: TopicOffsets) -> Beginning:
    """Where a line of this spec would begin now, by what Kafka has said.

    Raises SpecError where the spec names an offset that its log does not have, other partitions than the topic has, or
    not all of them; and Fenced where Kafka was not asked for the time that it names.
    """
    topic = spec.source
    match topic.begin:
        case "earliest":
            starts = offsets.beginning
        case "latest":
            starts = offsets.stable
        case datetime():
            if offsets.since is None:
                raise Fenced(f"{spec.name}: the line was dropped while this run began; nothing was begun; run again")
            starts = offsets.since
        case _:
            starts = _checked(spec.name, _by_line(spec.name, topic.begin, offsets), offsets)
    return Beginning(offsets.topics, topic.rule, dict(starts), dict(offsets.beginning))


def times(spec: Pipeline) -> tuple[datetime, ...]:
    """The time for which Kafka has to be asked before the line begins, if its spec names one."""
    return (spec.source.begin,) if isinstance(spec.source.begin, datetime) else ()


def decide(conn: Connection, spec: Pipeline, offsets: TopicOffsets) -> Beginning:
    """Where the line begins, for one that begins in this database transaction; as `chosen`, but for a time to come."""
    begin = spec.source.begin
    if isinstance(begin, datetime) and conn.execute(select(func.clock_timestamp() < literal(begin))).scalar_one():
        raise SpecError(
            f"{spec.name}: Topic.begin: {utc(begin)} has not come yet, and records from before it would be taken until "
            "then; nothing was begun; give a time that has come, or let the first run begin after it"
        )
    return chosen(spec, offsets)


def keep(conn: Connection, pipeline: str, beginning: Beginning) -> None:
    """Let the partitions start there: what retention deletes of them from there on is a loss."""
    row = {"pipeline": pipeline, "source": FIRST, "txid": 0, "from_offset": None}
    places = sorted(beginning.starts.items())
    conn.execute(insert(ranges), [{**row, "partition": p, "until_offset": at} for p, at in places])


def kept(conn: Connection, line: Line) -> Beginning:
    """Where a line has begun."""
    said = conn.execute(select(sources.c.begun).where(*_first(line))).scalar_one()
    return Beginning.read(line.topics, said)


def of_first(conn: Connection, line: Line) -> Beginning | None:
    """Where a line has begun, as long as it has no transaction."""
    return None if line.last_txid else kept(conn, line)


def tell_change(conn: Connection, spec: Pipeline, line: Line) -> str | None:
    """That the spec's rule is another one by now, which changes nothing; once, the caller holds the pipeline's lock."""
    rule, begun = spec.source.rule, sources.c.begun
    begun_by, told = conn.execute(select(begun["rule"].astext, begun["told"].astext).where(*_first(line))).one()
    if rule == (told or begun_by):
        return None
    now = begun.concat(func.jsonb_build_object("told", rule))
    conn.execute(update(sources).where(*_first(line)).values(begun=now))
    if rule == begun_by:
        return None
    return (
        f"Topic.begin is {_short(rule)} now, and the line has begun by {_short(begun_by)}: it goes on where its plans "
        "have ended"
    )


def _by_line(pipeline: str, begin: Offsets, offsets: TopicOffsets) -> dict[int, int]:
    """The named offsets by partition of the line; SpecError where a topic is not there, or is not named."""
    topics, found = offsets.topics, dict[int, int]()
    for key, at in begin.items():
        if not isinstance(at, dict):
            found[int(key)] = at
            continue
        number = topics.number(str(key))
        if number is None:
            raise SpecError(f"{pipeline}: Topic.begin: {key!r} is none of {topics.title}; nothing was begun")
        found |= {of_line(number, partition): offset for partition, offset in at.items()}
    return found


def _checked(pipeline: str, begin: Mapping[int, int], offsets: TopicOffsets) -> Mapping[int, int]:
    """The named offsets, which must be of all partitions and within their logs."""
    where, topics = f"{pipeline}: Topic.begin", offsets.topics
    absent, unnamed = sorted(begin.keys() - offsets.stable.keys()), sorted(offsets.stable.keys() - begin.keys())
    if absent:
        topic, partition = topics.place(absent[0])
        has = ", ".join(map(str, topics.by_topic(offsets.stable)[topic]))
        raise SpecError(f"{where}: topic {topic} has no partition {partition}; it has {has}; nothing was begun")
    if unnamed:
        topic, partition = topics.place(unnamed[0])
        raise SpecError(
            f"{where}: topic {topic} has partition {partition} as well, and nothing says where it begins; nothing was "
            "begun; name all partitions"
        )
    for p, at in sorted(begin.items()):
        first, end = offsets.beginning[p], offsets.end.get(p, offsets.stable[p])
        topic, partition = topics.place(p)
        if not first <= at <= end:
            raise SpecError(
                f"{where}: topic {topic}: the log of partition {partition} is from offset {first} to {end}, and {at} "
                "is not within; nothing was begun; name an offset of it, its end among them"
            )
    return begin


def _first(line: Line) -> tuple[ColumnElement[bool], ...]:
    return sources.c.pipeline == line.pipeline, sources.c.source == FIRST


def _short(rule: str) -> str:
    return rule if len(rule) <= _LONGEST_RULE else f"{rule[:_LONGEST_RULE]}…"


def _texts(of: Mapping[int, int]) -> dict[str, int]:
    return {str(p): at for p, at in sorted(of.items())}


def _numbers(of: Mapping[str, int]) -> dict[int, int]:
    return {int(p): at for p, at in of.items()}
