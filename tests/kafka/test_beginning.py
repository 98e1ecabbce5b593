"""Where lines begin on a real broker: by each rule of a spec, whatever transactions, markers and times there are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import NewPartitions

from ratchet import Append, Json, Pipeline, Topic
from ratchet.errors import SpecError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.operate.upcoming import upcoming
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skipped
from ratchet.source.kafka import Kafka
from tests.kafka.driven import Driven
from tests.ledger.staging import always_active, positions_of
from tests.until import until

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class Rig(Driven):
    """A line over a topic of its own, of which a test says when its records were made."""

    def __init__(self, ledger: Ledger, client: Kafka, properties: dict[str, str], topic: str):
        super().__init__(ledger, client, properties)
        self.topic = topic

    def spec(self, rule: object) -> Pipeline:
        source = Topic(self.topic, value=Json("a bigint"), begin=rule)
        return Pipeline(name="begins", source=source, sinks=[Append("rows", columns="a bigint")])

    def send(self, minutes: list[int], partition: int = 0, transaction: str | None = None, end: str = "commit") -> None:
        """A record for each, made so many minutes after noon; in a Kafka transaction that ends so, if it has an id."""
        producer = KafkaProducer(
            bootstrap_servers=self.properties["bootstrap.servers"], acks="all", transactional_id=transaction
        )
        if transaction:
            producer.init_transactions()
            producer.begin_transaction()
        for minute in minutes:
            at = int((NOON + timedelta(minutes=minute)).timestamp() * 1000)
            producer.send(self.topic, b'{"a": 1}', partition=partition, timestamp_ms=at)
        producer.flush()
        if transaction and end == "commit":
            producer.commit_transaction()
        if transaction and end == "abort":
            producer.abort_transaction()
        if end == "open":
            self.open = producer
        else:
            producer.close()

    def run(self, rule: object, run: str) -> Begun | Skipped:
        return begin(self.ledger, self.spec(rule), Run("begins", run), self.offsets, always_active)

    def offsets(self, *asked):
        return self.client.offsets(self.topic, *asked)

    def taken(self, rule: object, run: str) -> list[tuple[int, int]]:
        """(partition, offset) of what a run's transaction takes, which must have one."""
        begun = self.run(rule, run)
        assert isinstance(begun, Begun), begun
        return sorted(positions_of(begun))


@pytest.fixture
def rig(ledger_url, client, make_topic, kafka_properties) -> Iterator[Rig]:
    topic = make_topic(2)
    with Ledger(ledger_url) as ledger:
        made = Rig(ledger, client, kafka_properties, topic)
        migrate(ledger_url, [made.spec("earliest")])
        yield made


def test_earliest_is_where_retention_has_left_the_logs(rig: Rig):
    rig.send([0, 1, 2, 3])
    rig.client.admin.delete_records({TopicPartition(rig.topic, 0): 3})
    until("the records are gone", lambda: rig.offsets().beginning[0] == 3)
    assert rig.taken("earliest", "a") == [(0, 3)]


def test_latest_leaves_what_is_decided_and_takes_what_is_not_when_it_is(rig: Rig):
    rig.send([0, 1])
    rig.send([0], partition=1)
    rig.send([2, 3], transaction="open", end="open")
    found = rig.run("latest", "a")
    assert isinstance(found, Skipped)
    where = f"{rig.topic}-0 at 2, {rig.topic}-1 at 1; the 3 offsets that Kafka had before that are no part of it"
    assert f"the line begins by begin=latest: {where}" in found.message
    rig.send([4], partition=1)
    rig.open.commit_transaction()
    rig.open.close()
    until("the transaction is decided", lambda: rig.offsets().stable[0] == 5)
    assert rig.taken("latest", "b") == [(0, 2), (0, 3), (0, 4), (1, 1)]


