"""What a broker grants to the user of a connection: a right that is not granted is named, and is no outage."""

from __future__ import annotations

from contextlib import contextmanager
from uuid import uuid4

import pytest
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from ratchet.dev.stack import Stack
from ratchet.errors import OUTAGES, CompactedTopic, NotGranted
from ratchet.ledger.work import OffsetRange
from ratchet.source.columnar import ColumnarSource
from ratchet.source.kafka import Kafka

ENOUGH = ("READ", "DESCRIBE_CONFIGS")


@pytest.fixture
def topic(guarded) -> str:
    return made(guarded)


def made(guarded: Stack, **configs: str) -> str:
    topic = f"guarded-{uuid4().hex[:12]}"
    wanted = {"num_partitions": 1, "replication_factor": 1, "configs": configs}
    with Kafka(guarded.kafka) as client:
        client.admin.create_topics({topic: wanted}, wait_for_metadata=True)
    return topic


@contextmanager
def granted(guarded: Stack, *rights: str, **to: str):
    """Let bob do so on a topic, or a group, of this name."""
    ((kind, name),) = to.items()
    pattern = ResourcePattern(ResourceType[kind.upper()], name)
    acls = [ACL("User:bob", "*", ACLOperation[right], ACLPermissionType.ALLOW, pattern) for right in rights]
    with Kafka(guarded.kafka) as client:
        assert len(client.admin.create_acls(acls)["succeeded"]) == len(acls)
        try:
            yield
        finally:
            client.admin.delete_acls(
                [ACLFilter("User:bob", "*", acl.operation, ACLPermissionType.ALLOW, pattern) for acl in acls]
            )


def refusal(ask) -> str:
    with pytest.raises(NotGranted) as raised:
        ask()
    assert not issubclass(raised.type, OUTAGES)
    return str(raised.value)


@pytest.mark.parametrize(
    ("rights", "named"),
    [((), "DESCRIBE"), (("DESCRIBE",), "READ"), (("READ",), "DESCRIBE_CONFIGS"), (("DESCRIBE_CONFIGS",), "DESCRIBE")],
)
def test_a_look_at_a_topic_names_the_right_that_is_not_granted(guarded, bobs, topic, rights, named):
    with granted(guarded, *rights, topic=topic), Kafka(bobs) as client:
        said = refusal(lambda: client.offsets(topic))
    assert f"does not grant user bob {named} on topic {topic!r}" in said


def test_with_these_rights_a_topic_can_be_read(guarded, bobs, topic):
    with granted(guarded, *ENOUGH, topic=topic), Kafka(bobs) as client:
        assert client.offsets(topic).stable == {0: 0}
        assert client.committed_records_between(OffsetRange(topic, 0, 0, 0)) == 0


def test_a_topic_whose_policy_cannot_be_read_is_not_taken_as_uncompacted(guarded, bobs):
    topic = made(guarded, **{"cleanup.policy": "compact"})
    with granted(guarded, "READ", topic=topic), Kafka(bobs) as client:
        assert "DESCRIBE_CONFIGS" in refusal(lambda: client.offsets(topic))
    with granted(guarded, *ENOUGH, topic=topic), Kafka(bobs) as client, pytest.raises(CompactedTopic):
        client.offsets(topic)


def test_a_group_and_its_topic_are_named(guarded, bobs, topic):
    with Kafka(bobs) as client, granted(guarded, *ENOUGH, topic=topic):
        named = f"on consumer group 'watched' and on topic {topic!r}"
        assert f"READ {named}" in refusal(lambda: client.mirror("watched", {(topic, 0): 0}))
        assert f"DESCRIBE {named}" in refusal(lambda: client.mirrored("watched", [topic]))
        with granted(guarded, "READ", group="watched"):
            client.mirror("watched", {(topic, 0): 0})
            assert client.mirrored("watched", [topic]) == {(topic, 0): 0}


@pytest.mark.parametrize("rights", [(), ("DESCRIBE",)])
def test_the_columnar_source_names_the_right(guarded, bobs, topic, rights):
    with granted(guarded, *rights, topic=topic):
        said = refusal(lambda: list(ColumnarSource(bobs).read([OffsetRange(topic, 0, 0, 1)])))
    assert f"topic {topic!r}" in said and "READ" in said
