"""What is committed goes to a Kafka topic too, each row once and those of a key in order, whatever happens."""

from __future__ import annotations

import pytest

from ratchet.ledger.connection import Ledger
from ratchet.protocol.follow import follow

from .sent import Sent, sending, spec_of


@pytest.fixture
def ledger(ledger_url):
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def sent(ledger, kafka_properties, make_topic) -> Sent:
    return sending(ledger, kafka_properties, spec_of(make_topic(3)))


@pytest.mark.invariant("I1", "I3")
def test_a_topic_has_the_rows_of_its_sink_and_those_of_a_key_in_order(sent):
    for number, run in enumerate("abc", 1):
        sent.run(run)
        sent.is_whole()
        assert (sent.mark["step"], sent.mark["txid"], sent.mark["since"]) == (number, number, 0)
    record = next(record for record in sent.records() if record.place == (1, 1, 5, 0))
    assert (record.key, record.value) == (b"y", b'{"k":"y","a":105}')
    assert record.headers == {
        "ratchet-pipeline": "line",
        "ratchet-txid": "1",
        "ratchet-source": "1",
        "ratchet-position": "1:5:0",
    }
    # Nothing is left to do, and nobody is asked.
    sent.opened.clear()
    assert follow(sent.ledger, sent.spec, sent.opens) == [] and sent.opened == []
