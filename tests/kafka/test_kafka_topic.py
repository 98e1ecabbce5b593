"""What is committed goes to a Kafka topic too, each row once and those of a key in order, whatever happens."""

from __future__ import annotations

import json
from uuid import uuid4

import pyarrow as pa
import pytest
from kafka.admin import NewPartitions

from ratchet import Append, Json, KafkaTopic, Text
from ratchet.destinations import kafka_marks, kafka_producer
from ratchet.destinations.kafka_producer import TransactionalProducer
from ratchet.errors import (
    DestinationRefused,
    DestinationUnreachable,
    MarkMoved,
    NotRevisable,
)
from ratchet.formats.port import Use
from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.work import Run
from ratchet.operate import replay
from ratchet.operate.actions import void
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import follow
from ratchet.spec.subscription import MARKS
from tests.ledger.staging import do, start, state
from tests.until import until

from .sent import Sent, read, sending, spec_of


@pytest.fixture
def ledger(ledger_url):
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.mark.invariant("I1", "I3")
def test_a_topic_has_the_rows_of_its_sink_and_those_of_a_key_in_order(sent):
    for number, run in enumerate("abc", 1):
        sent.run(run)
        sent.is_whole()
        assert (sent.mark["step"], sent.mark["txid"], sent.mark["since"]) == (number, number, 0)
    record = next(record for record in sent.records() if record.place == (1, 1, 5, 0))
    assert (record.key, record.value) == (b"y", b'{"k":"y","a":105}')
    assert record.said == {"pipeline": "line", "txid": 1, "source": 1, "partition": 1, "offset": 5, "n": 0}
    # Nothing is left to do, and nobody is asked.
    sent.opened.clear()
    assert follow(sent.ledger, sent.spec, sent.opens) == [] and sent.opened == []


@pytest.mark.invariant("I1")
def test_a_group_is_sent_by_one_producer_and_a_transaction_without_rows_moves_the_mark(sent, monkeypatch):
    made = []
    init = TransactionalProducer.__init__
    monkeypatch.setattr(TransactionalProducer, "__init__", lambda *given: (made.append(1), init(*given))[1])
    begun = [sent.prepare(run) for run in "ab"]
    third = start(sent.ledger, sent.spec, sent.log, "c")
    do(sent.ledger, sent.spec, third, lambda p, o: {})
    sent.commit(begun[0])
    sent.is_whole()
    assert sent.mark["step"] == 3 and len(made) == 1


@pytest.mark.parametrize(
    ("moved", "error", "said"),
    [
        ({"step": 7}, MarkMoved, "its mark is step 7 .*no step of this ledger; the ledger has it"),
        pytest.param({"token": 5}, MarkMoved, "no step of this ledger", marks=pytest.mark.all),
        ({"step": 1}, MarkMoved, "no step of this ledger"),
        (None, MarkMoved, "its mark is gone"),
        pytest.param(b"no mark", DestinationRefused, "is no mark; somebody else writes there", marks=pytest.mark.all),
        ({"sink": "others"}, DestinationRefused, "gets rows of others already, by kafka:"),
        pytest.param(
            {"destination": "other:x"},
            DestinationRefused,
            "gets rows of rows_of_line already, by other:x",
            marks=pytest.mark.all,
        ),
    ],
)
@pytest.mark.invariant("I1")
def test_nothing_is_sent_where_somebody_has_moved_the_mark(sent, moved, error, said):
    for run in "ab":
        sent.run(run)
    before = sent.records("read_uncommitted")
    sent.write_mark(json.dumps({**sent.mark, **moved}).encode() if isinstance(moved, dict) else moved)
    with pytest.raises(error, match=f"line: .*{said}"):
        sent.run("c")
    assert state(sent.ledger, 3) == State.COMMITTED and sent.records("read_uncommitted") == before


def test_an_older_copy_of_the_marks_is_told(sent):
    sent.run("a")
    mark = sent.mark
    sent.run("b")
    sent.write_mark(json.dumps(mark).encode())
    with pytest.raises(MarkMoved, match="it was at step 2 .* before: an older copy is in its place"):
        sent.run("c")


