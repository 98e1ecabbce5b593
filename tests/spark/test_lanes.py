"""Both lanes: a transform over Arrow tables, one over DataFrames and none give the same of the same records."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from structlog.testing import capture_logs

from ratchet import Accumulate, Append, Pipeline, Refused, Topic, Upsert
from ratchet.errors import TransformError
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.formats.lines import Lines
from tests.kafka.test_kafka import Transaction
from tests.until import until

from .rig import SINK, content, numbered, positions, spec_of

SINKS = [
    Append(SINK, columns="a int, b string"),
    Accumulate("sums", key="b string", sum="a int", max="a int", count="n"),
    Upsert("lasts", key="b string", columns="a int", order="a"),
]


def tables(df: pa.Table) -> dict[str, pa.Table]:
    """Three sinks; what is negative is given up."""
    bad = pc.fill_null(pc.less(df.column("a"), 0), False)
    good = df.filter(pc.invert(bad))
    given_up = df.filter(bad)
    reasons = pa.array(["below zero"] * given_up.num_rows, pa.string())
    return {SINK: good, "sums": good, "lasts": good, DEAD_LETTERS: given_up.append_column("error", reasons)}


def frames(df: DataFrame) -> dict[str, DataFrame]:
    """The same, over DataFrames."""
    bad = F.coalesce(F.col("a") < 0, F.lit(False))
    good = df.where(~bad)
    return {
        SINK: good,
        "sums": good,
        "lasts": good,
        DEAD_LETTERS: df.where(bad).withColumn("error", F.lit("below zero")),
    }


def merged(rig, work) -> dict:
    """What a slice has staged, one row a key."""
    sums: dict = {}
    for r in rig.written(work, "sums"):
        total, most, count = sums.get(r["b"], (0, None, 0))
        most = max((m for m in (most, r["a_max"]) if m is not None), default=None)
        sums[r["b"]] = (total + (r["a_sum"] or 0), most, count + r["n"])
    lasts: dict = {}
    order = [r for r in rig.written(work, "lasts")]
    for r in sorted(order, key=lambda r: (r["a"] is not None, r["a"] or 0, r["_offset"], r["_partition"])):
        lasts[r["b"]] = (r["a"], r["_partition"], r["_offset"])
    dead = sorted((r["_partition"], r["_offset"], r["value"], r["error"]) for r in rig.written(work, DEAD_LETTERS))
    return {"rows": content(rig.written(work, SINK)), "sums": sums, "lasts": lasts, "dead": dead}


@pytest.fixture
def topic(rig):
    """Two partitions with good records, aborted ones, tombstones and junk."""
    topic = rig.topic(2)
    for partition in (0, 1):
        rig.send(topic, *(b'{"a": %d, "b": "%d"}' % (n - 3, n % 5) for n in range(60)), partition=partition)
        rig.send(topic, b"no json", None, b'{"a": null}', keys=[b"k"] * 3, partition=partition)
    Transaction(rig.kafka, topic, numbered(range(5))).end(False)
    until("the end of the aborted transaction is there", lambda: rig.client.offsets(topic).stable[0] == 69)
    return topic


@pytest.mark.parametrize(
    ("transform", "reader"),
    [
        (tables, "columnar"),
        (frames, "spark"),
        pytest.param(tables, "spark", marks=pytest.mark.all),
        pytest.param(frames, "columnar", marks=pytest.mark.all),
    ],
)
def test_both_lanes_and_both_sources_give_the_same(rig, topic, transform, reader):
    spec = spec_of(topic, transform, sinks=SINKS, reader=reader)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert vote.records == 126
    found = merged(rig, work)
    rig.check(spec, work, vote)
    sent = [(p, n, n - 3, str(n % 5)) for p in (0, 1) for n in range(3, 60)]
    assert found["rows"] == Counter([(p, o, a) for p, o, a, _ in sent] + [(p, 62, None) for p in (0, 1)])
    for b in map(str, range(5)):
        mine = [a for _, _, a, key in sent if key == b]
        assert found["sums"][b] == (sum(mine), max(mine), len(mine))
        assert found["lasts"][b][0] == max(mine)
    assert found["sums"][None] == (0, None, 2)
    below = [(p, n, "below zero") for p in (0, 1) for n in range(3)]
    assert [(p, o, e) for p, o, _, e in found["dead"] if e == "below zero"] == below
    assert [(p, o) for p, o, _, _ in found["dead"]] == sorted([(p, n) for p in (0, 1) for n in (0, 1, 2, 60, 61)])


@pytest.mark.parametrize("transform", [None, pytest.param(frames, marks=pytest.mark.all)])
def test_a_connection_that_the_columnar_source_cannot_use_is_read_by_spark(rig, topic, transform):
    """The range ends in aborted records: which of its offsets were read is judged as for Spark's source."""
    rig.kafka = {**rig.kafka, "client.dns.lookup": "resolve_canonical_bootstrap_servers_only"}
    spec = spec_of(topic, transform, sinks=SINKS)
    (work,) = rig.begin(spec)
    with capture_logs() as logged:
        vote = rig.run(spec, work)
    assert vote.records == 126 and vote.reached == {0: 69, 1: 63}
    (said,) = [line["event"] for line in logged if line["log_level"] == "warning"]
    assert "read by Spark's Kafka source" in said and "client.dns.lookup=" in said
    good = 60 if transform is None else 57
    assert len(rig.written(work, SINK)) == 2 * (good + 1)
    rig.check(spec, work, vote)


