"""The witness says nothing against what a correct pipeline has written, and finds and names all that is wrong.

What the tables should hold is written out here by hand: nothing computes it.
"""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.protocol.begin import begin
from ratchet.source.kafka import Kafka
from tests.proof.campaign.producers import PARTITIONS, Producers, create_topics
from tests.until import until

from .comparison import Testimony, examine
from .console import Record, Unread, ends, is_decided, read
from .plain import plain_of
from .tables import RECORDS, ROWS, Tables, said


class Topic:
    """A topic of the test's own, and what a reader of committed records must find in it."""

    def __init__(self, kafka: dict[str, str], partitions: int, name: str):
        self.kafka, self.name, self.wanted = kafka, name, []
        create_topics(kafka, {name: partitions})
        self._producer = Producer({**kafka, "transactional.id": uuid4().hex, "linger.ms": 0})
        self._producer.init_transactions(30)

    def transact(self, *records: tuple[int, bytes | None, bytes | None], commit: bool = True) -> None:
        """(partition, key, value) in one Kafka transaction."""
        self.write(*records)
        self.end(commit)

    def write(self, *records: tuple[int, bytes | None, bytes | None]) -> None:
        """The same, without an end."""
        self._producer.begin_transaction()
        self._written: list[Record] = []
        for partition, key, value in records:

            def tell(error, said, key=key, value=value):
                assert error is None, error
                self._written.append((said.partition(), said.offset(), key, value))

            self._producer.produce(self.name, value, key, partition, on_delivery=tell)
        assert self._producer.flush(30) == 0

    def end(self, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction(30)
            self.wanted += self._written
        else:
            self._producer.abort_transaction(30)

    def decided(self) -> None:
        until("every record is committed or aborted", lambda: is_decided(self.kafka, self.name))


@pytest.fixture
def make_topic(kafka_properties):
    return lambda partitions=1, name=None: Topic(kafka_properties, partitions, name or f"campaign-{uuid4().hex[:12]}")


# The console consumer.


def test_every_committed_record_is_read_with_its_bytes_and_no_other(make_topic):
    topic = make_topic(3)
    odd = [
        None,
        b"",
        b"null",
        b"\\",
        b"\\x41",
        b"\t",
        b"a\tb\nc\r\n",
        bytes(range(256)),
        "ä€\U0001f600".encode(),
        b"\\N",
    ]
    topic.transact(*((0, key, value) for key in odd for value in odd))
    topic.transact((0, b"aborted", b"1"), (1, b"aborted", b"2"), commit=False)
    topic.transact((1, b"k", b"only"))
    topic.transact(*((1, None, b"aborted at the end") for _ in range(9)), commit=False)
    topic.decided()
    found = list(read(topic.kafka, topic.name, 2))
    assert sorted(found, key=lambda r: r[:2]) == topic.wanted and len(found) == len(odd) ** 2 + 1


def test_what_was_not_read_to_its_end_is_no_answer(make_topic):
    topic = make_topic()
    topic.transact((0, None, b"first"))
    topic.write((0, None, b"undecided"))
    with pytest.raises(Unread, match="undecided"):
        list(read(topic.kafka, topic.name, 2))
    topic.end(commit=True)
    topic.decided()
    # So soon it cannot have joined its group.
    with pytest.raises(Unread, match="has come to {0: 0}|after 0 records"):
        list(read(topic.kafka, topic.name, 0.001))


# The comparison.


def told(testimony: Testimony) -> dict[str, list[str]]:
    """{kind: what is named}, of the kinds that are not empty."""
    kinds = {kind: getattr(testimony, kind) for kind in ("lost", "doubled", "foreign", "different")}
    assert all(found.total == len(found.first) for found in kinds.values())
    assert json.loads(json.dumps(testimony.to_json()))["is_exact"] is testimony.is_exact
    return {kind: found.first for kind, found in kinds.items() if found.total}


@pytest.mark.parametrize("name", PARTITIONS)
def test_nothing_is_said_against_what_is_right(name, ledger_url):
    tables = Tables(ledger_url, name)
    tables.fill(ROWS[name])
    testimony = tables.compare(RECORDS[name])
    assert told(testimony) == {} and testimony.is_exact
    assert testimony.records == len(RECORDS[name])
    assert testimony.rows == {table: len(rows) for table, rows in ROWS[name].items()}


# (pipeline, what goes wrong, {kind: what is named})
WRONG = [
    ("orders", "delete from orders_rows where _offset = 2", {"lost": ["orders_rows: partition 1, offset 2, row 0"]}),
    (
        "orders",
        "insert into orders_rows select * from orders_rows where v = 1",
        {"doubled": ["orders_rows: partition 0, offset 0, row 0: a, 1, x, t: a, 1, x, t"]},
    ),
    (
        "orders",
        "update orders_rows set v = 2 where v = 1",
        {"different": ["orders_rows: partition 0, offset 0, row 0: a, 2, x, t"]},
    ),
    (
        "orders",
        "update orders_rows set note = null where _offset = 2",
        {"different": ["orders_rows: partition 1, offset 2, row 0: tab\\t, back"]},
    ),
    (
        "orders",
        "update orders_rows set _offset = 3 where _offset = 2",
        {
            "lost": ["orders_rows: partition 1, offset 2, row 0"],
            "foreign": ["orders_rows: partition 1, offset 3, row 0: tab"],
        },
    ),
    (
        "orders",
        "update orders_rows set _partition = 0, _offset = 1 where _offset = 2",
        {
            "lost": ["orders_rows: partition 1, offset 2, row 0"],
            "foreign": ["orders_rows: partition 0, offset 1, row 0: tab"],
        },
    ),
    (
        "orders",
        "update orders_sums set v_sum = -3 where k = 'a'",
        {"different": ["orders_sums: a: -3, -5, 1, 2, not -4"]},
    ),
    ("orders", "delete from orders_sums where n = 1", {"lost": ["orders_sums: tab"]}),
    (
        "orders",
        'delete from ratchet.dead_letters where "offset" = 7',
        {"lost": ["dead_letters: partition 3, offset 7, row 0"]},
    ),
    (
        "orders",
        'update ratchet.dead_letters set key = null where "offset" = 1',
        {"different": ["dead_letters: partition 0, offset 1, row 0: \\N, "]},
    ),
    (
        "orders",
        'update ratchet.dead_letters set value = null where "offset" = 8',
        {"different": ["dead_letters: partition 3, offset 8, row 0: "]},
    ),
    (
        "orders",
        "insert into ratchet.dead_letters select pipeline, topic_id, 0, 0, topic, timestamp, txid, error, key, value, "
        'headers from ratchet.dead_letters where "offset" = 7',
        {"foreign": ["dead_letters: partition 0, offset 0, row 0: "]},
    ),
    (
        "events",
        "update events_rows set _n = 3 where _partition = 1 and _n = 2",
        {
            "lost": ["events_rows: partition 1, offset 0, row 2"],
            "foreign": ["events_rows: partition 1, offset 0, row 3: a, 9, 2"],
        },
    ),
    ("events", "update events_last set v = 4", {"different": ["events_last: a: 10, 4, 0, 0, not 10, 5, 0, 0"]}),
    (
        "events",
        "update events_sums set odd = 2 where odd = 1",
        {"lost": ["events_sums: a, 1: nothing, not 6"], "foreign": ["events_sums: a, 2: 6, 10, 2, not nothing"]},
    ),
    (
        "accounts",
        "insert into accounts_last values (1, 'o', 1, 1, 0, 1)",
        {"foreign": ["accounts_last: 1: o, 1, 1, 0, not nothing"]},
    ),
    (
        "accounts",
        "update accounts_last set _offset = 0 where id = 2",
        {"different": ["accounts_last: 2: p, 7, 0, 0, "]},
    ),
]


@pytest.mark.parametrize("name", ["orders", "events", "accounts"])
def test_whatever_is_wrong_is_found_and_named(name, ledger_url):
    tables = Tables(ledger_url, name)
    for _, statement, wanted in (wrong for wrong in WRONG if wrong[0] == name):
        tables.fill(ROWS[name])
        tables.say(statement)
        found = told(tables.compare(RECORDS[name]))
        assert found.keys() == wanted.keys(), statement
        for kind, lines in wanted.items():
            assert [line[: len(start)] for line, start in zip(found[kind], lines, strict=True)] == lines, statement


def test_only_the_first_differences_are_named_and_all_are_counted(ledger_url):
    tables = Tables(ledger_url, "archive")
    tables.fill(ROWS["archive"])
    testimony = tables.compare([*RECORDS["archive"], *((0, 10 + i, None, said(id=i)) for i in range(1000))])
    assert testimony.lost.total == 1000 and not testimony.is_exact
    assert testimony.lost.first == [f"archive_rows: partition 0, offset {10 + i}, row 0" for i in range(20)]


def test_a_whole_topic_is_held_against_the_tables(make_topic, ledger_url):
    topic = make_topic(4)
    topic.transact((0, None, said(k="a", v=1)), (0, b"\x00", b"\xff"), (1, None, said(k="a", v=2)))
    topic.transact((0, None, said(k="b", v=3)), (2, None, b"no JSON"), commit=False)
    topic.transact((2, None, None), (0, None, b""))
    topic.decided()
    tables = Tables(ledger_url, "orders", topic.name)
    tables.fill(
        {
            "orders_rows": [("a", 1, None, topic.name, 0, 0, 0, 1), ("a", 2, None, topic.name, 1, 0, 0, 1)],
            "orders_sums": [("a", 3, 1, 2, 2, 1)],
            # 2: a marker, 3: aborted, 4: a marker.
            "dead_letters": [(0, 1, b"\x00", b"\xff"), (0, 5, None, b""), (2, 2, None, None)],
        }
    )
    testimony = examine(tables.spec, topic.kafka, ledger_url, 8)
    assert told(testimony) == {} and testimony.records == 5
    tables.say("update orders_rows set _offset = 3 where v = 1")
    of_aborted = tables.compare(topic.wanted)
    assert told(of_aborted) == {
        "lost": ["orders_rows: partition 0, offset 0, row 0"],
        "foreign": [f"orders_rows: partition 0, offset 3, row 0: a, 1, \\N, {topic.name}"],
    }


def test_records_of_a_voided_transaction_should_be_nowhere(make_topic, ledger_url):
    topic = make_topic(4)
    topic.transact((0, None, said(k="a", v=1)), (1, None, b"no JSON"))
    topic.decided()
    tables = Tables(ledger_url, "orders", topic.name)
    with Kafka(topic.kafka) as kafka, Ledger(ledger_url) as ledger:
        begin(ledger, tables.spec, Run("orders", "run"), partial(kafka.offsets, topic.name), lambda *_: True)
        void(ledger, tables.spec, 1, "the test wants it so", "test")
    topic.transact((0, None, said(k="a", v=2)))
    testimony = tables.compare(topic.wanted)
    assert told(testimony) == {
        # 1: a marker.
        "lost": ["orders_rows: partition 0, offset 2, row 0", "orders_sums: a: nothing, not 2, 2, 2, 1"]
    }
    assert (testimony.records, testimony.voided) == (1, 2)


# The producers.


def test_two_thirds_are_committed_and_what_was_aborted_is_not_read(kafka_properties):
    create_topics(kafka_properties, {"accounts": 2})
    there = any(end for _, end in ends(kafka_properties, "accounts", "read_committed").values())
    before = sum(1 for _ in read(kafka_properties, "accounts", 2)) if there else 0
    with Producers(kafka_properties, 3, {"accounts": 20_000.0}, committed=20_000) as producers:
        producers.wait(60)
    tally = producers.lines["accounts"].tally
    assert tally.committed >= 20_000 and tally.aborted > 0 and not tally.unknown
    until("every record is committed or aborted", lambda: is_decided(kafka_properties, "accounts"))
    found = list(read(kafka_properties, "accounts", 2))
    assert len(found) == before + tally.committed
    written = sum(end for _, end in ends(kafka_properties, "accounts", "read_committed").values())
    assert written > tally.committed + tally.aborted
    plain = plain_of(import_module("tests.proof.campaign.pipelines.accounts").PIPELINE)
    given_up = sum("dead_letters" in plain(key, value) for _, _, key, value in found)
    assert 0.003 < given_up / len(found) < 0.03 and any(value is None for *_, value in found)
