"""Topics of sinks with keys: what compaction leaves of one is the sink's state, whatever happens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from ratchet import Json, KafkaTopic, Pipeline, Topic, Upsert
from ratchet.destinations.kafka_producer import TransactionalProducer
from ratchet.destinations.port import Destination, Owner, Reach
from ratchet.errors import DestinationRefused, DestinationUnreachable
from ratchet.ledger.connection import Ledger
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.spec.parts import DeclaredSink
from tests.ledger.destinations.following import at_once
from tests.ledger.destinations.keyed import KeyedWalk, keyed
from tests.ledger.destinations.walking import walked
from tests.ledger.staging import Log

from .sent import Record, Sent, read


@pytest.fixture
def ledger(ledger_url):
    with Ledger(ledger_url) as opened:
        yield opened


class Walk(KeyedWalk):
    """One to topics; what has left comes back with what it lacks."""

    anew = How.ON

    def __init__(self, seed: int, ledger: Ledger, properties: dict[str, str], make_topic: Any, monkeypatch: Any):
        self.properties, self.make_topic = properties, make_topic
        super().__init__(seed, ledger, Log(), monkeypatch)

    def declared(self) -> Pipeline:
        totals, latest, newest = ([KafkaTopic(self.make_topic(3))] for _ in range(3))
        return keyed(totals, latest, newest)

    def fail(self, monkeypatch: Any) -> None:
        commit = self.at_times(TransactionalProducer.commit, DestinationUnreachable)
        monkeypatch.setattr(TransactionalProducer, "commit", commit)

    def opens(self, destination: Destination, owner: Owner) -> Reach:
        return destination.open(owner, json.dumps(self.properties))

    def columns(self, to: Destination, sink: DeclaredSink) -> list[str]:
        return [name for name in super().columns(to, sink) if not name.startswith("_")]

    def there(self, to: Destination, names: list[str]) -> list[tuple]:
        rows = state(read(self.properties, to.name))
        assert all(row["k"].encode() == key for key, row in rows.items())
        return [tuple(row[name] for name in names) for row in rows.values()]


def state(records: list[Record]) -> dict[bytes | None, dict[str, Any]]:
    """What compaction leaves: the last value of each key, each of which is in one partition."""
    places = {(record.key, record.partition) for record in records}
    assert len(places) == len({record.key for record in records})
    last = {record.key: record.value for record in records}
    return {key: json.loads(value) for key, value in last.items() if value is not None}


@pytest.mark.all
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.invariant("I1", "I2", "I3")
def test_topics_of_keys_have_the_state_after_whatever_a_line_does(
    ledger, kafka_properties, make_topic, monkeypatch, seed
):
    walked(Walk(seed, ledger, kafka_properties, make_topic, monkeypatch))


def spec_of(topic: str) -> Pipeline:
    to = KafkaTopic(topic)
    latest = Upsert("stock", key="k string not null, d decimal(9,2) not null", columns="a bigint", order="a", to=to)
    source = Topic("t", value=Json("a bigint"))
    given = {"max_records": 20, "slice_records": 10}
    return Pipeline(name="line", source=source, transform="tests.ledger.staging:rows_of", sinks=[latest], **given)


def made(partition: int, offset: int) -> dict[str, Any]:
    """A row of one of six keys; that of the last one is a deletion."""
    gone = offset % 3 == 2
    row = {"k": "xy"[partition], "d": f"{offset % 3}.50", "a": offset}
    return {**row, "_deleted": gone}


@dataclass
class Stock(Sent):
    """A pipeline whose sink has a key of two columns."""

    def is_whole(self) -> None:
        with self.ledger.begin() as conn:
            rows = conn.execute(text("select k, d::text, a from stock")).all()
        wanted = {json.dumps({"k": k, "d": d}): {"k": k, "d": d, "a": a} for k, d, a in rows}
        found = {key.decode(): {**row, "d": f"{row['d']:.2f}"} for key, row in state(self.records()).items() if key}
        assert {_spelt(key): row for key, row in found.items()} == wanted


def _spelt(key: str) -> str:
    row = json.loads(key)
    return json.dumps({**row, "d": f"{row['d']:.2f}"})


@pytest.fixture
def stock(ledger, kafka_properties, make_topic) -> Stock:
    spec = spec_of(make_topic(3))
    migrate(ledger.url, [spec])
    return Stock(ledger, kafka_properties, spec)


@pytest.mark.invariant("I1")
def test_a_record_of_keys_says_which_transaction_has_touched_its_row_and_a_deletion_is_a_tombstone(stock):
    stock.run("a", made)
    stock.is_whole()
    records = {record.key: record for record in stock.records()}
    assert records[b'{"k":"y","d":1.50}'].value == b'{"k":"y","d":1.50,"a":7}'
    assert records[b'{"k":"y","d":1.50}'].said == {"pipeline": "line", "step": 1, "txid": 1}
    gone = records[b'{"k":"x","d":2.50}']
    assert (gone.value, gone.said) == (None, {"pipeline": "line", "step": 1, "txid": None})
    assert len(records) == len(stock.records()) == 6


@pytest.mark.invariant("I1")
def test_many_that_go_on_at_once_send_the_rows_of_keys_once(stock):
    stock.run("0", made)
    before = len(stock.records())
    stock.only_commit("a", made)
    failed = at_once(stock.ledger, stock.spec, stock.opens)
    assert failed == [] and stock.mark["step"] == 2
    stock.is_whole()
    assert len(stock.records()) == before + 6


@pytest.mark.invariant("I1", "I2")
def test_a_topic_gets_the_whole_state_where_it_is_empty_and_is_refused_where_it_is_not(stock, make_topic, monkeypatch):
    stock.run("a", made)
    stock.run("b", made)
    address = stock.destination.address
    detach(stock.ledger, "line", address, "for the test", "me")
    with pytest.raises(DestinationRefused, match="the topic has records, among which keys may be that have no row"):
        attach(stock.ledger, stock.spec, address, How.ANEW, "for the test", "me", stock.opens)
    stock.is_whole()

    other = spec_of(make_topic(3))
    migrate(stock.ledger.url, [other])
    anew = Stock(stock.ledger, stock.properties, other)
    lost = TransactionalProducer.commit

    def once(self: TransactionalProducer) -> None:
        monkeypatch.setattr(TransactionalProducer, "commit", lost)
        lost(self)
        raise DestinationUnreachable("its answer was lost")

    how = (anew.ledger, other, anew.destination.address, How.ANEW, "for the test", "me", anew.opens)
    monkeypatch.setattr(TransactionalProducer, "commit", once)
    with pytest.raises(DestinationUnreachable, match="its answer was lost"):
        attach(*how)
    attach(*how)
    anew.is_whole()
    assert len(anew.records()) == 4
    anew.run("c", made)
    anew.is_whole()