def test_without_a_transform_each_sink_takes_the_columns_of_its_names(rig, topic):
    spec = spec_of(topic, None, sinks=SINKS)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    rig.check(spec, work, vote)
    wanted = [(p, n, n - 3) for p in (0, 1) for n in range(60)] + [(p, 62, None) for p in (0, 1)]
    assert content(rig.written(work, SINK)) == Counter(wanted)
    assert positions(rig.written(work, DEAD_LETTERS)) == Counter([(p, o) for p in (0, 1) for o in (60, 61)])


def raises(df: pa.Table) -> dict[str, pa.Table]:
    raise ValueError("the transform's own words")


def refuses(df: pa.Table) -> dict[str, pa.Table]:
    raise Refused("these records are no good")


def loses_a_column(df: pa.Table) -> dict[str, pa.Table]:
    return {SINK: df.drop_columns(["b"])}


def loses_the_offset(df: pa.Table) -> dict[str, pa.Table]:
    return {SINK: df.drop_columns(["_offset"])}


def changes_a_type(df: pa.Table) -> dict[str, pa.Table]:
    return {SINK: df.set_column(df.schema.get_field_index("a"), "a", df.column("a").cast(pa.int64()))}


def returns_another_sink(df: pa.Table) -> dict[str, pa.Table]:
    return {SINK: df, "rowz": df}


def returns_a_batch(df: pa.Table) -> dict[str, object]:
    return {SINK: 5}


@pytest.mark.parametrize(
    ("transform", "error", "said"),
    [
        (raises, TransformError, "raises raised ValueError: the transform's own words"),
        (refuses, Refused, "these records are no good"),
        (loses_a_column, TransformError, "'b' is declared"),
        (loses_the_offset, TransformError, "hidden column _offset"),
        (changes_a_type, TransformError, "is declared int, and .* returned bigint"),
        (returns_another_sink, TransformError, "rowz"),
        (returns_a_batch, TransformError, "int for sink 'rows', not a Table"),
    ],
)
def test_what_a_transform_over_tables_does_wrong_is_said(rig, transform, error, said):
    topic = rig.topic()
    rig.send(topic, *numbered(range(5)))
    spec = spec_of(topic, transform)
    (work,) = rig.begin(spec)
    with pytest.raises(error, match=said):
        rig.run(spec, work)
    assert rig.written(work, SINK) == []


def twice(df: pa.Table) -> dict[str, pa.Table]:
    """Two rows of each record, numbered."""
    parts = [df.drop_columns(["_n"]).append_column("_n", pa.array([n] * df.num_rows, pa.int32())) for n in (0, 1)]
    return {SINK: pa.concat_tables(parts)}


def test_several_rows_of_a_record_do_not_count_it_twice(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)), b"bad")
    spec = spec_of(topic, twice)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert (vote.records, vote.dead_letters) == (11, 1)
    assert positions(rig.written(work, SINK)) == Counter({(0, o): 2 for o in range(10)})
    rig.check(spec, work, vote)


def test_a_worker_reads_the_format_that_a_spec_names(rig):
    topic = rig.topic()
    rig.send(topic, b"one\ntwo", b"\xff", b"")
    sinks = [Append(SINK, columns="line string")]
    spec = Pipeline(name="p", source=Topic(topic, value=Lines("line string not null")), sinks=sinks)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert (vote.records, vote.dead_letters) == (3, 1)
    rows = sorted((r["_offset"], r["_n"], r["line"]) for r in rig.written(work, SINK))
    assert rows == [(0, 0, "one"), (0, 1, "two")]
    rig.check(spec, work, vote)
