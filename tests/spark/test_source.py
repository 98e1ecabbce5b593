"""The columnar source, with a real broker."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from kafka import TopicPartition

from ratchet.errors import BrokenBatch, BrokerUnreachable, IncompleteRead, RecordsLost, SettingsError, UnknownTopic
from ratchet.ledger.work import OffsetRange
from ratchet.source import columnar, wire
from ratchet.source.columnar import ColumnarSource
from ratchet.source.kafka import Kafka
from ratchet.spark.reader import read as spark_read
from tests.source.batches import NONE, SNAPPY, ZSTD, Batch, Record
from tests.source.conformance import Conformance, checked
from tests.source.topics import (
    append,
    limit,
    make_topic,
    producer,
    rows,
    stable_ranges,
    within,
    witnessed,
    write_everything,
)
from tests.until import until


class TestColumnar(Conformance):
    @pytest.fixture
    def open_source(self):
        return ColumnarSource

    def test_small_fetches_give_the_same(self, kafka_properties, everything):
        """Every batch is larger than what is asked for, so one partition's batch comes at a time."""
        source = ColumnarSource(kafka_properties, fetch_bytes=1)
        assert Counter(checked(source, everything.ranges)) == Counter(everything.records)

    @pytest.mark.parametrize("version", [11, 12])
    def test_brokers_that_know_topics_by_name_only(self, kafka_properties, everything, monkeypatch, version):
        monkeypatch.setitem(wire._HIGHEST, wire.FetchRequest, version)
        monkeypatch.setitem(wire._HIGHEST, wire.MetadataRequest, 9)
        found = checked(ColumnarSource(kafka_properties), everything.ranges)
        assert Counter(found) == Counter(everything.records)

    def test_it_is_as_spark_reads_it(self, kafka_properties, everything, session):
        """The columns that Spark's source has today; keys of headers that are no UTF-8 are text as Java decodes it."""
        topic = everything.ranges[0].topic
        strange = [
            b"\xff",
            b"\xed\xa0\x80",
            b"\xe2\x82x",
            b"\xed\xa0",
            b"\xf0\x9f\x98",
            b"\xf4\x90\x80\x80",
            b"\xe0\x80",
        ]
        records = [Record(at, b"", headers=((key, None), (b"h", b"v"))) for at, key in enumerate(strange)]
        append(kafka_properties, topic, Batch(0, records).bytes(), partition=1)
        append(kafka_properties, topic, Batch(0, records, SNAPPY, framed=True).bytes(), partition=1)
        ranges = stable_ranges(kafka_properties, topic)
        names = ["_partition", "_offset", "_key", "_value", "_headers"]

        def multiset(found: list[dict]) -> Counter:
            for row in found:
                row["_headers"] = row["_headers"] and tuple((h["key"], h["value"]) for h in row["_headers"])
            return Counter(tuple(row[name] for name in names) for row in found)

        columnar_ = [row for b in ColumnarSource(kafka_properties).read(ranges) for row in b.select(names).to_pylist()]
        assert multiset(columnar_) == multiset(spark_read(session, ranges, kafka_properties).toArrow().to_pylist())
        texts = [row["_headers"] for row in columnar_ if row["_headers"]]
        assert sum("\ufffd" in str(text) for text in texts) == 2 * len(strange)


@pytest.fixture
def source(kafka_properties):
    return ColumnarSource(kafka_properties)


def fill(properties: dict[str, str], topic: str, count: int, partition: int = 0) -> None:
    """So many records, in one batch each."""
    sender = producer(properties, **{"batch.num.messages": 1, "linger.ms": 0, "acks": 1})
    for at in range(count):
        sender.produce(topic, b"%d" % at, partition=partition)
    sender.flush()


def test_batches_of_one_record_and_their_leader_epoch(kafka_properties, source):
    topic = make_topic(kafka_properties, 3)
    for partition in range(3):
        fill(kafka_properties, topic, 2_000, partition)
    reading = source.read([OffsetRange(topic, p, 0, 2_000) for p in range(3)])
    assert Counter(row[:2] for row in rows(reading)) == Counter((p, o) for p in range(3) for o in range(2_000))
    assert reading.leader_epochs == {(topic, p): 0 for p in range(3)}


def test_many_partitions_are_read_together(kafka_properties, source):
    topic = make_topic(kafka_properties, 60)
    sender = producer(kafka_properties)
    for at in range(6_000):
        sender.produce(topic, b"%d" % at, partition=at % 60)
    sender.flush()
    ranges = [OffsetRange(topic, p, 10, 100) for p in range(60)]
    began = time.monotonic()
    assert Counter(row[:2] for row in checked(source, ranges)) == Counter(
        (p, o) for p in range(60) for o in range(10, 100)
    )
    assert time.monotonic() - began < 5


def test_a_source_may_be_left_in_the_middle(kafka_properties, source, everything_once):
    with source.read(everything_once) as reading:
        next(reading)
        assert 0 < reading.records
    assert list(reading) == []
    reading.close()


