"""A slice from real Kafka through real Spark into a real stage: what is staged is what was planned, and nothing else.

Rows are compared as multisets of (partition, offset) with their content, never by their number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from kafka import TopicPartition
from psycopg import sql
from pyspark.sql import functions

from ratchet import Accumulate, Append, Upsert
from ratchet.errors import Fenced, RecordsLost, TopicChanged
from ratchet.ledger.topics import Topics
from ratchet.ledger.work import OffsetRange
from ratchet.operate import verify
from ratchet.operate.difference import differences, lines_of
from ratchet.protocol.commit import commit
from ratchet.protocol.process import process_slice
from ratchet.spark.slice import encode, recompute, run_slice
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.kafka.test_kafka import Transaction, wait_until_stable
from tests.until import until

from .rig import SINK, address, content, every, numbered, spec_of

# What is read


@pytest.mark.invariant("I1")
def test_exactly_the_plan_is_read_though_kafka_has_more(rig):
    topic = rig.topic(2)
    rig.send(topic, *numbered(range(30)))
    rig.send(topic, *numbered(range(100, 120)), partition=1)
    spec = spec_of(topic, max_records=40, slice_records=15)
    works = rig.begin(spec)
    rig.send(topic, *numbered(range(30, 60)))
    planned = [(r.partition, o) for w in works for r in w.ranges for o in range(r.from_offset, r.until_offset)]
    assert len(works) > 1
    for work in works:
        vote = rig.run(spec, work)
        mine = [(r.partition, o) for r in work.ranges for o in range(r.from_offset, r.until_offset)]
        assert vote.records == len(mine)
        assert vote.reached == {r.partition: r.until_offset for r in work.ranges}
        rig.check(spec, work, vote)
    assert content(rig.written(works[0], SINK)) == Counter((p, o, o + 100 * p) for p, o in planned)


@pytest.mark.invariant("I1")
def test_aborted_records_and_markers_are_no_records(rig):
    topic = rig.topic()
    for values, commits in ((range(5), True), (range(5, 10), False), (range(10, 13), True)):
        Transaction(rig.kafka, topic, numbered(values)).end(commits)
    # 0-4, marker 5, aborted 6-10, marker 11, 12-14, marker 15
    wait_until_stable(rig.client, topic, 16)
    spec = spec_of(topic, max_records=16, slice_records=9)
    works = rig.begin(spec)
    assert len(works) == 2
    records = []
    for work in works:
        vote = rig.run(spec, work)
        assert vote.reached == {0: work.ranges[0].until_offset}
        rig.check(spec, work, vote)
        records.append(vote.records)
    expected = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 12: 10, 13: 11, 14: 12}
    assert content(rig.written(works[0], SINK)) == Counter((0, o, a) for o, a in expected.items())
    assert sum(records) == len(expected)


def test_a_range_with_nothing_but_aborted_records(rig):
    topic = rig.topic()
    Transaction(rig.kafka, topic, numbered(range(5))).end(False)
    wait_until_stable(rig.client, topic, 6)
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert (vote.records, vote.reached, vote.sinks[SINK].rows) == (0, {0: 6}, 0)
    rig.check(spec, work, vote)


def test_of_attempts_that_have_staged_the_same_rows_only_those_that_spark_accepted_are_named(rig):
    topic = rig.topic(2)
    rig.send(topic, *numbered(range(20)))
    rig.send(topic, *numbered(range(5)), partition=1)
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    unheard = rig.run(spec, work).sinks[SINK]
    vote = rig.run(spec, work)
    named = vote.sinks[SINK]
    assert named.rows == unheard.rows == 25 and len(rig.written(work, SINK)) == 50
    assert len(named.writers) == len(unheard.writers) and not set(named.writers) & set(unheard.writers)
    rig.check(spec, work, vote)
    commit(rig.ledger, spec, rig.claim)
    with psycopg.connect(rig.ledger.url) as conn:
        found = conn.execute(sql.SQL("select _partition, _offset from {}").format(sql.Identifier(SINK))).fetchall()
    assert Counter(found) == Counter({(0, n): 1 for n in range(20)} | {(1, n): 1 for n in range(5)})


@pytest.mark.parametrize("left", [[], [(3, 3)]], ids=["no range, as after a loss", "a range without offsets"])
def test_an_empty_slice_votes_for_nothing_in_every_sink(rig, left):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic, thrice, sinks=THRICE)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, replace(work, ranges=tuple(OffsetRange(topic, 0, *offsets) for offsets in left)))
    assert (vote.records, vote.dead_letters) == (0, 0)
    assert set(vote.sinks) == {*(sink.name for sink in THRICE), DEAD_LETTERS}
    for sink in THRICE:
        assert not rig.written(work, sink.name)


@pytest.mark.invariant("I2")
def test_a_topic_made_again_is_another_topic(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    with pytest.raises(TopicChanged, match=topic):
        rig.run(spec, replace(work, topics=Topics.one(work.topics.names[0], "another")))


@pytest.mark.invariant("I2")
def test_records_that_have_come_in_place_of_the_planned_ones_are_not_read(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)))
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    assert work.lineages == {0: ((0, 0),)}
    # As the plan's leader of epoch 7 is gone, with what it had from offset 4 on.
    planned = replace(work, lineages={0: ((0, 0), (7, 4))})
    with pytest.raises(RecordsLost, match=rf"{topic}-0 was cut at offset 4, and \[4,10\) was planned"):
        rig.run(spec, planned)
    assert rig.run(spec, replace(work, lineages={0: ((0, 0), (7, 10))})).records == 10


def test_a_slice_of_which_all_was_accepted_as_lost_votes_though_its_topic_is_another_one(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    assert rig.run(spec, replace(work, ranges=(), topics=Topics.one(work.topics.names[0], "another"))).records == 0


@pytest.mark.invariant("I1")
def test_records_that_kafka_has_deleted_are_named(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)))
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    rig.client.admin.delete_records({TopicPartition(topic, 0): 4})
    with pytest.raises(RecordsLost, match=r"\[0,4\)"):
        rig.run(spec, work)
    assert not rig.written(work, SINK)


# What happens to the topic meanwhile

MEANWHILE = []
"""What the next transform does to the topic, after it was found in order and before Spark reads it."""


def meanwhile(df):
    MEANWHILE.pop()()
    return {SINK: df}


def test_records_that_go_while_spark_reads_are_named_with_their_offsets(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)))
    spec = spec_of(topic, meanwhile)
    (work,) = rig.begin(spec)
    MEANWHILE.append(lambda: rig.client.admin.delete_records({TopicPartition(topic, 0): 4}))
    with pytest.raises(RecordsLost, match=rf"{topic}-0\[0,4\)"):
        rig.run(spec, work)
    assert not rig.written(work, SINK)


def test_a_topic_made_again_while_spark_reads_is_another_topic(rig):
    def make_again():
        rig.client.admin.delete_topics([topic])
        until("the topic is gone", lambda: topic not in rig.client.admin.list_topics())
        rig.client.admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
        # A topic that ends too early is waited for, two minutes long; one that begins too late is a loss at once.
        rig.send(topic, *numbered(range(12)))
        rig.client.admin.delete_records({TopicPartition(topic, 0): 11})

    topic = rig.topic()
    rig.send(topic, *numbered(range(10)))
    spec = spec_of(topic, meanwhile)
    (work,) = rig.begin(spec)
    MEANWHILE.append(make_again)
    with pytest.raises(TopicChanged, match=topic):
        rig.run(spec, work)
    assert not rig.written(work, SINK)


# Who may stage


@pytest.mark.invariant("I6")
def test_a_try_that_is_no_longer_current_stages_nothing(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(5)))
    spec = spec_of(topic)
    (old,) = rig.begin(spec)
    new = rig.retry(spec)
    with pytest.raises(Fenced, match="slice 0, try 1: try 2 has the slice"):
        rig.run(spec, old)
    assert not rig.written(old, SINK)
    rig.check(spec, new, rig.run(spec, new))
    with pytest.raises(Fenced, match="the transaction is PREPARED"):
        rig.run(spec, new)
    assert content(rig.written(new, SINK)) == Counter((0, o, o) for o in range(5))


def test_a_fenced_task_says_what_fenced_it(rig):
    topic = rig.topic(2)
    for partition in (0, 1):
        rig.send(topic, *numbered(range(5)), partition=partition)
    spec = spec_of(topic, max_records=10, slice_records=5)
    voted, other = rig.begin(spec)
    rig.check(spec, voted, rig.run(spec, voted))
    with pytest.raises(Fenced, match="slice 0, try 1: the slice has voted in try 1"):
        rig.run(spec, voted)
    with psycopg.connect(rig.ledger.url) as conn:
        conn.execute(sql.SQL("drop table {} cascade").format(sql.Identifier(*other.relations[SINK])))
    with pytest.raises(Fenced, match="slice 1, try 1: the table is gone, so its epoch is over"):
        rig.run(spec, other)


def test_the_job_function_votes(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(5)))
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    run = partial(run_slice, rig.spark, spec, work, rig.ledger.url, rig.servers)
    done = process_slice(rig.ledger, spec, work, run)
    assert done.cast.prepared and done.cast.prepared.records == done.vote.records == 5
    assert "every slice has voted" in str(done)


# What is recomputed


def thrice(df):
    """The same records into a sink of each kind."""
    return {SINK: df, "sums": df, "lasts": df}


def corrected(df):
    """Another result: a value is changed, a record is left out, and one gives two rows."""
    f = functions
    df = df.where(f.col("a") != 7).withColumn("a", f.when(f.col("a") == 5, 50).otherwise(f.col("a")))
    again = df.where(f.col("a") == 9).withColumn("b", f.lit("new")).withColumn("_n", f.lit(1))
    return thrice(df.withColumn("_n", f.lit(0)).unionByName(again))


def multiplied(df):
    """What a join makes that meets two rows."""
    return thrice(df.unionByName(df))


def broken(df):
    return thrice(df.withColumn("a", functions.raise_error(functions.lit("no such rate")).cast("int")))


THRICE = [
    Append(SINK, columns="a int, b string"),
    Accumulate("sums", key="b string", sum="a int", max="a int", count="n"),
    Upsert("lasts", key="b string", columns="a int", order="a"),
]


@pytest.mark.invariant("I1")
def test_what_is_recomputed_is_what_was_voted_for_and_another_result_is_named(rig):
    topic = rig.topic(2)
    for partition in (0, 1):
        values = [b'{"a": %d, "b": "%d"}' % (n, n % 3) for n in range(20)]
        rig.send(topic, *values, b"no json", partition=partition)
    spec = spec_of(topic, thrice, sinks=THRICE, slice_records=25, max_records=1_000)
    for work in rig.begin(spec):
        rig.check(spec, work, rig.run(spec, work))
    assert commit(rig.ledger, spec, rig.claim).txids == (1,)

    def again(works):
        return recompute(rig.spark, spec, works, rig.servers)

    found = verify.recompute(rig.ledger, spec, again)
    assert (found.checked, found.faults) == (1, ())
    assert [fault for check in verify.verify(rig.ledger, spec) for fault in check.faults] == []
    with rig.ledger.begin() as conn:
        conn.exec_driver_sql("update ratchet.slices set sinks = jsonb_set(sinks, '{rows,checksum}', '\"5\"')")
        conn.exec_driver_sql("update ratchet_delta.\"public.lasts\" set a = a + 1 where b = '1'")
    rows, lasts = verify.recompute(rig.ledger, spec, again).faults
    assert "transaction 1: rows has 40 rows with checksum" in rows
    assert "transaction 1: lasts has 3 rows with checksum" in lasts and "recomputed 3 with" in lasts
    said: list[str] = []
    other = spec.model_copy(update={"transform": address(every)})
    assert verify.recompute(rig.ledger, other, again, say=said.append).checked == 0
    assert "transaction 1 was committed with code" in said[0]


def test_a_dry_run_of_a_replay_says_which_rows_and_keys_differ_and_changes_nothing(rig):
    topic = rig.topic(2)
    for partition in (0, 1):
        # One key is null.
        values = [b'{"a": %d, "b": %s}' % (n, (b"null", b'"1"', b'"2"')[n % 3]) for n in range(20)]
        rig.send(topic, *values, b"no json", partition=partition)
    spec = spec_of(topic, thrice, sinks=THRICE, slice_records=25, max_records=1_000)
    for work in rig.begin(spec):
        rig.check(spec, work, rig.run(spec, work))
    assert commit(rig.ledger, spec, rig.claim).txids == (1,)

    def compared(transform):
        other = spec.model_copy(update={"transform": address(transform)})
        again = partial(encode, rig.spark, other, servers=rig.servers)
        found = list(differences(rig.ledger, other, lambda works, take: again(works, take=take), 1, 1))
        return found[0]

    with rig.ledger.begin() as conn:
        before = conn.exec_driver_sql("select * from ratchet.events").all()
    same = compared(thrice)
    assert [(of.sink, of.counts, of.before, of.after, of.is_same) for of in same.sinks] == [
        ("rows", "rows", 40, 40, True),
        ("sums", "keys", 3, 3, True),
        ("lasts", "keys", 3, 3, True),
        ("dead_letters", "rows", 2, 2, True),
    ]
    rows, sums, lasts, dead = compared(corrected).sinks
    assert (rows.added, rows.removed, rows.changed, rows.before, rows.after) == (2, 2, 2, 40, 40)
    assert {(e.what, e.named["_offset"], e.named["_n"]) for e in rows.examples} == {
        ("changed", 5, 0),
        ("removed", 7, 0),
        ("added", 9, 1),
    }
    assert next(e.columns for e in rows.examples if e.what == "changed") == {"a": (5, 50)}
    # Of the null key nothing has changed: 5 is of the key 2, 7 of the key 1.
    assert (sums.added, sums.removed, sums.changed) == (1, 0, 2)
    assert {(e.what, e.named["b"]) for e in sums.examples} == {("changed", "1"), ("changed", "2"), ("added", "new")}
    assert next(str(e) for e in sums.examples if e.named["b"] == "1") == "changed: b 1: a_sum 140 → 126, n 14 → 12"
    assert (lasts.added, lasts.removed, lasts.changed) == (1, 0, 1)
    assert dead.is_same
    # In the other lane as well.
    alone = spec.model_copy(update={"transform": None, "sinks": THRICE[:1]})
    again = partial(encode, rig.spark, alone, servers=rig.servers)
    (found,) = differences(rig.ledger, alone, lambda works, take: again(works, take=take), 1, 1)
    assert [of.is_same for of in found.sinks] == [True, True]
    assert "rows: 40 rows repeat a (_partition, _offset, _n)" in compared(multiplied).fails
    failing = compared(broken)
    assert failing.sinks == () and "no such rate" in failing.fails
    assert lines_of(failing)[0].startswith("transaction 1: a revision would fail: ")
    assert "transaction 1: rows: 2 added, 2 removed, 2 changed; 40 rows before, 40 after" in lines_of(
        compared(corrected)
    )
    with rig.ledger.begin() as conn:
        assert conn.exec_driver_sql("select * from ratchet.events").all() == before
        left = conn.exec_driver_sql("select relname from pg_class where starts_with(relname, 'tried')").all()
    assert left == []
    assert [fault for check in verify.verify(rig.ledger, spec) for fault in check.faults] == []


@pytest.mark.invariant("I1")
@pytest.mark.parametrize(
    ("transform", "reader"),
    [
        pytest.param(None, "columnar", id="worker lane-columnar"),
        pytest.param(every, "spark", id="frame lane-spark"),
        pytest.param(None, "spark", id="worker lane-spark", marks=pytest.mark.all),
        pytest.param(every, "columnar", id="frame lane-columnar", marks=pytest.mark.all),
    ],
)
def test_a_slice_of_several_topics_is_read_and_its_rows_name_theirs(rig, reader, transform):
    topics = [rig.topic(2), rig.topic(), rig.topic()]
    rig.send(topics[0], *numbered(range(3)), partition=1)
    rig.send(topics[1], *numbered(range(10, 14)), b"{")
    rig.send(topics[2], *numbered(range(20, 22)))
    sinks = [Append(SINK, columns="a int, t string")]
    spec = spec_of(topics, transform, "a int, t string from _topic", sinks, reader=reader)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert (vote.records, vote.dead_letters) == (10, 1)
    assert vote.reached == {1: 3, 1_000_000: 5, 2_000_000: 2}
    rig.check(spec, work, vote)
    commit(rig.ledger, spec, rig.claim)
    with psycopg.connect(rig.ledger.url) as conn:
        rows = conn.execute(sql.SQL("select _topic, _partition, _offset, a, t from {}").format(sql.Identifier(SINK)))
        assert sorted(rows.fetchall()) == sorted(
            [
                *((topics[0], 1, n, n, topics[0]) for n in range(3)),
                *((topics[1], 0, n, 10 + n, topics[1]) for n in range(4)),
                *((topics[2], 0, n, 20 + n, topics[2]) for n in range(2)),
            ]
        )
        dead = conn.execute('select topic, partition, "offset" from ratchet.dead_letters').fetchall()
        assert dead == [(topics[1], 0, 4)]
    with pytest.raises(TopicChanged, match=f"topic {topics[1]} has id"):
        again = [replace(each, topic_id="another") if each.name == topics[1] else each for each in work.topics]
        rig.run(spec, replace(work, topics=Topics(tuple(again))))
