"""What every source must do. A second one is registered by a subclass of `Conformance` with an `open_source` fixture.

    class TestOther(Conformance):
        @pytest.fixture
        def open_source(self): return lambda properties, origins: OtherSource(properties, origins)

It needs the fixture `kafka_properties` of a broker of the test's own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from kafka import TopicPartition

from ratchet.errors import RecordsLost, TopicChanged, UnknownTopic
from ratchet.ledger.work import OffsetRange
from ratchet.source.kafka import Kafka
from ratchet.source.port import SCHEMA, Origin, Source
from tests.source.batches import Batch, Record
from tests.source.topics import (
    Row,
    append,
    compacted,
    ends,
    make_topic,
    producer,
    rows,
    stable_ranges,
    within,
    witnessed,
    write_everything,
)

Open = Callable[[dict[str, str], Mapping[str, Origin] | None], Source]

CUTS = 200


@dataclass(frozen=True)
class Everything:
    """A topic that was written, and what librdkafka reads of it."""

    ranges: list[OffsetRange]
    records: list[Row]


def checked(source: Source, ranges: Sequence[OffsetRange]) -> list[Row]:
    """What the source reads, held to what holds for every reading."""
    reading = source.read(ranges)
    batches: list[Any] = []
    for batch in reading:
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA)
        batches.append(batch)
        assert reading.records == sum(b.num_rows for b in batches)
    found = rows(batches)
    for partition in {r.partition for r in ranges}:
        offsets = [row[1] for row in found if row[0] == partition]
        assert offsets == sorted(offsets)
    assert dict(reading.reached) == ends(ranges)
    reading.close()
    return found


class Conformance:
    """The checks; see the module."""

    @pytest.fixture
    def open_source(self) -> Open:
        raise NotImplementedError("give the source that is checked")

    @pytest.fixture(scope="class")
    @classmethod
    def everything(cls, kafka) -> Everything:
        topic = make_topic(kafka.kafka, 2)
        write_everything(kafka.kafka, topic, 2)
        ranges = stable_ranges(kafka.kafka, topic)
        return Everything(ranges, witnessed(kafka.kafka, ranges))

    def test_a_topic_with_everything_is_read_as_librdkafka_reads_it(self, open_source, kafka_properties, everything):
        assert len(everything.records) > 5_000
        assert everything.ranges[0].until_offset > max(row[1] for row in everything.records if row[0] == 0) + 30
        found = checked(open_source(kafka_properties, None), everything.ranges)
        assert Counter(found) == Counter(everything.records)

    def test_ranges_that_are_cut_anywhere(self, open_source, kafka_properties, everything):
        chance = random.Random(2)
        source = open_source(kafka_properties, None)
        for _ in range(CUTS):
            ranges: list[OffsetRange] = []
            for whole in everything.ranges:
                cuts = sorted(chance.randint(0, whole.until_offset) for _ in range(chance.choice([2, 2, 4])))
                ranges += [
                    OffsetRange(whole.topic, whole.partition, a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True)
                ]
            chance.shuffle(ranges)
            assert Counter(checked(source, ranges)) == within(everything.records, ranges), ranges

    def test_every_end_in_markers_and_aborted_records_is_reached(self, open_source, kafka_properties, everything):
        whole = everything.ranges[0]
        source = open_source(kafka_properties, None)
        for length in (1, 2, 31, 32, 33):
            for end in range(whole.until_offset - 64, whole.until_offset + 1, 7):
                ranges = [OffsetRange(whole.topic, 0, end - length, end)]
                assert Counter(checked(source, ranges)) == within(everything.records, ranges), ranges

    def test_holes_that_compaction_left(self, open_source, kafka_properties):
        topic = compacted(kafka_properties)
        (whole,) = stable_ranges(kafka_properties, topic)
        expected = witnessed(kafka_properties, [whole])
        source = open_source(kafka_properties, None)
        assert Counter(checked(source, [whole])) == Counter(expected)
        chance = random.Random(6)
        for _ in range(60):
            begin = chance.randrange(whole.until_offset)
            # Most of them end within a hole.
            ranges = [OffsetRange(topic, 0, begin, min(whole.until_offset, begin + chance.choice([1, 2, 9, 70])))]
            assert Counter(checked(source, ranges)) == within(expected, ranges), ranges

    def test_nothing_is_asked_for_empty_ranges(self, open_source, kafka_properties):
        source = open_source(kafka_properties, None)
        assert checked(source, []) == []
        assert checked(source, [OffsetRange("absent", 0, 5, 5)]) == []

    def test_ranges_that_overlap_are_refused(self, open_source, kafka_properties):
        with pytest.raises(ValueError, match="overlap"):
            open_source(kafka_properties, None).read([OffsetRange("t", 0, 0, 5), OffsetRange("t", 0, 4, 6)])

    def test_times_of_the_broker(self, open_source, kafka_properties):
        topic = make_topic(kafka_properties, 1, message_timestamp_type="LogAppendTime")
        write_everything(kafka_properties, topic, 1, seed=5, rounds=2)
        ranges = stable_ranges(kafka_properties, topic)
        expected = witnessed(kafka_properties, ranges)
        assert min(row[2] for row in expected) > 1_700_000_000_000
        assert Counter(checked(open_source(kafka_properties, None), ranges)) == Counter(expected)

    def test_the_number_of_the_origin_is_in_every_row(self, open_source, kafka_properties):
        topics = [make_topic(kafka_properties) for _ in range(2)]
        origins = {topic: Origin(number) for number, topic in enumerate(topics, 7)}
        for topic in topics:
            append(kafka_properties, topic, Batch(0, [Record(0, topic.encode())]).bytes())
        source = open_source(kafka_properties, origins)
        reading = source.read([OffsetRange(topic, 0, 0, 1) for topic in topics])
        found = [row for batch in reading for row in batch.select(["_source", "_value"]).to_pylist()]
        expected = [{"_source": n, "_value": topic.encode()} for n, topic in enumerate(topics, 7)]
        assert sorted(found, key=lambda row: row["_source"]) == expected

    def test_records_that_retention_took_are_lost(self, open_source, kafka_properties):
        topic = make_topic(kafka_properties)
        for at in range(10):
            append(kafka_properties, topic, Batch(0, [Record(0, b"%d" % at)]).bytes())
        with Kafka(kafka_properties) as client:
            client.admin.delete_records({TopicPartition(topic, 0): 4})
        source = open_source(kafka_properties, None)
        assert [row[4] for row in checked(source, [OffsetRange(topic, 0, 4, 10)])] == [b"%d" % n for n in range(4, 10)]
        with pytest.raises(RecordsLost) as raised:
            checked(source, [OffsetRange(topic, 0, 2, 9)])
        assert topic in str(raised.value) and "offsets 2 to 3" in str(raised.value)

    def test_a_topic_that_was_made_again_is_another_one(self, open_source, kafka_properties):
        topic = make_topic(kafka_properties)
        append(kafka_properties, topic, Batch(0, [Record(0)]).bytes())
        with Kafka(kafka_properties) as client:
            first = client.topic_id(topic)[0]
            source = open_source(kafka_properties, {topic: Origin(0, first)})
            ranges = [OffsetRange(topic, 0, 0, 1)]
            assert len(checked(source, ranges)) == 1
            client.admin.delete_topics([topic])
            client.admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
            append(kafka_properties, topic, Batch(0, [Record(0)]).bytes())
            with pytest.raises(TopicChanged, match=f"{topic}.*{client.topic_id(topic)[0]}, not {first}"):
                checked(source, ranges)

    def test_a_topic_that_is_not_there(self, open_source, kafka_properties):
        with pytest.raises(UnknownTopic, match="absent"):
            checked(open_source(kafka_properties, None), [OffsetRange("absent", 0, 0, 1)])

    def test_records_up_to_the_largest_that_the_broker_takes(self, open_source, kafka_properties):
        topic = make_topic(kafka_properties, 1, max_message_bytes=str(20 * 2**20))
        sender = producer(kafka_properties, **{"message.max.bytes": 20 * 2**20})
        values = [b"a", bytes(range(256)) * 64 * 1024, b"", b"z" * 19 * 2**20, b"b"]
        for value in values:
            sender.produce(topic, value, partition=0)
        sender.flush()
        found = checked(open_source(kafka_properties, None), [OffsetRange(topic, 0, 0, len(values))])
        assert [row[4] for row in found] == values
