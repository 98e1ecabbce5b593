"""What happens to a topic before, while and after a slice is read: nothing is lost in silence, and the error is right.

A fault happens for real, in the broker. Those before the read happen when the slice has looked at the topic and Spark
has not; those during the read are made by the transform itself, on a worker, at the first record that it is given.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import TopicAlreadyExistsError
from psycopg import sql
from pyspark.sql import functions as F

from ratchet import Pipeline
from ratchet.errors import CompactedTopic, RecordsLost, TopicChanged, UnknownTopic
from ratchet.ledger.work import OffsetRange, Run, SliceWork
from ratchet.operate.actions import accept_loss
from ratchet.operate.snapshot.status import status
from ratchet.operate.snapshot.words import lines_of
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.failures import errors_recorded
from ratchet.source.kafka import Kafka
from tests.spark.rig import SINK, Rig, content, every, numbered, positions, spec_of

FAULT: dict[str, object] = {}
"""What a transform below does to its topic: the arguments of `happen`."""


def fault_before(df):
    """On the driver, where the slice has looked at the topic and Spark has read nothing yet."""
    happen(**FAULT)
    return {SINK: df}


def fault_during(df):
    """On the worker, at the first record."""
    fault = dict(FAULT)

    def at_first(a: int) -> int:
        if a == 0:
            from tests.spark.test_topic_faults import happen

            happen(**fault)
        return a

    return {SINK: df.withColumn("a", F.udf(at_first, "int")("a"))}


def happen(what: str, kafka: dict[str, str], topic: str) -> None:
    with Kafka(kafka) as client:
        if what == "records deleted":
            client.admin.delete_records({TopicPartition(topic, 0): 4})
            return
        if what == "compacted":
            wanted = {"cleanup.policy": "compact"}
            client.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, wanted)])
            return
        client.admin.delete_topics([topic])
        if what == "made again":
            make_again(client, topic)
            # As many records as before, at the same offsets: only the topic's id tells.
            send(kafka, topic, numbered(range(100, 110)))


def make_again(client: Kafka, topic: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            client.admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
            return
        except TopicAlreadyExistsError:
            # The broker deletes in its own time; until then the name is taken.
            if time.monotonic() > deadline:
                raise


def send(kafka: dict[str, str], topic: str, values: list[bytes], partition: int = 0) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka["bootstrap.servers"], acks="all")
    for value in values:
        producer.send(topic, value, partition=partition)
    producer.flush()
    producer.close()


def started(rig: Rig, transform: Callable = every, what: str = "") -> tuple[str, Pipeline, SliceWork]:
    """A topic of ten records, a transaction that plans them, and a try at its only slice."""
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)))
    FAULT.clear()
    FAULT.update(what=what, kafka=rig.kafka, topic=topic)
    spec = spec_of(topic, transform, value="a int")
    (work,) = rig.begin(spec)
    return topic, spec, work


def rows(rig: Rig) -> list[dict]:
    with psycopg.connect(rig.ledger.url, row_factory=psycopg.rows.dict_row) as conn:
        return conn.execute(sql.SQL("select * from {}").format(sql.Identifier(SINK))).fetchall()


def finish(rig: Rig, spec: Pipeline, work: SliceWork) -> None:
    """Read, vote and commit."""
    rig.check(spec, work, rig.run(spec, work))
    assert isinstance(commit(rig.ledger, spec, rig.claim), Committed)


ERRORS = {
    "records deleted": (RecordsLost, r"retention has deleted .*\[0,4\), which were planned"),
    "made again": (TopicChanged, "deleted and made again"),
    "deleted": (UnknownTopic, "there is no topic"),
    "compacted": (CompactedTopic, "cleanup.policy=compact"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_a_fault_before_the_slice_is_its_error_and_nothing_is_staged(rig, what):
    _, spec, work = started(rig, what=what)
    happen(**FAULT)
    error, said = ERRORS[what]
    for _ in range(2):
        with pytest.raises(error, match=said):
            rig.run(spec, work)
        work = rig.retry(spec)
    assert not rig.written(work, SINK)


@pytest.mark.parametrize("what", ["records deleted", "made again"])
def test_a_fault_between_the_first_look_and_the_read_is_its_error(rig, what):
    _, spec, work = started(rig, fault_before, what)
    error, said = ERRORS[what]
    with pytest.raises(error, match=said):
        rig.run(spec, work)
    # The source asks by the topic's id, so nothing of another topic is read.
    assert rig.written(work, SINK) == []


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("what", ERRORS)
def test_a_fault_while_spark_reads_is_found_by_the_last_look(rig, what):
    _, spec, work = started(rig, fault_during, what)
    error, said = ERRORS[what]
    with pytest.raises(error, match=said):
        rig.run(spec, work)
    # The read itself went well, so nothing but the last look stands between it and a vote.
    assert positions(rig.written(work, SINK)) == Counter((0, o) for o in range(10))


@pytest.mark.invariant("I1")
def test_a_log_that_was_cut_below_the_plan_is_said_at_once(rig):
    topic, spec, work = started(rig)
    beyond = replace(work, ranges=(OffsetRange(topic, 0, 0, 12),))
    with pytest.raises(RecordsLost, match=r"was cut at offset 10, and \[10,12\) was planned"):
        rig.run(spec, beyond)
    assert not rig.written(work, SINK)


def test_what_retention_deletes_after_the_vote_is_no_loss(rig):
    topic, spec, work = started(rig)
    vote = rig.run(spec, work)
    rig.client.admin.delete_records({TopicPartition(topic, 0): 10})
    rig.check(spec, work, vote)
    rig.send(topic, *numbered(range(10, 13)))
    assert isinstance(commit(rig.ledger, spec, rig.claim), Committed)
    assert content(rows(rig)) == Counter((0, o, o) for o in range(10))
    (work,) = rig.begin(spec, "second")
    assert work.ranges == (OffsetRange(topic, 0, 10, 13),)
    finish(rig, spec, work)
    assert content(rows(rig)) == Counter((0, o, o) for o in range(13))


def test_what_retention_deletes_before_the_next_plan_stops_it_and_is_named(rig):
    topic, spec, work = started(rig)
    finish(rig, spec, work)
    rig.send(topic, *numbered(range(10, 15)))
    rig.client.admin.delete_records({TopicPartition(topic, 0): 12})
    with pytest.raises(RecordsLost, match=rf"{topic}-0\[10,12\), 2 offsets that no transaction has taken"):
        begin(rig.ledger, spec, Run("dag", "second"), partial(rig.client.offsets, topic), lambda *_: True)


@pytest.mark.invariant("I2")
def test_a_slice_keeps_to_its_plan_when_the_topic_grows_and_the_next_one_takes_the_new_partition(rig):
    topic, spec, work = started(rig)
    rig.client.admin.create_partitions({topic: 3})
    # Of the new partitions one has records and one has none.
    rig.send(topic, *numbered(range(100, 105)), partition=1)
    rig.send(topic, *numbered(range(10, 12)))
    finish(rig, spec, work)
    assert content(rows(rig)) == Counter((0, o, o) for o in range(10))
    (work,) = rig.begin(spec, "second")
    assert set(work.ranges) == {OffsetRange(topic, 0, 10, 12), OffsetRange(topic, 1, 0, 5)}
    finish(rig, spec, work)
    rig.send(topic, *numbered([200]), partition=2)
    (work,) = rig.begin(spec, "third")
    finish(rig, spec, work)
    old, new = [(0, o, o) for o in range(12)], [(1, o, 100 + o) for o in range(5)]
    assert content(rows(rig)) == Counter([*old, *new, (2, 0, 200)])


def test_a_partition_that_retention_cuts_before_anybody_plans_it_is_no_silent_loss(rig):
    topic, spec, work = started(rig)
    finish(rig, spec, work)
    rig.client.admin.create_partitions({topic: 2})
    # Seen here, and not planned: it is empty, and partition 0 has nothing new.
    skipped = begin(rig.ledger, spec, Run("dag", "idle"), partial(rig.client.offsets, topic), lambda *_: True)
    assert not isinstance(skipped, Begun)
    rig.send(topic, *numbered(range(5)), partition=1)
    rig.client.admin.delete_records({TopicPartition(topic, 1): 3})
    with pytest.raises(RecordsLost, match=rf"{topic}-1\[0,3\), 3 offsets"):
        begin(rig.ledger, spec, Run("dag", "second"), partial(rig.client.offsets, topic), lambda *_: True)


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("what", ["deleted", "made again"])
def test_a_replay_whose_records_are_gone_with_their_topic_is_given_up_at_once_and_the_line_goes_on(rig, what):
    eu, us = (rig.topic() for _ in range(2))
    for topic, values in ((eu, range(3)), (us, range(10, 14))):
        rig.send(topic, *numbered(values))
    spec = spec_of([eu, us], value="a int")
    (work,) = rig.begin(spec)
    finish(rig, spec, work)
    before = Counter((r["_topic"], r["_offset"], r["a"]) for r in rows(rig))
    happen(what, rig.kafka, us)
    rig.send(eu, *numbered([3]))
    spec = spec if what == "made again" else spec_of([eu], value="a int")
    accept_loss(rig.ledger, spec, partial(rig.client.offsets, spec.source), "it is over", "me")
    # A clear of the run.
    (again,) = rig.begin(spec, "run", 1)
    error, said = {"deleted": (UnknownTopic, f"no topic {us} in"), "made again": (TopicChanged, f"{us} has id")}[what]
    gone = pytest.raises(error, match=rf"{said} .*, and the planned records are gone$")
    with gone as failed, errors_recorded(rig.ledger, again.token):
        rig.run(spec, again)
    left = settle(rig.ledger, spec, Run("dag", "run", 1), succeeded=False, reason=str(failed.value))
    assert str(left).startswith("revision 1 of transaction 1 is given up: ") and "the old result stays" in str(left)
    # The next run of any kind takes what is new.
    (work,) = rig.begin(spec, "second")
    assert work.token.txid == 2
    finish(rig, spec, work)
    of_us = [(us, n, 100 + n) for n in range(10)] if what == "made again" else []
    assert Counter((r["_topic"], r["_offset"], r["a"]) for r in rows(rig)) == before + Counter([(eu, 3, 3), *of_us])
    assert lines_of(status(rig.ledger, "p"))[1].endswith(
        f"and the planned records are gone ({error.code}; ratchet explain {error.code}); the old result stays, and the "
        "line goes on; `ratchet retry p 1` tries it once more"
    )