def test_a_time_is_its_first_record_though_times_go_back_and_the_end_where_none_is_so_late(rig: Rig):
    rig.send([-5, 7, -3, 9])
    rig.send([-9, -1], partition=1)
    assert rig.offsets(None, None, NOON).since == {0: 1, 1: 2}
    assert rig.offsets(None, None, NOON + timedelta(minutes=7, microseconds=1)).since == {0: 3, 1: 2}
    assert rig.offsets(None, None, datetime(1969, 1, 1, tzinfo=UTC)).since == {0: 0, 1: 0}
    assert rig.taken(NOON, "a") == [(0, 1), (0, 2), (0, 3)]
    # Late records of an earlier time are of the line by then.
    rig.send([-8], partition=1)
    assert rig.taken(NOON, "b") == [(1, 2)]


def test_a_time_is_looked_for_in_undecided_transactions_too(rig: Rig):
    """Their records count once they are decided: those that are as late are not passed over, nor older ones taken."""
    rig.send([-2, -1])
    rig.send([-3, 5, 6], transaction="late", end="open")
    rig.send([-2], partition=1)
    found = rig.offsets(None, None, NOON)
    assert (found.stable, found.since) == ({0: 2, 1: 1}, {0: 3, 1: 1})
    assert isinstance(rig.run(NOON, "a"), Skipped)
    rig.open.commit_transaction()
    rig.open.close()
    until("the transaction is decided", lambda: rig.offsets().stable[0] == 6)
    assert rig.taken(NOON, "b") == [(0, 3), (0, 4), (0, 5)]


def test_a_time_whose_first_record_was_aborted_begins_there_all_the_same(rig: Rig):
    rig.send([-1])
    rig.send([3], transaction="aborted", end="abort")
    rig.send([-4, 8])
    assert rig.taken(NOON, "a") == [(0, 1), (0, 2), (0, 3), (0, 4)]


def test_offsets_are_those_that_the_spec_names_and_others_are_refused_with_what_there_is(rig: Rig):
    rig.send([0, 1, 2, 3])
    rig.client.admin.delete_records({TopicPartition(rig.topic, 0): 1})
    until("the records are gone", lambda: rig.offsets().beginning[0] == 1)
    for named, said in (
        ({0: 0, 1: 0}, "partition 0 is from offset 1 to 4, and 0 is not within"),
        ({0: 5, 1: 0}, "partition 0 is from offset 1 to 4, and 5 is not within"),
        ({0: 2, 1: 0, 2: 0}, "has no partition 2; it has 0, 1"),
        ({0: 2}, "has partition 1 as well"),
    ):
        with pytest.raises(SpecError, match=said):
            rig.run(named, "refused")
    found = upcoming(rig.ledger, rig.spec({0: 2, 1: 0}), rig.offsets)
    assert f"begin={{0: 2, 1: 0}}: {rig.topic}-0 at 2, {rig.topic}-1 at 0" in str(found.begins)
    assert rig.taken({0: 2, 1: 0}, "a") == [(0, 2), (0, 3)]
    # What is deleted later of what the line never had matters to nobody.
    rig.client.admin.delete_records({TopicPartition(rig.topic, 0): 4})
    until("the records are gone", lambda: rig.offsets().beginning[0] == 4)
    rig.send([4])
    assert rig.taken({0: 2, 1: 0}, "b") == [(0, 4)]


@pytest.mark.parametrize("rule", ["latest", NOON, {0: 2, 1: 0}], ids=["latest", "time", "offsets"])
def test_of_a_partition_that_is_added_later_every_record_is_taken(rig: Rig, rule):
    rig.send([-2, -1])
    assert isinstance(rig.run(rule, "a"), Skipped)
    rig.client.admin.create_partitions({rig.topic: NewPartitions(3)})
    until("the partition is there", lambda: 2 in rig.offsets().stable)
    rig.send([-9, -8], partition=2)
    assert rig.taken(rule, "b") == [(2, 0), (2, 1)]


def test_a_first_begin_that_is_killed_and_repeated_begins_where_it_had_said(rig: Rig, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    rig.send([-1, 1])
    with monkeypatch.context() as cut_off:
        cut_off.setattr("ratchet.protocol.allocate.anchor", killed)
        with pytest.raises(Killed):
            rig.run("latest", "a")
    rig.send([2], partition=1)
    rig.send([3])
    assert rig.taken("latest", "a") == [(0, 2), (1, 0)]