@pytest.fixture(scope="module")
def everything_once(kafka):
    topic = make_topic(kafka.kafka, 2)
    write_everything(kafka.kafka, topic, 2, seed=9, rounds=3)
    return stable_ranges(kafka.kafka, topic)


def test_a_quota_slows_it_down_and_no_more(kafka_properties, monkeypatch):
    """While a client is throttled the broker answers with nothing, and listens to nothing."""
    monkeypatch.setattr(columnar, "TAKEOVER_SECONDS", 1)
    monkeypatch.setattr(columnar, "ANSWER_SECONDS", 0.6)
    topic = make_topic(kafka_properties, 2)
    for partition in range(2):
        sender = producer(kafka_properties)
        for _ in range(300):
            sender.produce(topic, bytes(10_000), partition=partition)
        sender.flush()
    limit(kafka_properties, "slow", 400_000)
    throttled: list[float] = []
    fetched = wire.Connection.fetched

    def spy(connection: wire.Connection) -> wire.Answer:
        answer = fetched(connection)
        throttled.append(answer.throttled)
        return answer

    monkeypatch.setattr(wire.Connection, "fetched", spy)
    source = ColumnarSource({**kafka_properties, "client.id": "slow"}, fetch_bytes=2**19)

    def read_slowly() -> bool:
        # The broker learns of its quota a little later, and what comes first is free.
        assert len(checked(source, [OffsetRange(topic, p, 0, 300) for p in range(2)])) == 600
        return max(throttled) > 1

    until("the broker throttles for more than a second", read_slowly)


# Ends that are not there yet, or not any more


def test_a_range_past_the_last_stable_offset_waits_and_then_fails(kafka_properties, source, monkeypatch):
    topic = make_topic(kafka_properties)
    fill(kafka_properties, topic, 3)
    undecided = producer(kafka_properties, **{"transactional.id": uuid4().hex})
    undecided.init_transactions(30)
    undecided.begin_transaction()
    undecided.produce(topic, b"3", partition=0)
    undecided.flush()
    fill(kafka_properties, topic, 1)
    ranges = [OffsetRange(topic, 0, 0, 5)]
    monkeypatch.setattr(columnar, "TAKEOVER_SECONDS", 1)
    reading = source.read(ranges)
    with pytest.raises(IncompleteRead, match=rf"{topic}-0\[0,5\) could be read up to offset 3 only.* is 3\)"):
        list(reading)
    assert reading.records == 3 and reading.reached == {(topic, 0): 3}
    monkeypatch.setattr(columnar, "TAKEOVER_SECONDS", 20)
    reading = source.read(ranges)
    assert next(reading).num_rows == 3
    undecided.commit_transaction(30)
    assert Counter(row[1] for row in rows(reading)) == Counter([3, 4])
    assert reading.reached == {(topic, 0): 5}


def test_a_range_past_the_end_of_the_log_fails(kafka_properties, source, monkeypatch):
    monkeypatch.setattr(columnar, "TAKEOVER_SECONDS", 1)
    topic = make_topic(kafka_properties)
    fill(kafka_properties, topic, 3)
    with pytest.raises(IncompleteRead, match="up to offset 3 only"):
        list(source.read([OffsetRange(topic, 0, 0, 4)]))
    with pytest.raises(IncompleteRead, match="up to offset 8 only: .* ends before it"):
        list(source.read([OffsetRange(topic, 0, 8, 9)]))


def test_a_caller_who_takes_his_time_makes_no_broker_late(kafka_properties, monkeypatch):
    monkeypatch.setattr(columnar, "TAKEOVER_SECONDS", 3)
    spent = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + spent[0], sleep=time.sleep)
    monkeypatch.setattr(columnar, "time", clock)
    topic = make_topic(kafka_properties, 2)
    fill(kafka_properties, topic, 5, partition=0)
    # Partition 1 stands still while partition 0 is read, batch by batch.
    ranges = [OffsetRange(topic, 0, 0, 5), OffsetRange(topic, 1, 0, 1)]
    reading = ColumnarSource(kafka_properties, fetch_bytes=1).read(ranges)
    for _ in range(5):
        next(reading)
        spent[0] += 3_600
    assert any(cursor.stalled is not None for cursor in reading._cursors)
    fill(kafka_properties, topic, 1, partition=1)
    assert [row[:2] for row in rows(reading)] == [(1, 0)]


def test_records_that_are_deleted_while_it_reads_are_lost(kafka_properties):
    topic = make_topic(kafka_properties)
    fill(kafka_properties, topic, 50)
    reading = ColumnarSource(kafka_properties, fetch_bytes=1).read([OffsetRange(topic, 0, 0, 50)])
    next(reading)
    with Kafka(kafka_properties) as client:
        client.admin.delete_records({TopicPartition(topic, 0): 40})
    with pytest.raises(RecordsLost, match=rf"{topic}-0\[0,50\): Kafka no longer has offsets \d+ to 39"):
        list(reading)


