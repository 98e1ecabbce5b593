"""Where a data interval ends in the logs of a real broker: by the records' times, absurd ones and markers left out."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest
from kafka import KafkaProducer, TopicPartition

from ratchet.errors import UnknownTopic
from ratchet.source.interval import IntervalEnd
from ratchet.source.kafka import Kafka
from ratchet.source.offsets import TopicOffsets
from tests.kafka.test_kafka import Transaction, send, wait_until_stable

T0 = datetime(2024, 5, 1, tzinfo=UTC)
ABSURD = (datetime(2099, 1, 1, tzinfo=UTC) - T0).total_seconds()
IN_MICROS = 54_000 * 365.25 * 86_400
"""A producer that counts microseconds where Kafka counts milliseconds is in the year 56,000."""
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
"""Brokers from 4.0 on refuse what is stamped more than an hour from now, by default."""


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def send_at(properties: dict[str, str], topic: str, *seconds: float, partition: int = 0, batch: bool = False) -> None:
    """A record for each of these seconds after T0, with that as its timestamp, in this order, a batch each or one."""
    producer = KafkaProducer(bootstrap_servers=properties["bootstrap.servers"], acks="all", linger_ms=50 * batch)
    for moment in seconds:
        millis = int(T0.timestamp() * 1000) + int(moment * 1000)
        sent = producer.send(topic, b"x", partition=partition, timestamp_ms=millis)
        if not batch:
            # So that Kafka's index of times has what there is to know.
            sent.get(10)
    producer.flush()
    producer.close()


def ends(
    client: Kafka, topic: str, moment: datetime, starts: Sequence[int] = (), most: int = 10**6, reader: str = "columnar"
) -> TopicOffsets:
    latest = datetime.now(UTC) + timedelta(days=1)
    return client.offsets(topic, IntervalEnd(moment, latest, dict(enumerate(starts)), most, reader))


def wanted(client: Kafka, topic: str, moment: datetime, **more) -> dict[int, int]:
    return ends(client, topic, moment, **more).wanted


@pytest.fixture(params=["columnar", "spark"])
def reader(request) -> str:
    return request.param


def test_the_offsets_at_a_time(kafka_properties, client, make_topic):
    topic = make_topic(3)
    send_at(kafka_properties, topic, 0, 1, 2, 3)
    send_at(kafka_properties, topic, 2.5, partition=1)

    def found(moment: datetime) -> list[int]:
        offsets = wanted(client, topic, moment)
        assert sorted(offsets) == [0, 1, 2]
        return [offsets[p] for p in range(3)]

    assert found(at(-1)) == [0, 0, 0]
    assert found(at(0)) == [0, 0, 0]
    assert found(at(1)) == [1, 0, 0]
    assert found(at(1).astimezone(timezone(timedelta(hours=5)))) == [1, 0, 0]
    # Kafka counts milliseconds: a record of 1.000 s is before 1.0001 s.
    assert found(at(1) + timedelta(microseconds=100)) == [2, 0, 0]
    assert found(at(2.6)) == [3, 1, 0]
    assert found(at(3.001)) == [4, 1, 0]
    assert found(datetime(1950, 1, 1, tzinfo=UTC)) == [0, 0, 0]
    assert found(datetime.now(UTC) + timedelta(days=2)) == [4, 1, 0]
    with pytest.raises(UnknownTopic, match="absent"):
        wanted(client, "absent", T0)


def test_where_times_go_back_nothing_below_the_offset_is_as_late(kafka_properties, client, make_topic):
    topic = make_topic()
    moments = [5, 1, 7, 3, 9, 2]
    send_at(kafka_properties, topic, *moments)
    for moment in range(11):
        offset = wanted(client, topic, at(moment))[0]
        assert all(m < moment for m in moments[:offset])
        assert offset == len(moments) or moments[offset] >= moment


def test_an_interval_ends_where_retention_has_left_off(kafka_properties, client, make_topic):
    topic = make_topic()
    send_at(kafka_properties, topic, 0, 1, 2, 3)
    client.admin.delete_records({TopicPartition(topic, 0): 2})
    assert wanted(client, topic, at(0)) == {0: 2}
    client.admin.delete_records({TopicPartition(topic, 0): 4})
    assert wanted(client, topic, at(0)) == {0: 4}


def test_an_interval_ends_before_an_undecided_transaction(kafka_properties, client, make_topic):
    topic = make_topic()
    send_at(kafka_properties, topic, 0, 1)
    # Now, years after T0: at offsets 2 and 3, then the plain record at 4, which nobody may read yet.
    open_ = Transaction(kafka_properties, topic, [b"x", b"y"])
    send(kafka_properties, topic, [b"behind"])
    assert wanted(client, topic, at(1)) == {0: 1}
    assert wanted(client, topic, at(2)) == {0: 2}
    late = (datetime.now(UTC) + timedelta(minutes=30)).replace(microsecond=0)
    send_at(kafka_properties, topic, (late - T0).total_seconds())  # 5
    assert wanted(client, topic, late) == {0: 2}
    open_.end(commit=True)  # marker 6
    wait_until_stable(client, topic, 7)
    assert wanted(client, topic, late) == {0: 5}
    assert wanted(client, topic, late + timedelta(seconds=1)) == {0: 7}


@pytest.mark.invariant("I2")
def test_a_record_of_2099_does_not_stop_its_partition(kafka_properties, client, make_topic, reader):
    topic = make_topic(2, **ANY_TIME)
    send_at(kafka_properties, topic, 0, ABSURD, 1, 2, IN_MICROS, ABSURD, 10, 11, ABSURD, 20)
    send_at(kafka_properties, topic, 0, ABSURD, 1, 10, ABSURD, partition=1, batch=True)
    found = ends(client, topic, at(5), reader=reader)
    assert found.wanted == {0: 6, 1: 3}
    assert {p: (a.offset, a.records) for p, a in found.ahead.items()} == {0: (1, 3), 1: (1, 1)}
    assert "3 records of" in found.stamped_ahead() and "from offset 1 on" in found.stamped_ahead()
    assert f"the record at offset 1 of {topic}-1 is stamped 2099-01-01 00:00:00 UTC" in found.stamped_ahead()
    assert "more than max_future from now" in found.stamped_ahead()
    # The next intervals, from where this one has planned; what is told is what they take.
    found = ends(client, topic, at(15), [6, 3], reader=reader)
    assert found.wanted == {0: 9, 1: 5}
    assert {p: (a.offset, a.records) for p, a in found.ahead.items()} == {0: (8, 1), 1: (4, 1)}
    found = ends(client, topic, at(25), [9, 5], reader=reader)
    assert found.wanted == {0: 10, 1: 5} and not found.ahead and found.stamped_ahead() is None
    # Whose clock says that 2099 is near, to that it is no mistake.
    near = IntervalEnd(at(5), at(ABSURD + 1), {}, 100, reader)
    assert client.offsets(topic, near).wanted == {0: 1, 1: 1}


def test_thousands_of_absurd_times_in_a_row_are_passed_over_and_no_more_than_a_plan_takes(
    kafka_properties,
    client,
    make_topic,
    reader,
):
    topic = make_topic(**ANY_TIME)
    send_at(kafka_properties, topic, 0, *[ABSURD] * 3_000, *[1] * 1_500, 10, batch=True)
    found = ends(client, topic, at(5), reader=reader)
    assert found.wanted == {0: 4_501} and found.ahead[0].records == 3_000
    # Each run of a smaller cap takes its part of them.
    start = 0
    for _ in range(4):
        end = wanted(client, topic, at(5), starts=[start], most=1_500, reader=reader)[0]
        assert min(start + 1_500, 4_501) <= end <= 4_501
        start = min(start + 1_500, end)
    assert start == 4_501


def test_neither_markers_nor_aborted_records_end_an_interval(kafka_properties, client, make_topic, reader):
    """They have times too, such as today's in what a transaction writes of long ago."""
    topic = make_topic()
    send_at(kafka_properties, topic, 0)
    Transaction(kafka_properties, topic, [b"x", b"y"]).end(commit=False)  # 1, 2, marker 3, all of today
    wait_until_stable(client, topic, 4)
    send_at(kafka_properties, topic, 1, 10)
    assert wanted(client, topic, at(1), reader=reader) == {0: 4}
    assert wanted(client, topic, at(5), reader=reader) == {0: 5}
    assert wanted(client, topic, at(11), reader=reader) == {0: 6}


def test_times_that_the_broker_gives_are_those_that_count(kafka_properties, client, make_topic, reader):
    topic = make_topic(message_timestamp_type="LogAppendTime")
    before = datetime.now(UTC) - timedelta(minutes=1)
    send_at(kafka_properties, topic, 0, 1, 2)
    assert wanted(client, topic, before, reader=reader) == {0: 0}
    assert wanted(client, topic, datetime.now(UTC) + timedelta(minutes=1), reader=reader) == {0: 3}
