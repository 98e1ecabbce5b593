"""Topics that Kafka compacts: the table has the last value of each key, or a run says that it cannot be known."""

from __future__ import annotations

import random
from functools import partial

import pytest
from kafka import TopicPartition

from ratchet.errors import CompactedTopic, NotRevisable, RecordsLost, SettingsError, TombstonesLost
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss
from ratchet.operate.outcome import lines_of
from ratchet.operate.verify import recompute, verify
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skipped
from ratchet.protocol.votes import cast_vote, take_try
from ratchet.spark.slice import recompute as again

from .compaction import DAY, Compacted, clean_often, keep_tombstones


@pytest.fixture(autouse=True)
def _cleaner(kafka_properties):
    clean_often(kafka_properties)


def asked(topic: Compacted, run: str, clear: int = 0):
    offsets = partial(topic.rig.client.offsets, topic.spec.source)
    return begin(topic.rig.ledger, topic.spec, Run("dag", run, clear), offsets, lambda *_: True)


def faults(topic: Compacted) -> list[str]:
    return [fault for check in verify(topic.rig.ledger, topic.spec) for fault in check.faults]


def test_what_compaction_has_removed_is_no_loss_and_the_table_has_the_last_values(rig):
    topic = Compacted(rig)
    for n in range(4):
        topic.put("a", f"a{n}")
        topic.put("b", f"b{n}")
    topic.put("b", None)
    topic.put("c", "c")
    topic.clean()
    assert [offset for offset, *_ in topic.left()] == [6, 8, 9]
    topic.take("first")
    assert topic.rows() == topic.last == {"a": "a3", "c": "c"}
    # All of this plan is removed before it is read, and what follows it is in a later one.
    topic.put("a", "x")
    topic.put("c", "x")
    works = rig.begin(topic.spec, "second")
    for value in "yz":
        topic.put("a", value)
        topic.put("c", value)
    topic.clean()
    assert min(offset for offset, key, _ in topic.left() if key == "a") > 11
    topic.finish("second", works)
    assert topic.rows() == {"a": "a3", "c": "c"}
    topic.take("third")
    assert topic.rows() == topic.last == {"a": "z", "c": "z"}
    assert faults(topic) == []


@pytest.mark.all
@pytest.mark.invariant("I1")
def test_whatever_is_put_and_deleted_while_kafka_compacts_the_table_has_the_last_values(rig):
    chance = random.Random(7)
    topic, waiting = Compacted(rig, partitions=2), []

    def finish() -> None:
        rig.claim, run, works = waiting.pop(0)
        topic.finish(run, works)

    for step in range(12):
        for _ in range(chance.randrange(1, 9)):
            value = None if chance.random() < 0.35 else f"v{step}"
            topic.put(chance.choice("abcdefg"), value)
        if chance.random() < 0.6:
            works = rig.begin(topic.spec, f"run{step}")
            waiting.append((rig.claim, f"run{step}", works))
        if chance.random() < 0.5:
            topic.clean()
        if len(waiting) > 1 or (waiting and chance.random() < 0.4):
            finish()
    while waiting:
        finish()
    topic.clean()
    if not isinstance(asked(topic, "last"), Skipped):
        topic.take("last")
    assert topic.rows() == topic.last
    assert faults(topic) == []