def test_another_pipelines_undecided_mark_is_waited_for_and_never_read_past(sent, monkeypatch):
    monkeypatch.setattr(kafka_marks, "DECIDED_SECONDS", 0.3)
    sent.run("a")
    other = TransactionalProducer(sent.properties, f"other-{uuid4().hex}", "other", sent.topic, 1_000_000)
    other.begin()
    other.put(MARKS, b"{}", b"of another pipeline")
    begun = sent.prepare("b")
    with pytest.raises(
        DestinationUnreachable, match="a transaction of another pipeline holds the end of ratchet_marks"
    ):
        sent.commit(begun)
    other.abort()
    sent.commit(begun)
    sent.is_whole()


def test_a_topic_that_was_made_anew_is_not_taken_for_the_one_that_was_there(sent, client, make_topic):
    sent.run("a")
    client.admin.delete_topics([sent.topic])
    begun = sent.prepare("b")
    with pytest.raises(DestinationRefused, match="there is no such topic .* create it, with as many partitions"):
        sent.commit(begun)
    make_topic(3, sent.topic)
    with pytest.raises(DestinationRefused, match="was deleted and made anew: its id is .*ratchet attach line kafka:"):
        sent.commit(begun)
    assert sent.records("read_uncommitted") == []
    address = sent.destination.address
    with pytest.raises(DestinationRefused, match="is not made anew; attach it --from-here"):
        attach(sent.ledger, sent.spec, address, How.ANEW, "for the test", "me", sent.opens)
    attach(sent.ledger, sent.spec, address, How.FROM_HERE, "for the test", "me", sent.opens)
    assert sent.records("read_uncommitted") == []
    third = sent.run("c")
    assert {record.place[0] for record in sent.records()} == {third.claim.txid}


def test_partitions_that_were_added_would_part_the_rows_of_a_key(sent, client):
    sent.run("a")
    client.admin.create_partitions({sent.topic: NewPartitions(4)})
    with pytest.raises(
        DestinationRefused, match="has 4 partitions, and had 3: rows of one key would come to lie in two"
    ):
        sent.run("b")
    assert len(sent.records("read_uncommitted")) == 20


@pytest.mark.parametrize("change", ["anew", "partitions"])
def test_a_topic_that_changes_while_rows_are_sent_gets_none_of_them(sent, client, make_topic, monkeypatch, change):
    sent.run("a")
    flush, done = TransactionalProducer.flush, []

    def then(self) -> None:
        flush(self)
        if not done:
            done.append(1)
            if change == "partitions":
                client.admin.create_partitions({sent.topic: NewPartitions(4)})
            else:
                client.admin.delete_topics([sent.topic])
                make_topic(3, sent.topic)

    monkeypatch.setattr(TransactionalProducer, "flush", then)
    with pytest.raises(DestinationRefused, match="made anew" if change == "anew" else "has 4 partitions"):
        sent.run("b")
    assert len(sent.records()) == (20 if change == "partitions" else 0) and sent.mark["step"] == 1


def test_a_topic_that_is_missing_is_not_made(ledger, kafka_properties, client):
    sent = sending(ledger, kafka_properties, spec_of(f"none-{uuid4().hex}"))
    with pytest.raises(DestinationRefused, match="there is no such topic at"):
        sent.look()
    with pytest.raises(DestinationRefused, match="line: rows_of_line: kafka:none-.*there is no such topic at"):
        sent.run("a")
    assert sent.topic not in client.admin.list_topics() and sent.mark is None


@pytest.mark.invariant("I1")
def test_two_pipelines_share_a_topic_each_with_its_own_mark(sent):
    other = sending(sent.ledger, sent.properties, spec_of(sent.topic, "other"))
    for run in "abc":
        sent.run(run)
        other.run(f"o{run}")
    of = {name: [r.place for r in sent.records() if r.said["pipeline"] == name] for name in ("line", "other")}
    assert {name: sorted(places) for name, places in of.items()} == {
        "line": [row[:4] for row in sent.rows()],
        "other": [row[:4] for row in other.rows()],
    }
    assert sent.mark["step"] == other.mark["step"] == 3 and sent.mark["token"] != other.mark["token"]


