"""`ratchet.testing` beside a real job: the same rows and dead letters, for every kind of transform."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

from ratchet import Append, Sql
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.testing import TIME, Record, check, run

from .rig import SINK, spec_of

COLUMNS = "a int, b string, d decimal(10,2), at timestamp, more json, tags map<string, int>, s struct<x: int>"


def over_tables(records: pa.Table) -> dict[str, pa.Table]:
    bad = pc.fill_null(pc.equal(records.column("a"), 2), False)
    reasons = records.append_column("error", pa.array(["two"] * len(records)))
    return {SINK: records.filter(pc.invert(bad)), DEAD_LETTERS: reasons.filter(bad)}


def over_frames(df):
    bad = F.coalesce(F.col("a") == 2, F.lit(False))
    return {SINK: df.where(~bad), DEAD_LETTERS: df.where(bad).withColumn("error", F.lit("two"))}


VALUES = [
    {"a": 1, "b": "x", "d": 1.5, "at": "2024-05-01T10:00:00.25Z", "more": {"n": 1.50}, "tags": {"u": 1}, "s": {"x": 1}},
    {"a": 2, "b": "y"},
    {"a": None, "tags": {}, "s": {"x": None}, "more": [1]},
    {"a": 4, "d": 1.005},
]


IN_SQL = Sql(
    {
        SINK: "select * from records where not coalesce(a = 2, false)",
        DEAD_LETTERS: "select 'two' as error from records where a = 2",
    }
)


@pytest.mark.parametrize("transform", [None, over_tables, over_frames, IN_SQL])
def test_what_a_test_is_shown_is_what_a_job_writes(rig, transform):
    sent = [*(json.dumps(value).encode() for value in VALUES), b"{", None]
    topic = rig.topic()
    spec = spec_of(topic, transform, value=COLUMNS, sinks=[Append(SINK, columns=COLUMNS)])
    given = [*VALUES, b"{", None]
    shown = check(spec, given, spark=rig.spark if transform in (over_frames, IN_SQL) else None)
    rig.send(topic, *sent, keys=[b"k"] * len(sent))
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    dead = {row["_offset"]: row["error"] for row in rig.written(work, DEAD_LETTERS)}
    assert shown.dead_letters == dead
    assert dead.get(1) == ("two" if transform else None)
    rows = sorted(rig.written(work, SINK), key=lambda row: row["_offset"])

    def seen(row: dict) -> dict:
        # A job's rows are read with the text of documents.
        return {n: json.loads(v) if n in ("more", "tags", "s") and isinstance(v, str) else v for n, v in row.items()}

    wanted = [{name: row[name] for name in shown[SINK][0]} for row in map(seen, rows)]
    assert shown[SINK] == wanted


def sees_others(df):
    return {SINK: df.withColumn("a", F.lit(df.count()))}


def ages(df):
    return {SINK: df.withColumn("b", F.col("_txn_time").cast("string"))}


def test_frames_are_checked_as_tables_are(session):
    with pytest.raises(
        AssertionError, match="record 0 .*: beside all others it gives .*'a': 2.*, and beside every second one .*'a': 1"
    ):
        check(spec_of("t", sees_others, value="a bigint"), [{"a": 1}, {"a": 2}], spark=session)
    spec = spec_of("t", ages)
    (row,) = run(spec, [Record({"a": 1})], txn_time=TIME.replace(hour=5), spark=session)[SINK]
    assert row == {"a": 1, "b": "2024-01-01 05:00:00"}
