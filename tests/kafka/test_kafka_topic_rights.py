"""What a user must be granted to send to a topic: what is lacking is named, and is no outage."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ratchet.errors import DestinationRefused, DestinationUnreachable, SettingsError
from ratchet.ledger.connection import Ledger
from ratchet.source.kafka import Kafka
from ratchet.spec.subscription import MARKS

from .sent import Sent, sending, spec_of
from .test_rights import granted, made

SENDS = ("WRITE", "DESCRIBE_CONFIGS")
NOTES = ("READ", "WRITE", "DESCRIBE_CONFIGS")


@pytest.fixture
def sent(ledger_url, guarded, bobs):
    with Ledger(ledger_url) as ledger:
        yield sending(ledger, bobs, spec_of(made(guarded)))


def allow(guarded, *rights: str, kind: str, name: str):
    return granted(guarded, *rights, **{kind: name})


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("topic", "does not grant user bob DESCRIBE on topic 'guarded-"),
        ("write", "does not grant this connection's user WRITE on the topic and on ratchet_marks"),
        ("id", "does not grant this connection's user WRITE and DESCRIBE on transactional id 'ratchet-line-guarded-"),
        ("marks", "may not make it .*grant CREATE on it, or make it: kafka-topics.sh --create --topic ratchet_marks"),
        ("read", "does not grant user bob READ on topic 'ratchet_marks'"),
        (None, ""),
    ],
)
def test_a_right_that_is_lacking_is_named(sent, guarded, lacking, said):
    with Kafka(guarded.kafka) as client:
        if MARKS in client.admin.list_topics():
            client.admin.delete_topics([MARKS])
    rights = [
        ({"topic": (), "write": ("DESCRIBE", SENDS[1])}.get(lacking, SENDS), "topic", sent.topic),
        (("WRITE",) if lacking != "id" else (), "transactional_id", f"ratchet-line-{sent.topic}"),
        ({"marks": NOTES, "read": (*NOTES[1:], "CREATE")}.get(lacking, (*NOTES, "CREATE")), "topic", MARKS),
    ]
    with ExitStack() as until:
        for each, kind, name in rights:
            if each:
                until.enter_context(allow(guarded, *each, kind=kind, name=name))
        if lacking is None:
            sent.run("a")

        else:
            with pytest.raises(DestinationRefused, match=said):
                sent.run("a")
    with Kafka(guarded.kafka) as client:
        assert client.offsets(sent.topic).stable == {0: 0} if lacking else client.offsets(sent.topic).stable[0] >= 20


def test_a_login_that_is_refused_is_no_outage(sent, guarded, security):
    begun = sent.prepare("a")
    wrong = security.properties("bob")
    wrong["sasl.jaas.config"] = security.login({"username": "bob", "password": "wrong-word"})
    stranger = Sent(sent.ledger, {**guarded.kafka, **wrong}, sent.spec)
    with pytest.raises(SettingsError, match="no connection to Kafka at") as raised:
        stranger.commit(begun)
    assert not issubclass(raised.type, DestinationUnreachable) and "wrong-word" not in str(raised.value)