@pytest.mark.invariant("I1")
def test_a_second_line_reads_what_the_first_has_written(sent):
    for run in "ab":
        sent.run(run)
    records = sent.records()
    values = (
        Json("k string, a bigint not null").decoder(Use()).decode(pa.array([r.value for r in records], pa.binary()))
    )
    keyed = [record for record in records if record.key is not None]
    keys = Text("key string").decoder(Use("key")).decode(pa.array([r.key for r in keyed], pa.binary()))
    assert values.errors.null_count == len(records) and keys.errors.null_count == len(keyed)
    assert sorted(tuple(row.values()) for row in values.columns.to_pylist() if row["k"]) == sorted(
        row[4:] for row in sent.rows() if row[4]
    )
    assert keys.columns.column(0).to_pylist() == [json.loads(record.value)["k"] for record in keyed]


@pytest.mark.parametrize(
    ("columns", "usual", "cell"),
    [
        ("d double", None, float("nan")),
        pytest.param("f float", None, float("-inf"), marks=pytest.mark.all),
        ("l array<double>", [1.0], [1.0, float("nan")]),
        pytest.param("j json", "text", None, marks=pytest.mark.all),
    ],
)
def test_what_json_does_not_hold_is_refused_and_nothing_of_it_is_seen(
    ledger, kafka_properties, make_topic, columns, usual, cell
):
    topic, name = make_topic(3), columns.split()[0]
    sinks = [Append("odd", columns=columns, to=KafkaTopic(topic))]
    odd = sending(ledger, kafka_properties, spec_of(topic).model_copy(update={"sinks": sinks}))
    of = '"partition":1,"offset":7,"n":0}'
    with pytest.raises(DestinationRefused, match=f"{of}: column {name} has a value that JSON does not hold"):
        odd.run("a", lambda p, o: {name: cell if (p, o) == (1, 7) else usual})
    assert odd.records() == [] and odd.mark["step"] == 0
    # Nobody waits for the transaction: what comes behind it is seen.
    other = sending(ledger, kafka_properties, spec_of(topic, "other"))
    other.run("b")
    assert len(other.records()) == 20


def test_a_row_that_is_too_large_is_refused_by_its_place(ledger, kafka_properties, make_topic, client):
    sent = sending(ledger, kafka_properties, spec_of(make_topic(3, max_message_bytes="20000")))
    large = {"k": "x", "a": 1}
    # Many rows of which the topic takes one at once, and not all of them.
    sent.run("a", lambda p, o: {**large, "k": "x" * 4_000})
    with pytest.raises(DestinationRefused, match='"partition":1,"offset":15,"n":0} is larger than the topic'):
        sent.run("b", lambda p, o: {**large, "k": "x" * (30_000 if (p, o) == (1, 15) else 1)})
    assert len(sent.records()) == 20 and sent.mark["step"] == 1


def test_one_that_only_the_broker_finds_too_large_is_told_too(sent, monkeypatch, client):
    from kafka.admin import ConfigResource, ConfigResourceType

    sent.run("a")
    client.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, sent.topic, {"max.message.bytes": "2000"})])
    monkeypatch.setattr(kafka_marks.Marks, "longest_record", lambda *_: 1_000_000)
    with pytest.raises(
        DestinationRefused, match="a row of .* bytes, or one that was sent together with it, is larger than the topic"
    ):
        sent.run("b", lambda p, o: {"k": "".join(uuid4().hex for _ in range(200 * p)), "a": 1})
    assert len(sent.records()) == 20


def made_again(partition: int, offset: int) -> dict:
    return {"k": "again", "a": offset}


