"""`ratchet preview` shows what a slice of the same records writes, on either engine, and writes nothing."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F
from typer.testing import CliRunner

from ratchet import Accumulate, Append, Sql, cli, command
from ratchet.errors import RecordsLost, SettingsError, TopicChanged, TransformError
from ratchet.operate.excerpt import next_records, records_at
from ratchet.operate.migrate import migrate
from ratchet.spark.preview import preview
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.answers import answer
from tests.ledger.test_upcoming import everything

from .rig import SINK, numbered, spec_of

VALUES = [b'{"a": 1, "b": "x"}', b"no JSON", b'{"a": -2, "b": null}', b'{"a": 3, "b": "\\u001b[31mred"}', None]
SINKS = [
    Append(SINK, columns="a int, b string"),
    Accumulate("totals", key="b string", sum="a int", count="n"),
]


def over_tables(records: pa.Table) -> dict[str, pa.Table]:
    good = records.filter(pc.greater(records["a"], 0))
    bad = records.filter(pc.less_equal(records["a"], 0))
    return {
        SINK: good,
        "totals": good,
        DEAD_LETTERS: bad.append_column("error", pa.array(["not above zero"] * len(bad), pa.string())),
    }


def over_frames(records):
    good = records.where("a > 0")
    bad = records.where("a <= 0").withColumn("error", F.lit("not above zero"))
    return {SINK: good, "totals": good, DEAD_LETTERS: bad}


IN_SQL = Sql(
    {
        SINK: "select * from records where a > 0",
        "totals": "select * from records where a > 0",
        DEAD_LETTERS: "select 'not above zero' as error from records where a <= 0",
    }
)


def look(rig, spec, spark=None, most=10):
    migrate(rig.ledger.url, [spec])
    before = everything(rig.ledger)
    work = next_records(rig.ledger, spec, rig.client.offsets(spec.source.name), most)
    found = preview(spec, work, rig.servers, spark)
    assert everything(rig.ledger) == before
    return found


def rows(found, sink) -> list[tuple]:
    """(partition, offset, the sink's own values) of each row."""
    hidden = {"_partition", "_offset", "_n"}
    own = [sorted((c, repr(v)) for c, v in row.items() if c not in hidden) for row in found.sinks[sink]]
    return [(r["_partition"], r["_offset"], of) for r, of in zip(found.sinks[sink], own, strict=True)]


@pytest.mark.parametrize("transform", [None, over_tables, over_frames, IN_SQL])
def test_it_shows_what_a_slice_of_the_same_records_writes(rig, transform):
    topic = rig.topic(2)
    rig.send(topic, *VALUES[:4])
    rig.send(topic, *VALUES[:3], partition=1)
    spec = spec_of(topic, transform, sinks=SINKS if transform else SINKS[:1])
    by_spark = look(rig, spec, rig.spark)
    if transform in (over_frames, IN_SQL):
        with pytest.raises(
            SettingsError, match="only Spark can do this, since its transform is (over DataFrames|in SQL)"
        ):
            look(rig, spec)
    else:
        here = look(rig, spec)
        assert here.engine == "this process" and here.ranges == by_spark.ranges
        for sink in here.sinks:
            assert rows(here, sink) == rows(by_spark, sink), sink
    (work,) = rig.begin(spec)
    assert sorted(work.ranges) == sorted(by_spark.ranges)
    rig.check(spec, work, rig.run(spec, work))
    written = sorted((r["_partition"], r["_offset"], r["a"], r["b"]) for r in rig.written(work, SINK))
    shown = by_spark.sinks[SINK]
    assert [(r["_partition"], r["_offset"], r["a"], r["b"]) for r in shown] == written
    dead = sorted((r["_partition"], r["_offset"], r["error"], r["value"]) for r in rig.written(work, DEAD_LETTERS))
    letters = [(r["_partition"], r["_offset"], r["error"], bytes(r["value"])) for r in by_spark.sinks[DEAD_LETTERS]]
    assert letters == [(p, o, e, bytes(v)) for p, o, e, v in dead] and len(letters) == (2 if transform is None else 4)


def test_the_next_records_follow_what_is_planned_and_any_others_are_named(rig):
    topic = rig.topic(2)
    rig.send(topic, *numbered(range(30)))
    spec = spec_of(topic, None, "a int", max_records=12)
    assert [len(r) for r in look(rig, spec, most=7).ranges] == [7]
    rig.begin(spec)
    found = look(rig, spec, most=3)
    assert [row["a"] for row in found.sinks[SINK]] == [12, 13, 14]
    rig.client.admin.delete_records({_place(topic, 0): 20})
    offsets = rig.client.offsets(topic)
    with pytest.raises(RecordsLost, match="retention has deleted"):
        next_records(rig.ledger, spec, offsets, 3)
    work = records_at(spec, offsets, 0, 28, 10)
    assert [row["a"] for row in preview(spec, work, rig.servers, None).sinks[SINK]] == [28, 29]
    for partition, offset, said in ((0, 5, "begins at offset 20 now"), (0, 30, "up to offset 30"), (7, 0, "0, 1")):
        with pytest.raises((SettingsError, RecordsLost), match=said):
            records_at(spec, offsets, partition, offset, 1)
    rig.client.admin.delete_topics([topic])
    rig.client.close()
    rig.client.admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
    with pytest.raises(TopicChanged, match="--partition and --offset"):
        next_records(rig.ledger, spec, rig.client.offsets(topic), 3)


def _place(topic, partition):
    from kafka import TopicPartition

    return TopicPartition(topic, partition)


def test_a_topic_without_records_gives_nothing(rig):
    found = look(rig, spec_of(rig.topic(), None, "a int"))
    assert found.ranges == () and found.sinks == {SINK: (), DEAD_LETTERS: ()}


def test_a_private_pipeline_shows_places_and_no_values(rig):
    topic = rig.topic()
    rig.send(topic, b'{"a": 4711, "b": null}', b"secret")
    spec = spec_of(topic, None, private=True)
    for spark in (None, rig.spark):
        found = look(rig, spec, spark)
        assert found.sinks[SINK][0] == {"a": "[private]", "b": None, "_partition": 0, "_offset": 0, "_n": 0}
        assert "secret" not in repr(found) and "4711" not in repr(found)


def broken(records: pa.Table) -> dict[str, pa.Table]:
    raise ValueError("no such column")


def test_a_transform_that_fails_says_why(rig):
    topic = rig.topic()
    rig.send(topic, *VALUES[:1])
    for spark in (None, rig.spark):
        with pytest.raises(TransformError, match="no such column"):
            look(rig, spec_of(topic, broken), spark)


def test_the_command_prints_a_table_for_each_sink_and_nothing_that_a_terminal_obeys(rig, monkeypatch, tmp_path):
    topic = rig.topic()
    rig.send(topic, *VALUES, keys=[b"k"] * 5)
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "__init__.py").touch()
    (tmp_path / "seen" / "p.py").write_text(
        "from ratchet import *\nfrom ratchet import Upsert\n"
        f"PIPELINE = Pipeline(name='p', source=Topic({topic!r}, key='k string', value=Json('a int, b string')), "
        "sinks=[Append('rows', columns='a int, b string'), "
        "Upsert('last', key='k string', columns='a int')])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {
        "RATCHET_PIPELINES": "seen",
        "RATCHET_LEDGER_URL": rig.ledger.url,
        "RATCHET_KAFKA": json.dumps(rig.kafka),
        "RATCHET_SPARK": "",
        "COLUMNS": "120",
    }.items():
        monkeypatch.setenv(name, value)
    command.variables.cache_clear()
    assert CliRunner().invoke(cli.app, ["migrate"]).exit_code == 0
    done = CliRunner().invoke(cli.app, ["preview", "p"])
    assert done.exit_code == 0, done.exception
    assert done.stdout.startswith(f"p: 5 offsets, {topic}-0[0,5), by this process\n")
    assert "\\x1b[31mred" in done.stdout and "\x1b[31m" not in done.stdout
    assert "rows: 3 rows" in done.stdout and "dead_letters: 2 rows" in done.stdout
    said = answer("preview", CliRunner().invoke(cli.app, ["preview", "p", "--records", "2", "--json"]).stdout)
    assert said["ranges"] == [{"topic": topic, "partition": 0, "from_offset": 0, "until_offset": 2}]
    assert said["sinks"]["rows"] == [{"a": 1, "b": "x", "_partition": 0, "_offset": 0, "_n": 0}]
    assert said["sinks"]["dead_letters"][0]["value"] == "no JSON"
    assert "JSON" in said["sinks"]["dead_letters"][0]["error"]
    assert CliRunner().invoke(cli.app, ["preview", "p", "--partition", "0"]).exit_code == 2
    done = CliRunner().invoke(cli.app, ["preview", "p", "--partition", "0", "--offset", "3"])
    assert done.stdout.splitlines()[1].strip() == "rows: 1 row", done.stdout
