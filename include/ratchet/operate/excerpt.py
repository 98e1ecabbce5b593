"""An excerpt of a topic: the records that come next, or those at an offset, as a slice that nobody has planned."""

from __future__ import annotations

from datetime import UTC, datetime

from ratchet.errors import RecordsLost, SettingsError, TopicChanged
from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import OffsetRange, SliceToken, SliceWork
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
        course = course_of(conn, line) if line else Course(chosen(spec, offsets).starts)
    if line and line.topic_id != offsets.topic_id:
        raise TopicChanged(
            f"{spec.name}: the ledger's ranges are of topic {line.topic} with id {line.topic_id}, and "
            f"{offsets.topic} has id {offsets.topic_id}; name records by --partition and --offset to see them"
        )
    course = course.next if course.is_at_end else course
    check_readable(spec.name, course, offsets)
    ranges = plan(course.previous, offsets, most, course.limit(offsets, None))
    return _work(spec, offsets, ranges, line.last_txid + 1 if line else 1)


def records_at(spec: Pipeline, offsets: TopicOffsets, partition: int, offset: int, most: int) -> SliceWork:
    """`most` offsets of one partition from `offset` on; SettingsError or RecordsLost where there is no such record."""
    where, until = f"{spec.name}: {offsets.topic}-{partition}", offsets.stable.get(partition)
    if until is None:
        held = ", ".join(map(str, sorted(offsets.stable)))
        raise SettingsError(f"{where} is not there; the topic has partitions {held}")
    if offset < offsets.beginning[partition]:
        raise RecordsLost(f"{where} begins at offset {offsets.beginning[partition]} now; {offset} was deleted by Kafka")
    if offset >= until:
        raise SettingsError(f"{where} has decided records up to offset {until} only")
    return _work(spec, offsets, [OffsetRange(offsets.topic, partition, offset, min(until, offset + most))], 1)


def _work(spec: Pipeline, offsets: TopicOffsets, ranges: list[OffsetRange], txid: int) -> SliceWork:
    """Nobody has claimed it, so nothing could be written with its token."""
    now = datetime.now(UTC)
    return SliceWork(
        token=SliceToken(spec.name, txid, epoch=0, slice=0, try_number=0),
        ranges=tuple(ranges),
        relations={},
        txn_time=now.replace(microsecond=now.microsecond // 1000 * 1000),
        topic_id=offsets.topic_id,
        source=0,
        lineages={},
    )