def test_a_deletion_that_may_be_gone_before_it_is_read_stops_the_line_until_a_person_accepts_that(rig):
    topic = Compacted(rig)
    topic.put("a", "a")
    topic.put("b", "b")
    topic.take("first")
    keep_tombstones(rig.kafka, topic.name, 0)
    topic.put("a", None)
    for n in range(3):
        topic.put("c", f"c{n}")
    # It is gone before anybody has read it.
    topic.clean()
    topic.put("d", "d")
    topic.put("c", "c")
    topic.clean()
    assert "a" not in {key for _, key, _ in topic.left()}
    with pytest.raises(TombstonesLost, match="deletions may be gone, and rows of their keys would stay for ever"):
        asked(topic, "second")
    # That they are kept for longer again brings none back.
    keep_tombstones(rig.kafka, topic.name, DAY)
    with pytest.raises(TombstonesLost, match="keeps a tombstone for 0:00:00 only"):
        asked(topic, "second")
    offsets = partial(rig.client.offsets, topic.spec.source)
    said = lines_of(accept_loss(rig.ledger, topic.spec, offsets, "a stays", "somebody"))
    assert "missing is accepted, and the time counts anew" in said[0]
    topic.take("second")
    assert topic.rows() == {**topic.last, "a": "a"}
    # A slice that is read too late has no vote, and keeps that in mind.
    topic.put("b", None)
    (work,) = rig.begin(topic.spec, "third")
    keep_tombstones(rig.kafka, topic.name, 0)
    vote = rig.run(topic.spec, work)
    keep_tombstones(rig.kafka, topic.name, DAY)
    with pytest.raises(TombstonesLost, match="nothing was voted"):
        cast_vote(rig.ledger, topic.spec, work.token, vote)
    with pytest.raises(TombstonesLost, match="had to be read before"):
        take_try(rig.ledger, topic.spec, rig.claim, 0)
    accept_loss(rig.ledger, topic.spec, offsets, "b may stay", "somebody")
    topic.finish("third", [rig.retry(topic.spec)])
    assert topic.rows() == {**topic.last, "a": "a"}
    assert faults(topic) == []


def test_a_replay_has_the_same_records_or_is_given_up(rig):
    topic = Compacted(rig)
    for key in "abc":
        topic.put(key, key)
    topic.take("first")
    rows = topic.rows()
    assert rows == topic.last == {key: key for key in "abc"}

    def revised(clear: int) -> None:
        begun = asked(topic, "first", clear)
        assert isinstance(begun, Begun) and begun.how == "revised"
        rig.claim = begun.claim
        topic.finish("first", [rig.retry(topic.spec, part.number) for part in begun.slices])

    revised(1)
    assert topic.rows() == rows
    for key in "bcd":
        topic.put(key, "x")
    topic.clean()
    assert [offset for offset, *_ in topic.left()] == [0, 3, 4, 5]
    with pytest.raises(NotRevisable, match="compaction has removed some of its records: 1 were read, and 3 when"):
        revised(2)
    assert topic.rows() == rows and faults(topic) == []
    said: list[str] = []
    spark, spec = rig.spark, topic.spec
    check = recompute(rig.ledger, spec, lambda works: again(spark, spec, works, rig.servers), say=said.append)
    assert check.faults == () and any("compaction has removed some of its records" in line for line in said)
    topic.take("second")
    assert topic.rows() == topic.last


def test_what_retention_or_a_person_deletes_of_a_compacted_topic_is_a_loss(rig):
    topic = Compacted(rig, policy="compact,delete")
    topic.put("a", "a")
    topic.take("first")
    for key in "bcd":
        topic.put(key, key)
    rig.client.admin.delete_records({TopicPartition(topic.name, 0): 3})
    with pytest.raises(RecordsLost, match=r"retention has deleted .*\[1,3\)") as lost:
        asked(topic, "second")
    assert not isinstance(lost.value, TombstonesLost)


def test_the_spec_and_the_broker_must_say_the_same_of_compaction(rig):
    topic, kept = Compacted(rig), Compacted(rig, policy="delete")
    plain = topic.spec.source.model_copy(update={"compacted": False})
    with pytest.raises(CompactedTopic, match="or say compacted=True in Topic to read the last value of each key"):
        rig.client.offsets(plain)
    with pytest.raises(CompactedTopic, match="has cleanup.policy=delete, and the spec says compacted=True"):
        rig.client.offsets(kept.spec.source)
    both = Compacted(rig, policy="compact,delete")
    assert rig.client.offsets(both.spec.source).kept_tombstones is not None
    topic.put("a", "a")
    (work,) = rig.begin(topic.spec)
    rig.kafka = {**rig.kafka, "client.dns.lookup": "resolve_canonical_bootstrap_servers_only"}
    with pytest.raises(SettingsError, match="is compacted, and Spark's Kafka source"):
        rig.run(topic.spec, work)