@pytest.mark.invariant("I1")
def test_a_revision_of_what_was_sent_is_refused_and_one_of_a_void_is_sent(sent):
    sent.log.stable = {0: 30, 1: 30}
    sent.run("a")
    sent.prepare("b")
    void(sent.ledger, sent.spec, 2, "for the test", "me")
    sent.run("c")
    for run in "abc":
        settle(sent.ledger, sent.spec, Run("dag", run), succeeded=True)
    replay.ask(sent.ledger, sent.spec, 2, 2, voided=True, reason="it was right", who="me")
    sent.run("d", made_again)
    settle(sent.ledger, sent.spec, Run("dag", "d"), succeeded=True)
    before = sent.records()
    assert [record.place[0] for record in before if record.key == b"again"] == [2] * 20 and len(before) == 60
    for run, txid in (("a", 1), ("b", 2)):
        with pytest.raises(NotRevisable, match=f"transaction {txid}: kafka:.* cannot take back what it was sent"):
            start(sent.ledger, sent.spec, sent.log, run, 1)
    with pytest.raises(NotRevisable, match="nothing is asked for: .* cannot take back what it was sent"):
        replay.ask(sent.ledger, sent.spec, 1, 3, reason="it was wrong", who="me")
    address = sent.destination.address
    detach(sent.ledger, "line", address, "for the test", "me")
    begun = start(sent.ledger, sent.spec, sent.log, "a", 1)
    do(sent.ledger, sent.spec, begun, lambda p, o: {sent.spec.sinks[0].name: [made_again(p, o)]})
    sent.commit(begun)
    with pytest.raises(DestinationRefused, match="transaction 1 is revised, and what a topic has cannot be taken back"):
        attach(sent.ledger, sent.spec, address, How.ON, "for the test", "me", sent.opens)
    attach(sent.ledger, sent.spec, address, How.FROM_HERE, "for the test", "me", sent.opens)
    assert sent.records("read_uncommitted") == before


def test_brokers_that_do_not_answer_are_an_outage(sent, monkeypatch):
    # Of ten seconds in which they might come.
    monkeypatch.setattr("ratchet.source.client.TIMEOUT_MS", 1_000)
    sent.run("a")
    begun = sent.prepare("b")
    away = Sent(sent.ledger, {"bootstrap.servers": "127.0.0.1:1"}, sent.spec)
    with pytest.raises(DestinationUnreachable, match="line: rows_of_line: kafka:.*what is committed waits for it"):
        away.commit(begun)
    sent.commit(begun)
    sent.is_whole()


def test_a_step_that_takes_longer_than_a_transaction_may_is_refused(sent, client, monkeypatch):
    monkeypatch.setattr(kafka_producer, "TRANSACTION_SECONDS", 2)
    sent.run("a")
    put = TransactionalProducer.put

    def late(self, *given) -> None:
        def is_aborted() -> bool:
            return client.admin.describe_transactions([self._id])[self._id].state == "CompleteAbort"

        until("the brokers have aborted what takes so long", is_aborted, 30)
        put(self, *given)

    monkeypatch.setattr(TransactionalProducer, "put", late)
    with pytest.raises(
        DestinationRefused, match="a step took [0-9]+ s to send, and Kafka aborts a transaction after 2 s"
    ):
        sent.run("b")
    assert len(sent.records()) == 20 and sent.mark["step"] == 1


def test_brokers_that_allow_less_time_are_told(sent, monkeypatch):
    monkeypatch.setattr(kafka_producer, "TRANSACTION_SECONDS", 1000)
    with pytest.raises(DestinationRefused, match="the brokers' transaction.max.timeout.ms is below 1000 s"):
        sent.run("a")


def test_marks_that_would_be_lost_are_refused(sent, client):
    from kafka.admin import ConfigResource, ConfigResourceType

    sent.run("a")
    client.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, MARKS, {"cleanup.policy": "delete"})])
    begun = sent.prepare("b")
    try:
        with pytest.raises(DestinationRefused, match="ratchet_marks at .* has cleanup.policy=delete, by which marks"):
            sent.commit(begun)
    finally:
        again = {"cleanup.policy": "compact", **kafka_marks.CONFIGS}
        client.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, MARKS, again)])
    sent.commit(begun)
    sent.is_whole()


def test_a_destination_that_comes_later_gets_what_is_committed_from_then_on(ledger, kafka_properties, make_topic):
    topic = make_topic(3)
    spec = spec_of(topic)
    plain = spec.model_copy(update={"sinks": [spec.sinks[0].model_copy(update={"to": ()})]})
    migrate(ledger.url, [plain])
    before = Sent(ledger, kafka_properties, plain)
    commit(ledger, plain, before.prepare("a").claim)
    sent = sending(ledger, kafka_properties, spec)
    sent.log = before.log
    sent.run("b")
    assert {record.place[0] for record in read(kafka_properties, topic)} == {2}
