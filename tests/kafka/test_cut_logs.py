"""A broker whose disk is restored: its log ends earlier, and grows again to where it was."""

from __future__ import annotations

import shutil

import pytest

from ratchet.dev.stack import Stack
from ratchet.source.kafka import Kafka
from ratchet.source.lineage import Lineage
from ratchet.source.offsets import KnownLogs, TopicOffsets
from tests.source.topics import make_topic, producer


def fill(stack: Stack, topic: str, records: int, partition: int = 0) -> None:
    sender = producer(stack.kafka)
    for number in range(records):
        sender.produce(topic, b"%d" % number, partition=partition)
    sender.flush()


def look(stack: Stack, topic: str, known: dict[int, Lineage]) -> TopicOffsets:
    with Kafka(stack.kafka) as client:
        return client.offsets(topic, known=KnownLogs(lineages=known))


@pytest.mark.invariant("I2")
def test_a_log_that_was_cut_and_has_grown_again_is_told_from_one_that_was_not(scratch):
    home = scratch / "restored"
    with Stack(home, {"kafka"}) as stack:
        topic = make_topic(stack.kafka, partitions=2)
        fill(stack, topic, 10)
        fill(stack, topic, 10, partition=1)
        (log,) = home.rglob(f"{topic}-0")
        shutil.copytree(log, scratch / "backup")
        fill(stack, topic, 10)
        before = look(stack, topic, {})
        assert (before.stable, before.kept) == ({0: 20, 1: 10}, {})
        assert before.lineages == {0: ((0, 0),), 1: ((0, 0),)}
    shutil.rmtree(log)
    shutil.copytree(scratch / "backup", log)
    with Stack(home, {"kafka"}) as stack:
        fill(stack, topic, 25)
        fill(stack, topic, 5, partition=1)
        after = look(stack, topic, dict(before.lineages))
        assert after.stable == {0: 35, 1: 15}
        # Up to there both are what they were, which for partition 1 is all of it.
        assert after.kept == {0: 10, 1: 10}
        (cut, grown), (whole, more) = after.lineages[0], after.lineages[1]
        assert cut == whole == (0, 0) and grown[1] == more[1] == 10
        assert look(stack, topic, dict(after.lineages)).kept == {}
        assert look(stack, topic, {}).lineages == after.lineages
