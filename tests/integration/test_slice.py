"""A slice from real Kafka through real Spark into a real stage: what is staged is what was planned, and nothing else.

Rows are compared as multisets of (partition, offset) with their content, never by their number.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import uuid4

import psycopg
import pytest
from kafka import KafkaProducer, TopicPartition
from psycopg import sql
from psycopg.rows import dict_row
from pyspark.sql import functions as F

from ratchet import Accumulate, Append, Json, Pipeline, Refused, Topic, Upsert, verify
from ratchet.begin import Begun, begin
from ratchet.commit import commit
from ratchet.errors import Fenced, IncompleteRead, RecordsLost, TopicChanged, TransformError
from ratchet.kafka import Kafka
from ratchet.ledger import Ledger
from ratchet.migrate import migrate
from ratchet.pipeline import DEAD_LETTERS
from ratchet.sinks.staged import staged_columns
from ratchet.spark.checksum import MODULUS, row_hash
from ratchet.spark.engine import connect_session, process_slice
from ratchet.spark.slice import recompute, run_slice
from ratchet.transaction import OffsetRange, Run, Vote
from ratchet.votes import SliceWork, cast_vote, take_try
from tests.integration.test_kafka import Transaction, wait_until_stable
from tests.unit.test_checksum import COLUMNS, ROWS, VECTORS
from tests.until import until

HERE = "tests.integration.test_slice"
SINK = "rows"


def every(df):
    """Every record into the one sink."""
    return {SINK: df}


@pytest.fixture(scope="module")
def session(spark_connect):
    with connect_session(spark_connect.spark, "tests", uuid4().hex) as session:
        yield session


@dataclass
class Rig:
    """A topic, a ledger and a session, and what a run does with them."""

    spark: object
    ledger: Ledger
    kafka: dict[str, str]
    client: Kafka

    def topic(self, partitions: int = 1) -> str:
        name = f"slice-{uuid4().hex[:12]}"
        self.client.admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1}})
        return name

    def send(self, topic: str, *values: bytes | None, partition: int = 0, keys=None, headers=None) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.kafka["bootstrap.servers"], acks="all", max_request_size=4 * 2**20
        )
        for i, value in enumerate(values):
            key = keys[i] if keys else None
            producer.send(topic, value, key=key, partition=partition, headers=headers or [])
        producer.flush()
        producer.close()

    def begin(self, spec: Pipeline, run_id: str = "run") -> list[SliceWork]:
        """Plan a transaction and take the first try at each of its slices."""
        migrate(self.ledger.url, [spec])
        begun = begin(
            self.ledger, spec, Run("dag", run_id), lambda _: self.client.offsets(spec.source.name), lambda *_: True
        )
        assert isinstance(begun, Begun), begun
        self.claim = begun.claim
        return [self.retry(spec, part.number) for part in begun.slices]

    def retry(self, spec: Pipeline, number: int = 0) -> SliceWork:
        work = take_try(self.ledger, spec, self.claim, number)
        assert isinstance(work, SliceWork), work
        return work

    def run(self, spec: Pipeline, work: SliceWork) -> Vote:
        return run_slice(self.spark, spec, work, self.ledger.url, self.kafka)

    def staged(self, work: SliceWork, sink: str) -> list[dict]:
        with psycopg.connect(self.ledger.url, row_factory=dict_row) as conn:
            conn.execute("set time zone 'UTC'")
            return conn.execute(
                sql.SQL("select * from {}").format(sql.Identifier("ratchet_stage", work.stages[sink]))
            ).fetchall()

    def check(self, spec: Pipeline, work: SliceWork, vote: Vote) -> None:
        """The vote says of each sink what is staged, by tags, rows and checksum, and the ledger accepts it."""
        for name, said in vote.sinks.items():
            columns = staged_columns(None if name == DEAD_LETTERS else spec.sink(name))
            tags = {(tag.partition, tag.attempt) for tag in said.tags}
            rows = [r for r in self.staged(work, name) if (r["_task_partition"], r["_task_attempt"]) in tags]
            assert len(rows) == said.rows, name
            assert sum(row_hash(columns, [r[c.name] for c in columns]) for r in rows) % MODULUS == said.checksum, name
        cast_vote(self.ledger, spec, work.token, vote)


@pytest.fixture
def rig(session, ledger_url, kafka_properties):
    with Kafka(kafka_properties) as client, Ledger(ledger_url) as ledger:
        yield Rig(session, ledger, kafka_properties, client)


def spec_of(topic: str, transform: str = "every", value: str = "a int, b string", sinks=None, **given) -> Pipeline:
    source = {k: given.pop(k) for k in ("key", "tombstones") if k in given}
    return Pipeline(
        name="p",
        source=Topic(topic, value=Json(value), **source),
        transform=f"{HERE}:{transform}",
        sinks=sinks or [Append(SINK, columns=value)],
        **{"max_records": 100_000, "slice_records": 100_000, **given},
    )


def numbered(values) -> list[bytes]:
    return [b'{"a": %d}' % v for v in values]


def positions(rows: list[dict]) -> Counter:
    return Counter((r["_partition"], r["_offset"]) for r in rows)


def content(rows: list[dict]) -> Counter:
    return Counter((r["_partition"], r["_offset"], r["a"]) for r in rows)


# What is read


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
    assert content(rig.staged(works[0], SINK)) == Counter((p, o, o + 100 * p) for p, o in planned)


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
    assert content(rig.staged(works[0], SINK)) == Counter((0, o, a) for o, a in expected.items())
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


def test_an_empty_slice(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, replace(work, ranges=(OffsetRange(topic, 0, 3, 3),)))
    assert (vote.records, vote.dead_letters) == (0, 0)
    assert set(vote.sinks) == {SINK, DEAD_LETTERS}
    assert not rig.staged(work, SINK)


def test_a_topic_made_again_is_another_topic(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    with pytest.raises(TopicChanged, match=topic):
        rig.run(spec, replace(work, topic_id="another"))


def test_records_that_kafka_has_deleted_are_named(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)))
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    rig.client.admin.delete_records({TopicPartition(topic, 0): 4})
    with pytest.raises(RecordsLost, match=r"\[0,4\)"):
        rig.run(spec, work)
    assert not rig.staged(work, SINK)


# What is decoded

GOOD = {
    b'{"a": 1, "b": "x"}': (1, "x"),
    b' {"b": "y", "a": -2147483648, "c": [1]}\n': (-2147483648, "y"),
    b'{"b": "z"}': (None, "z"),
    b'{"a": null}': (None, None),
    b"{}": (None, None),
    '{"b": "h\u00e9 \\u20ac"}'.encode(): (None, "h\u00e9 \u20ac"),
    b'{"b": "\\ud83d\\ude00 \\\\ud800"}': (None, "\U0001f600 \\ud800"),
}
BAD = [
    None,
    b"",
    b" ",
    b"null",
    b"5",
    b'"text"',
    b"true",
    b'[{"a": 1}]',
    b"[]",
    b'{"a": 1',
    b'{"a": 1}]',
    b'{"a": 1} trailing',
    b'{"a": 1} {"a": 2}',
    b'{"a": 1}{"a": 2}',
    b'{"a": 1},{"a": 2}',
    b'{"a": 1},',
    b',{"a": 1}',
    b'{"a": 1},null',
    b'{"a": 1}],"x":[',
    b'{"a": 1}],"v":[{"a": 2}',
    b'{"a": 1}],"ratchet_end":true}',
    b'{"a": 1}],"ratchet_end":true} trailing',
    b'],"v":[{"a": 1}',
    b"{'a': 1}",
    b"{a: 1}",
    b'{"a": 1.5}',
    b'{"a": 1.0}',
    b'{"a": 2147483648}',
    b'{"a": 99999999999999999999}',
    b'{"a": "1"}',
    b'{"a": true}',
    b'{"a": {}}',
    b'{"a": NaN}',
    b'{"b": "\xff"}',
    b'{"b": "\xed\xa0\x80"}',
    b'{"b": "\\u0000"}',
    b'\xef\xbb\xbf{"a": 1}',
    b'{"a": 1 /* no */}',
    b"\x00",
    b'{"b": "\\ud800"}',
    b'{"b": "\\udc00 x"}',
]


def test_every_record_is_a_row_or_a_dead_letter_with_its_bytes(rig):
    topic = rig.topic()
    keys = [b"k"] * (len(GOOD) + len(BAD))
    rig.send(topic, *GOOD, *BAD, keys=keys, headers=[("h", b"\x00\x01"), ("none", b"")])
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    rows = {r["_offset"]: (r["a"], r["b"]) for r in rig.staged(work, SINK)}
    dead = rig.staged(work, DEAD_LETTERS)
    letters = {r["_offset"]: r["value"] for r in dead}
    values = [*GOOD, *BAD]
    assert {values[o]: row for o, row in rows.items()} == GOOD
    assert letters == dict(enumerate(BAD, len(GOOD)))
    assert len(dead) == len(BAD) == vote.dead_letters
    assert all(r["error"] for r in dead)
    assert [h["key"] for h in json.loads(dead[0]["headers"])] == ["h", "none"]
    assert vote.records == len(values)
    rig.check(spec, work, vote)


def first_column(df):
    return {SINK: df.select("a", "_partition", "_offset")}


def test_a_field_that_the_transform_does_not_use_is_checked_too(rig):
    topic = rig.topic()
    rig.send(topic, b'{"a": 1, "c": 1}', b'{"a": 2, "c": "no"}', b'{"a": 3}', b'{"a": 4, "c": 1.5}')
    spec = spec_of(topic, "first_column", value="a int, c int", sinks=[Append(SINK, columns="a int")])
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert content(rig.staged(work, SINK)) == Counter([(0, 0, 1), (0, 2, 3)])
    assert positions(rig.staged(work, DEAD_LETTERS)) == Counter([(0, 1), (0, 3)])
    rig.check(spec, work, vote)


def test_not_null_columns(rig):
    topic = rig.topic()
    rig.send(topic, b'{"a": 1}', b'{"a": null}', b"{}")
    spec = spec_of(topic, value="a int not null")
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert content(rig.staged(work, SINK)) == Counter([(0, 0, 1)])
    dead = rig.staged(work, DEAD_LETTERS)
    assert positions(dead) == Counter([(0, 1), (0, 2)])
    assert all("column a" in r["error"] for r in dead)


def test_a_decimal_is_never_rounded(rig):
    topic = rig.topic()
    texts = ["1.50", "1.500", "-0.01", "12345678.9", "1e2", "1.005", "123456789.00", "1e9", '"x"', "99999999.999"]
    rig.send(topic, *(b'{"d": %s}' % t.encode() for t in texts))
    spec = spec_of(topic, value="d decimal(10,2)")
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    expected = {0: "1.50", 1: "1.50", 2: "-0.01", 3: "12345678.90", 4: "100.00"}
    assert {r["_offset"]: str(r["d"]) for r in rig.staged(work, SINK)} == expected
    assert positions(rig.staged(work, DEAD_LETTERS)) == Counter((0, o) for o in range(5, 10))


def test_times_that_postgresql_cannot_hold_are_dead_letters(rig):
    topic = rig.topic()
    texts = ["2013-01-01T05:00:00Z", "-5000-01-01T00:00:00Z", "+294247-01-01T00:00:00Z", "nope"]
    texts += ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:30:00-01:00"]
    rig.send(topic, *(b'{"t": "%s"}' % t.encode() for t in texts))
    spec = spec_of(topic, value="t timestamp")
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert {r["_offset"]: r["t"] for r in rig.staged(work, SINK)} == {0: datetime(2013, 1, 1, 5, tzinfo=UTC)}


def keyed(df):
    return {SINK: df}


def test_keys(rig):
    topic = rig.topic()
    keys = [b"1", None, b"x", b"", b"\xff", b"99999999999", b"-7"]
    rig.send(topic, *numbered(range(len(keys))), keys=keys)
    spec = spec_of(topic, value="a int", key="k int", sinks=[Append(SINK, columns="k int, a int")])
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert {r["_offset"]: r["k"] for r in rig.staged(work, SINK)} == {0: 1, 1: None, 6: -7}
    assert {r["_offset"]: r["key"] for r in rig.staged(work, DEAD_LETTERS)} == {o: keys[o] for o in (2, 3, 4, 5)}


def test_a_key_with_a_nul_is_a_dead_letter(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(2)), keys=[b"a\x00b", b"c"])
    spec = spec_of(topic, value="a int", key="k string", sinks=[Append(SINK, columns="k string, a int")])
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert content(rig.staged(work, SINK)) == Counter([(0, 1, 1)])


def test_tombstones_delete(rig):
    topic = rig.topic()
    rig.send(topic, b'{"a": 1}', b'{"a": 2}', None, None, b"", b'{"a": 3}', keys=[b"x", b"y", b"x", b"y", b"z", None])
    sinks = [Upsert(SINK, key="k string", columns="a int not null")]
    spec = spec_of(topic, value="a int not null", key="k string", tombstones="delete", sinks=sinks)
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    rows = {r["k"]: (r["_offset"], r["a"], r["_deleted"]) for r in rig.staged(work, SINK)}
    assert rows == {"x": (2, None, True), "y": (3, None, True)}
    assert positions(rig.staged(work, DEAD_LETTERS)) == Counter([(0, 4), (0, 5)])


def test_large_values_keep_their_bytes(rig):
    topic = rig.topic()
    good = b'{"b": "%s"}' % (b"x" * 1_040_000)
    bad = bytes(range(256)) * 4_060
    rig.send(topic, *([good] * 5), bad)
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert {r["_offset"]: r["b"] for r in rig.staged(work, SINK)} == dict.fromkeys(range(5), "x" * 1_040_000)
    assert {r["_offset"]: r["value"] for r in rig.staged(work, DEAD_LETTERS)} == {5: bad}


# What the transform returns


def as_declared(df):
    """Rows of every type, by the number in the record."""
    of = df.sparkSession.createDataFrame(ROWS, ", ".join(f"{c.name} {c.type}" for c in COLUMNS))
    numbered_rows = of.coalesce(1).withColumn("row", F.monotonically_increasing_id())
    return {SINK: df.join(F.broadcast(numbered_rows), F.col("a") == F.col("row"))}


def test_every_type_arrives_exactly_and_its_checksum_is_the_vector(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(len(ROWS))))
    declared = ", ".join(f"{c.name} {c.type}" for c in COLUMNS)
    spec = spec_of(topic, "as_declared", value="a int", sinks=[Append(SINK, columns=declared)])
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    rows = sorted(rig.staged(work, SINK), key=lambda r: r["_offset"])
    assert [row_hash(COLUMNS, [r[c.name] for c in COLUMNS]) for r in rows] == VECTORS
    exact = [i for i, c in enumerate(COLUMNS) if c.type not in ("float", "double")]
    assert [[list(r.values())[4:][i] for i in exact] for r in rows] == [[row[i] for i in exact] for row in ROWS]
    rig.check(spec, work, vote)


def three_views(df):
    good = df.where("d >= 0")
    return {
        SINK: good,
        "totals": good.where("g is not null"),
        "latest": good.withColumn("w", F.col("d")),
        DEAD_LETTERS: df.where("d < 0").withColumn("error", F.lit("below zero")),
    }


def test_sums_and_last_rows_are_exact(rig):
    topic = rig.topic(2)
    sent = {}
    for p in (0, 1):
        rows = [{"g": i % 3 if i % 7 else None, "d": f"{i * (-1) ** i}.{i:02d}", "o": (i * 5) % 11} for i in range(40)]
        rig.send(topic, *(json.dumps(r).replace(f'"{r["d"]}"', r["d"]).encode() for r in rows), partition=p)
        sent |= {(p, i): {**r, "d": Decimal(r["d"])} for i, r in enumerate(rows)}
    below = [at for at, r in sent.items() if r["d"] < 0]
    sent = {at: r for at, r in sent.items() if r["d"] >= 0}
    spec = spec_of(
        topic,
        "three_views",
        value="g int, d decimal(10,2), o int",
        sinks=[
            Accumulate(
                "totals", key="g int", sum="d decimal(10,2), o int", min="o int", max="d decimal(10,2)", count="n"
            ),
            Append(SINK, columns="g int, d decimal(10,2)"),
            Upsert("latest", key="g int", columns="o int, w decimal(10,2)", order="o"),
        ],
    )
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    rig.check(spec, work, vote)
    assert vote.records == 80
    assert {(r["_partition"], r["_offset"]): r["d"] for r in rig.staged(work, SINK)} == {
        k: v["d"] for k, v in sent.items()
    }
    for total in rig.staged(work, "totals"):
        mine = [r for r in sent.values() if r["g"] == total["g"]]
        assert total["d_sum"] == sum(r["d"] for r in mine)
        assert (total["o_sum"], total["n"]) == (sum(r["o"] for r in mine), len(mine))
        assert (total["o_min"], total["d_max"]) == (min(r["o"] for r in mine), max(r["d"] for r in mine))
    assert {r["g"] for r in rig.staged(work, "totals")} == {0, 1, 2}
    latest = {r["g"]: (r["_partition"], r["_offset"]) for r in rig.staged(work, "latest")}
    by_order = {
        g: max((at for at in sent if sent[at]["g"] == g), key=lambda at: (sent[at]["o"], at[1], at[0]))
        for g in (None, 0, 1, 2)
    }
    assert latest == by_order
    assert positions(rig.staged(work, DEAD_LETTERS)) == Counter(below)


def twice(df):
    return {SINK: df.withColumn("_n", F.explode(F.array(F.lit(0), F.lit(1))))}


def united(df):
    return {SINK: df.withColumn("_n", F.lit(0)).unionByName(df.withColumn("_n", F.lit(1)))}


@pytest.mark.parametrize("transform", ["twice", "united"])
def test_several_rows_of_a_record_do_not_count_it_twice(rig, transform):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)), b"bad")
    spec = spec_of(topic, transform, value="a int")
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert (vote.records, vote.dead_letters) == (11, 1)
    assert positions(rig.staged(work, SINK)) == Counter({(0, o): 2 for o in range(10)})
    rig.check(spec, work, vote)


def nothing(df):
    return {SINK: df.where(F.lit(False))}


def aggregated_away(df):
    return {SINK: df.join(df.select(F.col("a").alias("x")).where("false"), F.col("a") == F.col("x"))}


@pytest.mark.parametrize("transform", ["nothing", "aggregated_away"])
def test_what_is_dropped_is_read_all_the_same(rig, transform):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)), b"bad")
    spec = spec_of(topic, transform, value="a int")
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert (vote.records, vote.sinks[SINK].rows) == (11, 0)
    assert positions(rig.staged(work, DEAD_LETTERS)) == Counter([(0, 10)])
    rig.check(spec, work, vote)


def limited(df):
    return {SINK: df.limit(3)}


def test_a_limit_does_not_pass_for_a_read(rig):
    """Spark stops reading where a limit is reached: either that is refused, or all records were read anyway."""
    topic = rig.topic()
    rig.send(topic, *numbered(range(30_000)), b"bad")
    spec = spec_of(topic, "limited", value="a int")
    (work,) = rig.begin(spec)
    try:
        vote = rig.run(spec, work)
    except IncompleteRead:
        return
    assert (vote.records, vote.dead_letters) == (30_001, 1)


def returns_a_frame(df):
    return df


def returns_another_sink(df):
    return {SINK: df, "rowz": df}


def returns_too_few(df):
    return {}


def returns_a_number(df):
    return {SINK: 5}


def loses_a_column(df):
    return {SINK: df.drop("b")}


def loses_the_offset(df):
    return {SINK: df.drop("_offset")}


def changes_a_type(df):
    return {SINK: df.withColumn("a", F.col("a").cast("bigint"))}


def names_no_column(df):
    return {SINK: df.select("nowhere")}


def raises(df):
    raise ValueError("the transform's own words")


def fails_late(df):
    return {SINK: df.withColumn("b", F.raise_error(F.lit("the row's own words")).cast("string"))}


def divides_by_zero(df):
    return {SINK: df.withColumn("a", (F.lit(1) / (F.col("a") - F.col("a"))).cast("int"))}


def python_fails(df):
    boom = F.udf(lambda a: 1 // 0, "int")
    return {SINK: df.withColumn("a", boom("a"))}


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        ("returns_a_frame", "DataFrame"),
        ("returns_another_sink", "rowz"),
        ("returns_too_few", SINK),
        ("returns_a_number", "int"),
        ("loses_a_column", "'b'"),
        ("loses_the_offset", "_offset"),
        ("changes_a_type", "bigint"),
        ("names_no_column", "nowhere"),
        ("raises", "the transform's own words"),
        ("fails_late", "the row's own words"),
        ("divides_by_zero", "DIVIDE_BY_ZERO"),
        ("python_fails", "ZeroDivisionError"),
    ],
)
def test_what_is_wrong_with_a_transform_is_said(rig, transform, said):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic, transform)
    (work,) = rig.begin(spec)
    with pytest.raises(TransformError) as raised:
        rig.run(spec, work)
    assert said in str(raised.value)
    assert "transaction 1" in str(raised.value) or SINK in str(raised.value) or "p:" in str(raised.value)
    assert not rig.staged(work, SINK)


def refuses(df):
    raise Refused("the rates are\nnot in yet")


def refuses_on_a_worker(df):
    @F.udf("int")
    def refuse(a):
        raise Refused("the rates are\nnot in yet")

    return {SINK: df.withColumn("a", refuse("a"))}


@pytest.mark.parametrize("transform", ["refuses", "refuses_on_a_worker"])
def test_a_transform_that_refuses_gives_its_reason_and_nothing_else(rig, transform):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic, transform)
    (work,) = rig.begin(spec)
    with pytest.raises(Refused) as raised:
        rig.run(spec, work)
    assert str(raised.value) == "the rates are\nnot in yet"
    assert not rig.staged(work, SINK)


def null_where_it_must_not_be(df):
    return {SINK: df.withColumn("a", F.when(F.col("a") != 2, F.col("a")))}


def test_a_null_in_a_not_null_column_is_named(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(4)))
    spec = spec_of(topic, "null_where_it_must_not_be", value="a int not null")
    (work,) = rig.begin(spec)
    with pytest.raises(TransformError, match=f"^p: transaction 1, slice 0, try 1: sink '{SINK}': column a is declared"):
        rig.run(spec, work)
    assert not rig.staged(work, SINK)


def holds_a_nul(df):
    return {SINK: df.withColumn("b", F.concat(F.lit("x"), F.decode(F.unhex(F.lit("00")), "UTF-8")))}


def test_a_value_that_postgresql_cannot_hold_is_final_and_names_the_sink(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic, "holds_a_nul")
    (work,) = rig.begin(spec)
    with pytest.raises(TransformError, match=f"sink '{SINK}': PostgreSQL cannot hold a value: .*0x00"):
        rig.run(spec, work)
    assert not rig.staged(work, SINK)


# What happens to the topic meanwhile

MEANWHILE = []
"""What the next transform does to the topic, after it was found in order and before Spark reads it."""


def meanwhile(df):
    MEANWHILE.pop()()
    return {SINK: df}


def test_records_that_go_while_spark_reads_are_named_with_their_offsets(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)))
    spec = spec_of(topic, "meanwhile")
    (work,) = rig.begin(spec)
    MEANWHILE.append(lambda: rig.client.admin.delete_records({TopicPartition(topic, 0): 4}))
    with pytest.raises(RecordsLost, match=rf"{topic}-0\[0,4\)"):
        rig.run(spec, work)
    assert not rig.staged(work, SINK)


def test_a_topic_made_again_while_spark_reads_is_another_topic(rig):
    def make_again():
        rig.client.admin.delete_topics([topic])
        until(lambda: topic not in rig.client.admin.list_topics())
        rig.client.admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
        # A topic that ends too early is waited for, two minutes long; one that begins too late is a loss at once.
        rig.send(topic, *numbered(range(12)))
        rig.client.admin.delete_records({TopicPartition(topic, 0): 11})

    topic = rig.topic()
    rig.send(topic, *numbered(range(10)))
    spec = spec_of(topic, "meanwhile")
    (work,) = rig.begin(spec)
    MEANWHILE.append(make_again)
    with pytest.raises(TopicChanged, match=topic):
        rig.run(spec, work)
    assert not rig.staged(work, SINK)


# Who may stage


def test_a_try_that_is_no_longer_current_stages_nothing(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(5)))
    spec = spec_of(topic)
    (old,) = rig.begin(spec)
    new = rig.retry(spec)
    with pytest.raises(Fenced, match="slice 0, try 1: try 2 has the slice"):
        rig.run(spec, old)
    assert not rig.staged(old, SINK)
    rig.check(spec, new, rig.run(spec, new))
    with pytest.raises(Fenced, match="the transaction is PREPARED"):
        rig.run(spec, new)
    assert content(rig.staged(new, SINK)) == Counter((0, o, o) for o in range(5))


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
        conn.execute(sql.SQL("drop table {}").format(sql.Identifier("ratchet_stage", other.stages[SINK])))
    with pytest.raises(Fenced, match="slice 1, try 1: the stage is gone, so its epoch is over"):
        rig.run(spec, other)


def test_the_job_function_votes(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(5)))
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    said = process_slice(rig.spark, rig.ledger, spec, work, rig.kafka)
    assert "every slice has voted" in said


# The session


def test_a_session_is_kept_and_its_successor_taken_when_it_is_gone(spark_connect):
    def session():
        return connect_session(spark_connect.spark, "kept", code)

    code = uuid4().hex
    with session() as first:
        assert first.range(3).count() == 3
    with session() as again:
        assert again.session_id == first.session_id
        again.stop()
    with session() as after:
        assert after.range(3).select(F.udf(lambda n: n + 1, "long")("id")).count() == 3
        assert after.session_id != first.session_id
    with session() as last:
        assert last.session_id == after.session_id


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_spark_confirms_the_vectors(session, row):
    from ratchet.spark.checksum import spark_hash

    frame = session.createDataFrame([ROWS[row]], ", ".join(f"{c.name} {c.type}" for c in COLUMNS))
    assert frame.select(spark_hash(COLUMNS)).collect()[0][0] % MODULUS == VECTORS[row]
    assert date(1, 1, 1) in ROWS[3]


def thrice(df):
    """The same records into a sink of each kind."""
    return {SINK: df, "sums": df, "lasts": df}


THRICE = [
    Append(SINK, columns="a int, b string"),
    Accumulate("sums", key="b string", sum="a int", max="a int", count="n"),
    Upsert("lasts", key="b string", columns="a int", order="a"),
]


def test_what_is_recomputed_is_what_was_voted_for_and_another_result_is_named(rig):
    topic = rig.topic(2)
    for partition in (0, 1):
        values = [b'{"a": %d, "b": "%d"}' % (n, n % 3) for n in range(20)]
        rig.send(topic, *values, b"no json", partition=partition)
    spec = spec_of(topic, "thrice", sinks=THRICE, slice_records=15, max_records=1_000)
    for work in rig.begin(spec):
        rig.check(spec, work, rig.run(spec, work))
    assert commit(rig.ledger, spec, rig.claim).txids == (1,)

    def again(work):
        return recompute(rig.spark, spec, work, rig.kafka)

    found = verify.recompute(rig.ledger, spec, again)
    assert (found.checked, found.faults) == (3, ())
    assert [fault for check in verify.verify(rig.ledger, spec) for fault in check.faults] == []
    with rig.ledger.begin() as conn:
        changed = "update ratchet.slices set sinks = jsonb_set(sinks, '{lasts,checksum}', '\"5\"') where slice = 1"
        conn.exec_driver_sql(changed)
    (fault,) = verify.recompute(rig.ledger, spec, again).faults
    assert "transaction 1, slice 1: lasts has" in fault and "with checksum 5, recomputed" in fault
    said: list[str] = []
    other = spec.model_copy(update={"transform": f"{HERE}:every"})
    assert verify.recompute(rig.ledger, other, again, say=said.append).checked == 0
    assert "transaction 1 was committed with code" in said[0]
