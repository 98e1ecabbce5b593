"""Releases by real jobs: dead letters are read from the ledger, when Kafka has them no more, in both lanes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kafka import TopicPartition
from psycopg import sql
from pyspark.sql import functions as F
from typer.testing import CliRunner

from ratchet import Accumulate, Append, Json, Topic, Upsert, cli, command
from ratchet.errors import Fenced, SettingsError
from ratchet.operate import release
from ratchet.operate.verify import verify
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote, load_work
from ratchet.source.letters import Letters, letters_of
from ratchet.spark.servers import Servers
from ratchet.spark.slice import run_slice
from ratchet.spark.trial import failing
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.answers import answer

from .rig import SINK, address, spec_of

COLUMNS = "a int, k binary, h string, sent timestamp"
SINKS = [
    Append(SINK, columns=COLUMNS),
    Accumulate("sums", key="k binary", sum="a int", count="n"),
    Upsert("lasts", key="k binary", columns="a int", order="a"),
]
NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
"""A release asks Kafka for nothing."""
VALUES = [b'{"a": 1}', b'{"a": "2"}', b"no JSON", b'{"a": -4}', None, b'{"a": "6"}', b'{"a": 7}', b'{"a": "x"}', b""]


def over_tables(records: pa.Table) -> dict[str, pa.Table]:
    """What is below zero is given up where `a` is a number; where it is a text, only what is no number."""
    a = records.column("a")
    if pa.types.is_string(a.type):
        wrong = pc.invert(pc.match_substring_regex(a, "^-?[0-9]+$"))
        a = pc.if_else(wrong, pa.scalar("0"), a).cast(pa.int32())
    else:
        wrong = pc.less(a, 0)
    headers = pa.array(
        [
            None if h is None else f"{[(x['key'], x['value']) for x in h]}"
            for h in records.column("_headers").to_pylist()
        ],
        pa.string(),
    )
    rows = records.drop_columns(["a"]).append_column("a", a).append_column("h", headers)
    rows = rows.append_column("k", records.column("_key")).append_column("sent", records.column("_timestamp"))
    good, bad = rows.filter(pc.invert(wrong)), rows.filter(wrong)
    reasons = pa.array(["unfit"] * bad.num_rows, pa.string())
    return {SINK: good, "sums": good, "lasts": good, DEAD_LETTERS: bad.append_column("error", reasons)}


def over_frames(records):
    """The same, over DataFrames."""
    is_text = dict(records.dtypes)["a"] == "string"
    wrong = ~F.col("a").rlike("^-?[0-9]+$") if is_text else F.col("a") < 0
    bad = records.where(wrong).withColumn("error", F.lit("unfit"))
    rows = records.where(~wrong).withColumn("a", F.col("a").cast("int")).withColumn("k", F.col("_key"))
    said = F.concat_ws(";", F.transform("_headers", lambda h: F.concat_ws("=", F.hex(h["key"]), F.hex(h["value"]))))
    rows = rows.withColumn("h", F.when(F.col("_headers").isNotNull(), said)).withColumn("sent", F.col("_timestamp"))
    return {SINK: rows, "sums": rows, "lasts": rows, DEAD_LETTERS: bad}


def commits(rig, spec, works, kafka=None) -> None:
    for work in works:
        cast_vote(
            rig.ledger,
            spec,
            work.token,
            run_slice(rig.spark, spec, work, rig.ledger.url, Servers(kafka) if kafka else rig.servers),
        )
    commit(rig.ledger, spec, rig.claim)


def rows(rig, table: str, *columns: str) -> Counter:
    picked = sql.SQL(", ").join(map(sql.Identifier, columns))
    with psycopg.connect(rig.ledger.url) as conn:
        return Counter(conn.execute(sql.SQL("select {} from {}").format(picked, sql.Identifier(table))).fetchall())


@pytest.fixture
def topic(rig):
    topic = rig.topic(2)
    keys = [b"x", b"y", None, b"\xff\x00", b"x", b"y", b"x", b"", b"z"]
    for partition, headers in (
        (0, [("one", b"\x00\xff"), ("two\x00", b"2"), ("one", b""), ("two\ufffd", b"")]),
        (1, None),
    ):
        rig.send(topic, *VALUES, keys=keys, headers=headers, partition=partition)
    return topic


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("reader", ["columnar", pytest.param("spark", marks=pytest.mark.all)])
@pytest.mark.parametrize("transform", [over_tables, pytest.param(over_frames, marks=pytest.mark.all)])
def test_what_is_released_is_what_kafka_would_have_given(rig, topic, transform, reader):
    was = spec_of(topic, transform, "a int", sinks=SINKS, max_records=700, slice_records=7, reader=reader)
    source = Topic(topic, value=Json("a string"), reader=reader)
    now = was.model_copy(update={"source": source})
    commits(rig, was, rig.begin(was))
    # What today's code makes of all of the topic, in another line.
    other = now.model_copy(
        update={
            "name": "q",
            "sinks": [sink.model_copy(update={"name": f"{sink.name}_q"}) for sink in SINKS],
            "transform": address(renamed[transform]),
        }
    )
    commits(rig, other, rig.begin(other, "other"))
    for partition in (0, 1):
        rig.client.admin.delete_records({TopicPartition(topic, partition): len(VALUES)})
    again = partial(failing, now, ledger_url=rig.ledger.url, endpoints={}, spark=rig.spark)
    (tried,) = release.trials(rig.ledger, now, again, None, None, "")
    assert (tried.letters, tried.good) == (14, 6) and tried.again["unfit"] == 2
    if transform is over_tables:
        assert failing_here(rig, now) == tried.again
    else:
        with pytest.raises(SettingsError, match="p: only Spark can do this, since its transform is over DataFrames"):
            failing_here(rig, now)
    release.ask(rig.ledger, now, None, None, "", "the code was corrected", "amy")
    works = rig.begin(now, "again")
    assert {work.releases for work in works} == {""}
    commits(rig, now, works, NOWHERE)
    place = ("_partition", "_offset")
    kept = rows(rig, SINK, "a", "k", "h", "sent", *place)
    assert kept == rows(rig, f"{SINK}_q", "a", "k", "h", "sent", *place) and len(kept) == 10
    assert rows(rig, "sums", "k", "a_sum", "n") == rows(rig, "sums_q", "k", "a_sum", "n")
    assert rows(rig, "lasts", "k", "a", *place) == rows(rig, "lasts_q", "k", "a", *place)
    with psycopg.connect(rig.ledger.url) as conn:
        dead = 'select partition, "offset", timestamp, key, value, headers::text, error from ratchet.dead_letters'
        mine, others = (Counter(conn.execute(f"{dead} where pipeline = %s", [name])) for name in "pq")
    assert mine == others and len(mine) == 8
    assert [fault for check in verify(rig.ledger, now) for fault in check.faults] == []


def failing_here(rig, spec) -> dict[str, int]:
    """What fails again, without Spark."""
    again = partial(failing, spec, ledger_url=rig.ledger.url, endpoints={}, spark=None)
    return next(iter(release.trials(rig.ledger, spec, again, None, None, ""))).again


def tables_q(records: pa.Table) -> dict[str, pa.Table]:
    return {name if name == DEAD_LETTERS else f"{name}_q": of for name, of in over_tables(records).items()}


def frames_q(records):
    return {name if name == DEAD_LETTERS else f"{name}_q": of for name, of in over_frames(records).items()}


renamed = {over_tables: tables_q, over_frames: frames_q}


@pytest.mark.invariant("I6")
def test_a_job_of_a_release_that_was_begun_anew_writes_nothing(rig, topic):
    spec = spec_of(topic, over_tables, "a int", sinks=SINKS)
    commits(rig, spec, rig.begin(spec))
    release.ask(rig.ledger, spec, None, None, "", "a table was corrected", "amy")
    (old,) = rig.begin(spec, "again")
    new = rig.retry(spec)
    with pytest.raises(Fenced, match="try 2 has the slice"):
        run_slice(rig.spark, spec, old, rig.ledger.url, Servers(NOWHERE))
    # A submitted driver finds by its token what it has to read.
    assert load_work(rig.ledger, spec, new.token).releases == ""
    commits(rig, spec, [new], NOWHERE)
    assert [fault for check in verify(rig.ledger, spec) for fault in check.faults] == []


def test_letters_are_read_in_order_in_batches_and_only_those_of_the_ranges(rig, topic, monkeypatch):
    spec = spec_of(topic, over_tables, "a int", sinks=SINKS)
    commits(rig, spec, rig.begin(spec))
    release.ask(rig.ledger, spec, None, None, "", "to look at them", "amy")
    (work,) = rig.begin(spec, "again")
    letters = letters_of(work, rig.ledger.url)
    assert isinstance(letters, Letters) and rig.ledger.url not in repr(letters)
    monkeypatch.setattr("ratchet.source.letters._ROWS", 3)
    batches = list(letters.read(work.ranges))
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 3, 2]
    found = [(row["_partition"], row["_offset"]) for batch in batches for row in batch.to_pylist()]
    assert found == sorted(found) == [(p, o) for p in (0, 1) for o in (1, 2, 3, 4, 5, 7, 8)]
    (only,) = [r for r in work.ranges if r.partition == 1]
    assert sum(batch.num_rows for batch in letters.read([only])) == 7


def test_the_command_tries_a_release_and_asks_for_it(rig, topic, monkeypatch, tmp_path):
    spec = spec_of(topic, None, "a int", sinks=[Append(SINK, columns="a int")])
    commits(rig, spec, rig.begin(spec))
    (tmp_path / "released").mkdir()
    (tmp_path / "released" / "__init__.py").touch()
    (tmp_path / "released" / "p.py").write_text(
        f"from ratchet import *\nPIPELINE = Pipeline(name='p', source=Topic({topic!r}, value=Json('a int')), "
        f"sinks=[Append({SINK!r}, columns='a int')])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named = {"RATCHET_PIPELINES": "released", "RATCHET_LEDGER_URL": rig.ledger.url, "RATCHET_SPARK": ""}
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    command.variables.cache_clear()
    done = CliRunner().invoke(cli.app, ["release", "p", "--dry-run"])
    assert done.exit_code == 0, done.exception
    first, *errors, last = done.stdout.splitlines()
    assert first == "transaction 1: of 12 dead letters 0 would take effect"
    assert "    2 would be dead letters again: no value (a tombstone)" in errors and last.startswith(
        "this was a dry run"
    )
    done = CliRunner().invoke(cli.app, ["release", "p", "--dry-run", "--json", "--error", "tombstone"])
    assert answer("release", done.stdout) == [
        {"txid": 1, "letters": 2, "again": {"no value (a tombstone)": 2}, "fails": None}
    ]
    done = CliRunner().invoke(cli.app, ["release", "p", "--reason", "they can be read now", "--json"])
    assert answer("release", done.stdout)["letters"] == {"1": 12}
