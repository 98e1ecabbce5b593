"""What a transform returns: staged exactly and in every type, or refused with what is wrong, and nothing is staged."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from ratchet import Accumulate, Append, Refused, Upsert
from ratchet.errors import IncompleteRead, TransformError
from ratchet.sinks.checksum import row_hash
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.unit.test_checksum import COLUMNS, ROWS, VECTORS

from .rig import SINK, numbered, positions, spec_of


def as_declared(df):
    """Rows of every type, by the number in the record."""
    of = df.sparkSession.createDataFrame(ROWS, ", ".join(f"{c.name} {c.type}" for c in COLUMNS))
    numbered_rows = of.coalesce(1).withColumn("row", F.monotonically_increasing_id())
    return {SINK: df.join(F.broadcast(numbered_rows), F.col("a") == F.col("row"))}


def test_every_type_arrives_exactly_and_its_checksum_is_the_vector(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(len(ROWS))))
    declared = ", ".join(f"{c.name} {c.type}" for c in COLUMNS)
    spec = spec_of(topic, as_declared, value="a int", sinks=[Append(SINK, columns=declared)])
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    rows = sorted(rig.written(work, SINK), key=lambda r: r["_offset"])
    assert [row_hash(COLUMNS, [r[c.name] for c in COLUMNS]) for r in rows] == VECTORS
    exact = [i for i, c in enumerate(COLUMNS) if not c.floating]
    assert [[r[COLUMNS[i].name] for i in exact] for r in rows] == [[row[i] for i in exact] for row in ROWS]
    rig.check(spec, work, vote)


def three_views(df):
    good = df.where("d >= 0")
    return {
        SINK: good,
        "totals": good.where("g is not null"),
        "latest": good.withColumn("w", F.col("d")),
        DEAD_LETTERS: df.where("d < 0").withColumn("error", F.lit("below zero")),
    }


@pytest.mark.invariant("I1")
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
        three_views,
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
    assert {(r["_partition"], r["_offset"]): r["d"] for r in rig.written(work, SINK)} == {
        k: v["d"] for k, v in sent.items()
    }
    # A key may come out of several tasks; the fold groups what is staged once more.
    totals: dict = {}
    for part in rig.written(work, "totals"):
        totals.setdefault(part["g"], []).append(part)
    assert totals.keys() == {0, 1, 2}
    for g, parts in totals.items():
        mine = [r for r in sent.values() if r["g"] == g]
        assert sum(part["d_sum"] for part in parts) == sum(r["d"] for r in mine)
        assert [sum(part[c] for part in parts) for c in ("o_sum", "n")] == [sum(r["o"] for r in mine), len(mine)]
        assert min(part["o_min"] for part in parts) == min(r["o"] for r in mine)
        assert max(part["d_max"] for part in parts) == max(r["d"] for r in mine)
    latest: dict = {}
    for row in sorted(rig.written(work, "latest"), key=lambda r: (r["o"], r["_offset"], r["_partition"])):
        latest[row["g"]] = (row["_partition"], row["_offset"])
    by_order = {
        g: max((at for at in sent if sent[at]["g"] == g), key=lambda at: (sent[at]["o"], at[1], at[0]))
        for g in (None, 0, 1, 2)
    }
    assert latest == by_order
    assert positions(rig.written(work, DEAD_LETTERS)) == Counter(below)


def twice(df):
    return {SINK: df.withColumn("_n", F.explode(F.array(F.lit(0), F.lit(1))))}


def united(df):
    return {SINK: df.withColumn("_n", F.lit(0)).unionByName(df.withColumn("_n", F.lit(1)))}


@pytest.mark.parametrize("transform", [twice, united])
def test_several_rows_of_a_record_do_not_count_it_twice(rig, transform):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)), b"bad")
    spec = spec_of(topic, transform, value="a int")
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert (vote.records, vote.dead_letters) == (11, 1)
    assert positions(rig.written(work, SINK)) == Counter({(0, o): 2 for o in range(10)})
    rig.check(spec, work, vote)


def nothing(df):
    return {SINK: df.where(F.lit(False))}


def aggregated_away(df):
    return {SINK: df.join(df.select(F.col("a").alias("x")).where("false"), F.col("a") == F.col("x"))}


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("transform", [nothing, aggregated_away])
def test_what_is_dropped_is_read_all_the_same(rig, transform):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)), b"bad")
    spec = spec_of(topic, transform, value="a int")
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert (vote.records, vote.sinks[SINK].rows) == (11, 0)
    assert positions(rig.written(work, DEAD_LETTERS)) == Counter([(0, 10)])
    rig.check(spec, work, vote)


def limited(df):
    return {SINK: df.limit(3)}


@pytest.mark.invariant("I1")
def test_a_limit_does_not_pass_for_a_read(rig):
    """Spark stops reading where a limit is reached: either that is refused, or all records were read anyway."""
    topic = rig.topic()
    rig.send(topic, *numbered(range(30_000)), b"bad")
    spec = spec_of(topic, limited, value="a int")
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
        (returns_a_frame, "DataFrame"),
        (returns_another_sink, "rowz"),
        (returns_too_few, SINK),
        (returns_a_number, "int"),
        (loses_a_column, "'b'"),
        (loses_the_offset, "_offset"),
        (changes_a_type, "bigint"),
        (names_no_column, "nowhere"),
        (raises, "the transform's own words"),
        (fails_late, "the row's own words"),
        (divides_by_zero, "DIVIDE_BY_ZERO"),
        (python_fails, "ZeroDivisionError"),
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
    assert not rig.written(work, SINK)


def refuses(df):
    raise Refused("the rates are\nnot in yet")


def refuses_on_a_worker(df):
    @F.udf("int")
    def refuse(a):
        raise Refused("the rates are\nnot in yet")

    return {SINK: df.withColumn("a", refuse("a"))}


@pytest.mark.parametrize("transform", [refuses, refuses_on_a_worker])
def test_a_transform_that_refuses_gives_its_reason_and_nothing_else(rig, transform):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic, transform)
    (work,) = rig.begin(spec)
    with pytest.raises(Refused) as raised:
        rig.run(spec, work)
    assert str(raised.value) == "the rates are\nnot in yet"
    assert not rig.written(work, SINK)


def null_where_it_must_not_be(df):
    return {SINK: df.withColumn("a", F.when(F.col("a") != 2, F.col("a")))}


def test_a_null_in_a_not_null_column_is_named(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(4)))
    spec = spec_of(topic, null_where_it_must_not_be, value="a int not null")
    (work,) = rig.begin(spec)
    with pytest.raises(TransformError, match=f"^p: transaction 1, slice 0, try 1: sink '{SINK}': column a is declared"):
        rig.run(spec, work)
    assert not rig.written(work, SINK)


def of_another_slice(df):
    return {"totals": df.withColumn("_offset", F.col("_offset") + F.when(F.col("a") == 2, 4711).otherwise(0))}


def of_another_partition(df):
    return {"totals": df.withColumn("_partition", F.col("_partition") + 1)}


def of_nowhere(df):
    return {"totals": df.withColumn("_offset", F.lit(None).cast("bigint"))}


SUMS = Accumulate("totals", key="b string", count="n")
LAST_ROWS = Upsert("totals", key="a int", columns="b string", order="b")
FOREIGN = {
    of_another_slice: "totals: partition 0, offset 4713 is not of this slice",
    of_another_partition: "totals: partition 1, offset 0 is not of this slice",
    of_nowhere: "totals: a row without a position is not of this slice",
}


@pytest.mark.parametrize(
    ("transform", "sink"),
    [
        (of_another_slice, SUMS),
        (of_another_partition, LAST_ROWS),
        (of_nowhere, SUMS),
        pytest.param(of_another_slice, LAST_ROWS, marks=pytest.mark.all),
        pytest.param(of_another_partition, SUMS, marks=pytest.mark.all),
        pytest.param(of_nowhere, LAST_ROWS, marks=pytest.mark.all),
    ],
)
def test_a_row_of_another_slice_is_not_combined(rig, transform, sink):
    """A sum, or a key's last row, leaves nothing behind by which the vote could tell."""
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic, transform, sinks=[sink])
    (work,) = rig.begin(spec)
    with pytest.raises(TransformError, match=FOREIGN[transform]):
        rig.run(spec, work)
    assert not rig.written(work, "totals")


def holds_a_nul(df):
    return {SINK: df.withColumn("b", F.concat(F.lit("x"), F.decode(F.unhex(F.lit("00")), "UTF-8")))}


def test_a_value_that_postgresql_cannot_hold_is_final_and_names_the_sink(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)))
    spec = spec_of(topic, holds_a_nul)
    (work,) = rig.begin(spec)
    with pytest.raises(TransformError, match=f"sink '{SINK}': PostgreSQL cannot hold a value: .*0x00"):
        rig.run(spec, work)
    assert not rig.written(work, SINK)
