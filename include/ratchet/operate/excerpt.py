"""An excerpt of a topic: the records that come next, or those at an offset, as a slice that nobody has planned."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from ratchet.errors import RecordsLost, SettingsError, TopicChanged
from ratchet.ledger.connection import Ledger
from ratchet.ledger.topics import titled
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import OffsetRange, SliceToken, SliceWork
from ratchet.operate.naming import partition_of
from ratchet.protocol import membership
from ratchet.protocol.beginning import chosen
from ratchet.protocol.plan import Course, check_readable, course_of, plan
from ratchet.source.offsets import TopicOffsets
from ratchet.spec.pipeline import Pipeline


def next_records(ledger: Ledger, spec: Pipeline, offsets: TopicOffsets, most: int) -> SliceWork:
    """The next `most` offsets of the line, shared among its partitions as a plan shares them.

    Of a line that has not begun, those with which it would begin: `offsets` is asked with the time that its spec names.
    Raises SpecError, TopicChanged and RecordsLost as a begin would.
    """
    with ledger.snapshot() as conn:
        line = read_line(conn, spec.name)
        if line is None:
            course = Course(chosen(spec, offsets).starts)
        elif again := membership.made_again(line.topics, offsets):
            raise TopicChanged(
                f"{spec.name}: {titled([line.topics.names[n] for n in sorted(again)])} was made again, and the "
                "ledger's ranges are of the one before; name records by --partition and --offset to see them"
            )
        else:
            course = course_of(conn, membership.as_joined(line, offsets))
            new = membership.starts(spec, line.topics, offsets)
            course = replace(course, previous=new | course.previous)
    course = course.next if course.is_at_end else course
    check_readable(spec.name, course, offsets)
    ranges = plan(course.previous, offsets, most, course.limit(offsets, None))
    return _work(spec, offsets, ranges, line.last_txid + 1 if line else 1)


def records_at(
    spec: Pipeline, offsets: TopicOffsets, partition: int, offset: int, most: int, topic: str | None = None
) -> SliceWork:
    """`most` offsets of one partition from `offset` on; SettingsError or RecordsLost where there is no such record.

    Without a `topic` it is the only one.
    """
    place = partition_of(spec.name, offsets.topics, topic, partition)
    where, until = f"{spec.name}: {offsets.topics.said(place)}", offsets.stable.get(place)
    if until is None:
        held = ", ".join(map(str, offsets.topics.by_topic(offsets.stable)[offsets.topics.name(place)]))
        raise SettingsError(f"{where} is not there; the topic has partitions {held}")
    if offset < offsets.beginning[place]:
        raise RecordsLost(f"{where} begins at offset {offsets.beginning[place]} now; {offset} was deleted by Kafka")
    if offset >= until:
        raise SettingsError(f"{where} has decided records up to offset {until} only")
    return _work(spec, offsets, [offsets.range(place, offset, min(until, offset + most))], 1)


def _work(spec: Pipeline, offsets: TopicOffsets, ranges: list[OffsetRange], txid: int) -> SliceWork:
    """Nobody has claimed it, so nothing could be written with its token."""
    now = datetime.now(UTC)
    return SliceWork(
        token=SliceToken(spec.name, txid, epoch=0, slice=0, try_number=0),
        ranges=tuple(ranges),
        relations={},
        txn_time=now.replace(microsecond=now.microsecond // 1000 * 1000),
        topics=offsets.topics,
        source=0,
        lineages={},
    )
