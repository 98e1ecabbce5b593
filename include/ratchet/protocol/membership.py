"""Which topics are of a line: the check that they are the same ones, how others join, and how one is left.

A topic of the line keeps its number for ever. Another one joins behind those that are there, at a begin that hears of
it. One that is gone, or that the spec does not name any more, stops the line until a person decides; then it is left:
what was committed of it stays, and nothing more is planned. Where it comes back with the same id, it goes on where its
plans had ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, insert, select, update

from ratchet.errors import TopicChanged
from ratchet.ledger import topic_rows
from ratchet.ledger.rows import Line
from ratchet.ledger.schema import pipelines, ranges, topics
from ratchet.ledger.topics import Topics, number_of, titled
from ratchet.protocol.beginning import Beginning
from ratchet.source.offsets import TopicOffsets
from ratchet.spec.pipeline import Pipeline


def check(spec: Pipeline, line: Topics, told: Topics) -> None:
    """TopicChanged where a topic of the line is another one by now, is gone, or is one that the spec does not name.

    `told` are the topics as Kafka has them now.
    """
    now, name = told.ids, spec.name
    if not any(spec.source.wants(each.name) for each in line):
        raise TopicChanged(
            f"{name}: the ledger's ranges are of {line.title}, the spec's topic is {spec.source.title}; nothing was "
            "planned; give the pipeline a new name, and its sinks new tables, to begin anew with this topic"
        )
    for each in line:
        if now.get(each.name, each.topic_id) != each.topic_id:
            raise TopicChanged(
                f"{name}: the ledger's ranges are of topic {each.name} with id {each.topic_id}; Kafka's {each.name} "
                f"has id {now[each.name]}: it was deleted and made again; nothing was planned; "
                f"`ratchet accept-loss {name} --reason …` goes on with the records of the new one"
            )
    for each in line:
        # Of one that has joined since Kafka was asked the answer knows nothing.
        if each.left or each.name in now or each.name not in told.names:
            continue
        if spec.source.wants(each.name):
            what, back = "is not in Kafka any more", "bring it back"
        else:
            what, back = f"is none of the spec's topics, {spec.source.title}", "put it back"
        raise TopicChanged(
            f"{name}: topic {each.name} of the line {what}; nothing was planned; {back}, or leave it with "
            f"`ratchet accept-loss {name} --reason …`: what was committed of it stays, what was planned and cannot be "
            "read is given up, and nothing more of it is taken"
        )


def added(line: Topics, told: Topics) -> set[int]:
    """The numbers of the topics that Kafka has told of and the line does not have."""
    return {number for number in range(len(line), len(told)) if told.of[number].topic_id}


def starts(spec: Pipeline, line: Topics, offsets: TopicOffsets) -> dict[int, int]:
    """{partition: where it would begin}, of the topics that would join now."""
    where = offsets.beginning if spec.source.join == "earliest" else offsets.stable
    new = added(line, offsets.topics)
    return {p: at for p, at in where.items() if number_of(p) in new}


def as_joined(line: Line, offsets: TopicOffsets) -> Line:
    """The line with the topics that have come, and those that were left and are back."""
    told = offsets.topics
    back = tuple(replace(each, left=False) if each.left and each.name in told.ids else each for each in line.topics)
    new = tuple(told.of[number] for number in sorted(added(line.topics, told)))
    return replace(line, topics=Topics((*back, *new)))


def join(conn: Connection, spec: Pipeline, line: Line, offsets: TopicOffsets) -> Line:
    """Let the topics that have come join, and those that were left and are back go on; the caller holds the lock.

    Kafka was asked by the topics that the line has now. Where each one begins is noted for the next transaction.
    """
    now = as_joined(line, offsets)
    if now == line:
        return line
    of = starts(spec, line.topics, offsets)
    for number in sorted(added(line.topics, offsets.topics)):
        mine = {p: at for p, at in sorted(of.items()) if number_of(p) == number}
        begun = Beginning(offsets.topics, spec.source.join, mine, {p: offsets.beginning[p] for p in mine})
        noted: dict[str, Any] = {"joined_txid": line.last_txid + 1, "begun": begun.stored}
        topic_rows.keep(conn, line.pipeline, line.source, Topics(now.topics.of[: number + 1]), number, **noted)
        row = {"pipeline": line.pipeline, "source": line.source, "txid": 0, "from_offset": None}
        conn.execute(insert(ranges), [{**row, "partition": p, "until_offset": at} for p, at in mine.items()])
    _keep(conn, now)
    return now


def joined(conn: Connection, line: Line, txid: int) -> list[Beginning]:
    """Where the topics begin that have joined before this transaction and behind the one before it."""
    c = topics.c
    mine = (c.pipeline == line.pipeline, c.source == line.source, c.joined_txid == txid)
    found = conn.execute(select(c.begun).where(*mine).order_by(c.number)).scalars()
    return [Beginning.read(line.topics, said) for said in found]


def told(of: Beginning) -> str:
    """That a topic has joined, and where it begins, in a line."""
    names = titled([*of.topics.by_topic(of.starts)])
    places = ", ".join(f"{of.topics.said(p)} at {at}" for p, at in of.starts.items())
    return f"{names} joins the line by join={of.rule}: {places}"


def gone(spec: Pipeline, line: Topics, offsets: TopicOffsets) -> set[int]:
    """The numbers of the topics that the line has and that are in Kafka, or in the spec, no more."""
    here = offsets.topics.ids
    return {
        number
        for number, each in enumerate(line)
        if not each.left and (each.name not in here or not spec.source.wants(each.name))
    }


def leave(conn: Connection, line: Line, numbers: set[int]) -> Line:
    """Plan nothing more of these topics; the caller holds the lock."""
    now = Topics(tuple(replace(each, left=each.left or n in numbers) for n, each in enumerate(line.topics)))
    _keep(conn, replace(line, topics=now))
    return replace(line, topics=now)


def renewed(line: Topics, offsets: TopicOffsets) -> Topics:
    """The topics of the next source: those of the line, with the ids that they have now."""
    now = offsets.topics.ids
    return Topics(tuple(replace(each, topic_id=now.get(each.name, each.topic_id)) for each in line))


def made_again(line: Topics, offsets: TopicOffsets) -> set[int]:
    """The numbers of the topics that have another id than the line knows."""
    now = offsets.topics.ids
    return {n for n, each in enumerate(line) if now.get(each.name, each.topic_id) != each.topic_id}


def present(of: Mapping[int, int], line: Topics) -> dict[int, int]:
    """Those partitions whose topics are not left."""
    return {p: at for p, at in of.items() if not line.is_left(p)}


def _keep(conn: Connection, line: Line) -> None:
    of = pipelines.c.pipeline == line.pipeline
    conn.execute(update(pipelines).where(of).values(topics=line.topics.stored))