def test_a_topic_that_is_deleted_while_it_is_read(kafka_properties, monkeypatch):
    monkeypatch.setattr(columnar, "TAKEOVER_SECONDS", 3)
    topic = make_topic(kafka_properties)
    fill(kafka_properties, topic, 50)
    reading = ColumnarSource(kafka_properties, fetch_bytes=1).read([OffsetRange(topic, 0, 0, 50)])
    next(reading)
    with Kafka(kafka_properties) as client:
        client.admin.delete_topics([topic])
    with pytest.raises(UnknownTopic, match=topic):
        list(reading)


# Broken logs


def segment(kafka, topic: str) -> Path:
    (found,) = kafka.home.glob(f"kafka/log/{topic}-0/00000000000000000000.log")
    return found


def damage(file: Path, at: int, to: bytes) -> None:
    with file.open("r+b") as log:
        log.seek(at)
        log.write(to)


def test_a_log_that_was_damaged_on_disk_is_named(kafka, kafka_properties, source):
    topic = make_topic(kafka_properties)
    batches = [Batch(0, [Record(at, b"%d" % at * 50) for at in range(10)], ZSTD).bytes() for _ in range(3)]
    for batch in batches:
        append(kafka_properties, topic, batch)
    log = segment(kafka, topic)
    good = log.read_bytes()
    second = len(batches[0])
    damage(log, second + 70, bytes([good[second + 70] ^ 1]))
    reading = source.read([OffsetRange(topic, 0, 0, 30)])
    with pytest.raises(BrokenBatch, match=f"{topic}-0: the record batch at offset 10 is broken: its checksum"):
        list(reading)
    assert reading.records == 0 and reading.reached == {(topic, 0): 0}
    # What does not touch it can be read.
    assert len(checked(source, [OffsetRange(topic, 0, 3, 10)])) == 7
    assert len(checked(source, [OffsetRange(topic, 0, 20, 30)])) == 10


def test_damage_anywhere_in_a_log_gives_an_error_or_the_truth(kafka, kafka_properties, monkeypatch):
    """What a broker does of its own with a log that is broken counts too."""
    monkeypatch.setattr(columnar, "TAKEOVER_SECONDS", 1)
    topic = make_topic(kafka_properties)
    batch = Batch(0, [Record(at, b"%d" % at * 5) for at in range(10)], NONE).bytes()
    for _ in range(3):
        append(kafka_properties, topic, batch)
    log = segment(kafka, topic)
    good = log.read_bytes()
    source = ColumnarSource(kafka_properties)
    ranges = [OffsetRange(topic, 0, 0, 30)]
    expected = witnessed(kafka_properties, ranges)
    assert Counter(checked(source, ranges)) == Counter(expected)
    chance = random.Random(1)
    told = 0
    for _ in range(60):
        # Not where the broker itself looks: the offset, the length and the format, by which it finds batches.
        at = chance.randrange(2) * len(batch) + chance.choice([*range(12, 16), *range(17, len(batch))])
        damage(log, at, bytes([good[at] ^ (1 << chance.randrange(8))]))
        try:
            assert Counter(checked(source, ranges)) == Counter(expected)
            assert 12 <= at % len(batch) < 16
        except BrokenBatch as error:
            assert topic in str(error)
            told += 1
        damage(log, at, good[at : at + 1])
    assert told > 40
    assert Counter(checked(source, ranges)) == Counter(expected)


# Nobody there


def test_a_broker_that_is_not_there(monkeypatch):
    monkeypatch.setattr(columnar, "BOOTSTRAP_SECONDS", 1)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(BrokerUnreachable, match=f"no answer from Kafka at {nobody} .*refused.* bootstrap.servers"):
            list(ColumnarSource({"bootstrap.servers": nobody}).read([OffsetRange("t", 0, 0, 1)]))


def test_one_of_the_bootstrap_servers_is_enough(kafka_properties):
    topic = make_topic(kafka_properties)
    fill(kafka_properties, topic, 2)
    servers = f"127.0.0.1:1,PLAINTEXT://{kafka_properties['bootstrap.servers']}"
    for _ in range(4):
        assert len(checked(ColumnarSource({"bootstrap.servers": servers}), [OffsetRange(topic, 0, 0, 2)])) == 2


def test_what_is_no_kafka_is_unreachable(monkeypatch):
    monkeypatch.setattr(columnar, "BOOTSTRAP_SECONDS", 1)
    monkeypatch.setattr("ratchet.source.wire.ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        servers = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(BrokerUnreachable, match="timed out"):
            list(ColumnarSource({"bootstrap.servers": servers}).read([OffsetRange("t", 0, 0, 1)]))


def test_properties_that_cannot_be_honoured_are_refused():
    with pytest.raises(SettingsError, match="ssl.engine"):
        ColumnarSource({"bootstrap.servers": "x:1", "ssl.engine.factory.class": "y"})


def test_records_of_several_ranges_of_a_partition(kafka_properties, source, everything_once):
    (whole, _) = everything_once
    expected = witnessed(kafka_properties, everything_once)
    cuts = sorted({0, 1, 2, 50, 51, 700, 701, whole.until_offset})
    ranges = [OffsetRange(whole.topic, 0, a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    assert Counter(checked(source, ranges[::2])) == within(expected, ranges[::2])
    assert Counter(checked(source, ranges)) == within(expected, ranges)
