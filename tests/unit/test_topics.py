"""The topics of a line: which a spec means, and a partition of the line as a number."""

from hypothesis import given
from hypothesis import strategies as st

from ratchet import Json, Topic
from ratchet.ledger.topics import MOST_TOPICS, PER_TOPIC, LineTopic, Topics, number_of, of_kafka, of_line
from ratchet.ledger.work import OffsetRange
from ratchet.source.described import numbered

THREE = Topics((LineTopic("orders", "a"), LineTopic("orders-eu", "b", left=True), LineTopic("orders-us", "c")))


@given(st.integers(0, MOST_TOPICS - 1), st.integers(0, PER_TOPIC - 1))
def test_a_partition_of_the_line_is_a_topic_and_a_partition_of_kafka(number, partition):
    at = of_line(number, partition)
    assert (number_of(at), of_kafka(at)) == (number, partition) and at < 2**31


def test_partitions_of_the_first_topic_have_the_numbers_that_kafka_gives_them():
    assert [THREE.partition("orders", p) for p in range(3)] == [0, 1, 2]
    assert (THREE.partition("orders-us", 7), THREE.said(2_000_007), THREE.place(7)) == (
        2_000_007,
        "orders-us-7",
        ("orders", 7),
    )
    assert str(OffsetRange("orders-us", 2_000_007, 5, 9)) == "orders-us-7[5,9)"


def test_topics_are_read_as_they_are_stored():
    assert Topics.read(THREE.stored) == THREE
    assert THREE.stored[1] == {"topic": "orders-eu", "id": "b", "left": True} and "left" not in THREE.stored[0]


def test_topics_are_named_and_of_many_the_first():
    assert (THREE.title, Topics.one("t").title) == ("topics orders, orders-us", "topic t")
    assert Topics(tuple(LineTopic(f"t{n}", "id") for n in range(9))).title == "topics t0, t1, t2 and 6 more"


def test_a_known_topic_keeps_its_number_and_others_come_behind_it():
    found = numbered(THREE, {"orders-ca": "d", "orders-us": "e", "orders": "a"})
    assert found.names == ("orders", "orders-eu", "orders-us", "orders-ca")
    assert found.ids == {"orders": "a", "orders-us": "e", "orders-ca": "d"}
    assert [each.left for each in found] == [False, True, False, False]


def test_a_pattern_matches_whole_names_and_none_of_those_that_are_kept_for_other_ends():
    topic = Topic(pattern=r"orders-.*|__.*|ratchet.*", value=Json("a int"))
    names = ["orders-eu", "orders", "my-orders-eu", "__consumer_offsets", "ratchet_marks", "ratchets"]
    assert [name for name in names if topic.wants(name)] == ["orders-eu", "ratchets"]
    assert (topic.names, topic.title, topic.is_several) == ((), topic.pattern, True)


def test_a_list_of_one_topic_is_that_topic():
    assert Topic(["t"], value=Json("a int")) == Topic("t", value=Json("a int"))
