"""Declared types and the record's own parts, from Kafka through a DataFrame into the tables and through `verify`."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from pyspark.sql import functions as F

from ratchet import Accumulate, Append, Json, Upsert
from ratchet.errors import TransformError
from ratchet.operate import verify
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote
from ratchet.spark.slice import recompute
from ratchet.spec.pipeline import DEAD_LETTERS

from .rig import SINK, numbered, positions, spec_of

ALL = (
    "j json, o struct<price: decimal(12,2), at: timestamp, tags: array<string>>, m map<string, double>, l array<int>, "
    "ld array<decimal(5,2)>, lu array<uuid>, ti time, u uuid, lt array<time>, s string"
)
SENT = (
    b'{"j": {"b": 1.50, "aa": [1e2, "x"], "a": null}, "o": {"price": 5.1, "at": "2024-05-01T10:00Z", "tags":'
    b' ["x", null]}'
    b', "m": {"zz": 1.0, "a": 0.1}, "l": [1, null, 3], "ld": [1.5], "lu": ["550E8400E29B41D4A716446655440000"],'
    b' "ti": "07:30", "u": "550E8400-E29B-41D4-A716-446655440000", "lt": ["07:30"], "s": {"n": 5.10}}'
)


def read_back(spec, rig):
    return verify.recompute(rig.ledger, spec, lambda work: recompute(rig.spark, spec, work, rig.servers))


def test_every_type_is_staged_committed_and_verified(rig):
    topic = rig.topic()
    rig.send(topic, SENT, b"{}", b'{"j": "\\u0000"}')
    spec = spec_of(topic, value=ALL)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    first, second = sorted(rig.written(work, SINK), key=lambda r: r["_offset"])
    uuid = UUID("550e8400-e29b-41d4-a716-446655440000")
    assert first["j"] == '{"a": null, "b": 1.50, "aa": [100, "x"]}'
    assert first["o"] == '{"at": "2024-05-01T10:00:00+00:00", "tags": ["x", null], "price": 5.10}'
    assert first["m"] == '{"a": 0.1, "zz": 1.0}'
    assert (first["l"], first["ld"], first["lt"]) == ([1, None, 3], [Decimal("1.50")], [time(7, 30)])
    assert (first["lu"], first["ti"], first["u"], first["s"]) == (f'["{uuid}"]', time(7, 30), uuid, '{"n": 5.10}')
    assert [second[c.name] for c in spec.sink(SINK).fields] == [None] * 10
    assert positions(rig.written(work, DEAD_LETTERS)) == Counter([(0, 2)])
    rig.check(spec, work, vote)
    assert commit(rig.ledger, spec, rig.claim).txids == (1,)
    assert [fault for check in verify.verify(rig.ledger, spec) for fault in check.faults] == []
    assert (read_back(spec, rig).checked, read_back(spec, rig).faults) == (1, ())
    # What migrate made, it finds to fit.
    migrate(rig.ledger.url, [spec])


def in_other_forms(df):
    return {
        SINK: df.select(
            F.concat(F.lit('{"b":'), F.col("a").cast("string"), F.lit(', "a": 1e1}')).alias("j"),
            F.upper(F.lit("550e8400e29b41d4a716446655440000")).alias("u"),
            F.lit("07:30").alias("ti"),
            F.create_map(F.lit("k"), F.array(F.col("a"))).alias("m"),
            "_partition",
            "_offset",
        )
    }


def test_what_a_transform_makes_is_staged_in_its_one_form(rig):
    topic = rig.topic()
    rig.send(topic, *numbered([7]))
    columns = "j json, u uuid, ti time, m map<string, array<int>>"
    spec = spec_of(topic, in_other_forms, value="a int", sinks=[Append(SINK, columns=columns)])
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    (row,) = rig.written(work, SINK)
    assert (row["j"], row["m"], row["ti"]) == ('{"a": 10, "b": 7}', '{"k": [7]}', time(7, 30))
    rig.check(spec, work, vote)


def no_json(df):
    return {SINK: df.withColumn("j", F.lit("{no json"))}


def no_uuid(df):
    return {SINK: df.withColumn("u", F.lit("zz"))}


@pytest.mark.parametrize(
    ("transform", "column", "said"),
    [
        (no_json, "j json", "sink 'rows': column j: found {no json, wanted json"),
        (no_uuid, "u uuid", "sink 'rows': column u: found zz, wanted uuid"),
    ],
)
def test_a_value_of_a_transform_that_is_none_of_its_type_is_named(rig, transform, column, said):
    topic = rig.topic()
    rig.send(topic, *numbered([7]))
    spec = spec_of(topic, transform, value="a int", sinks=[Append(SINK, columns=column)])
    (work,) = rig.begin(spec)
    with pytest.raises(TransformError, match=said):
        rig.run(spec, work)


def into_keyed(df):
    return {"counts": df, "latest": df}


def test_uuids_and_times_are_keys_and_documents_are_values(rig):
    topic = rig.topic()
    rig.send(
        topic,
        b'{"u": "550E8400E29B41D4A716446655440000", "ti": "07:30", "j": {"b": 1, "a": 2}, "o": 1}',
        b'{"u": "550e8400-e29b-41d4-a716-446655440000", "ti": "08:30:00.5", "j": [1.0], "o": 2}',
    )
    sinks = [
        Accumulate("counts", key="u uuid", min="ti time", count="n"),
        Upsert("latest", key="u uuid", columns="j json, o int", order="o"),
    ]
    spec = spec_of(topic, into_keyed, value="u uuid, ti time, j json, o int", sinks=sinks)
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    (count,) = rig.written(work, "counts")
    assert (count["ti_min"], count["n"]) == (time(7, 30), 2)
    assert [row["j"] for row in rig.written(work, "latest")] == ["[1.0]"]
    assert commit(rig.ledger, spec, rig.claim).txids == (1,)
    assert [fault for check in verify.verify(rig.ledger, spec) for fault in check.faults] == []


def with_the_record(df):
    return {
        SINK: df.select(
            "orderId",
            F.col("_timestamp").alias("at"),
            F.col("_key").cast("string").alias("k"),
            F.element_at("_headers", 1)["key"].alias("h"),
            "trace",
            "sent",
            "tenant",
            "_partition",
            "_offset",
            "_n",
        )
    }


def test_names_as_they_are_sent_and_the_records_own_parts(rig):
    topic = rig.topic()
    before = datetime.now(UTC) - timedelta(seconds=5)
    rig.send(topic, b'{"orderId": 5, "_id": 6}', keys=[b'{"tenant": "acme"}'], headers=[("trace-id", b"t1")])
    spec = spec_of(
        topic,
        with_the_record,
        value='orderId bigint, sent timestamp from _timestamp, trace string from _headers."trace-id", n int from _id',
        key=Json("tenant string not null"),
        sinks=[
            Append(
                SINK,
                columns="orderId bigint, at timestamp, k string, h string, trace string, sent timestamp, tenant string",
            )
        ],
    )
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    (row,) = rig.written(work, SINK)
    assert (row["orderId"], row["k"], row["h"], row["trace"]) == (5, '{"tenant": "acme"}', "trace-id", "t1")
    assert before < row["at"] == row["sent"] < datetime.now(UTC) + timedelta(seconds=5) and row["tenant"] == "acme"
    rig.check(spec, work, vote)
    assert commit(rig.ledger, spec, rig.claim).txids == (1,)
    assert [fault for check in verify.verify(rig.ledger, spec) for fault in check.faults] == []


def test_an_array_gives_a_row_for_each_object_and_the_record_counts_once(rig):
    topic = rig.topic()
    rig.send(topic, b'[{"a": 1}, {"a": 2}]', b"[]", b'[{"a": 3}, {"a": "bad"}]', b"[]")
    spec = spec_of(topic, sinks=[Append(SINK, columns="a int")])
    spec = spec.model_copy(update={"source": spec.source.model_copy(update={"value": Json("a int", rows="array")})})
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    assert sorted((r["_offset"], r["_n"], r["a"]) for r in rig.written(work, SINK)) == [(0, 0, 1), (0, 1, 2)]
    (letter,) = rig.written(work, DEAD_LETTERS)
    assert (letter["_offset"], letter["error"]) == (2, 'row 1, column a: found "bad", wanted int')
    assert (vote.records, vote.reached) == (4, {0: 4})
    rig.check(spec, work, vote)


def test_a_field_that_no_message_has_is_said_when_it_is_in_none_of_the_slices(rig):
    topic = rig.topic(2)
    rig.send(topic, b'{"orderId": 1, "a": 1}', b"no json")
    rig.send(topic, b'{"orderId": 2, "at": "2024-05-01T10:00:00.123456789Z"}', partition=1)
    value = "order_id bigint, a int, at timestamp, b int"
    spec = spec_of(topic, value=value, slice_records=2, max_records=10)
    works = rig.begin(spec)
    votes = [rig.run(spec, work) for work in works]
    absent = [{a.column: a.nearest for a in vote.absent} for vote in votes]
    assert absent[0] == {"order_id": ("orderId",), "at": (), "b": ()} or absent[1]["order_id"] == ("orderId",)
    assert sorted(vote.cut for vote in votes) == [0, 1]
    first, last = [cast_vote(rig.ledger, spec, work.token, vote) for work, vote in zip(works, votes, strict=True)]
    assert first.prepared is None and last.prepared is not None
    assert [a.column for a in last.prepared.absent] == ["order_id", "b"]
    assert "column order_id is null everywhere, as no message has a field order_id; there is orderId" in str(last)
    with rig.ledger.begin() as conn:
        stored = conn.exec_driver_sql("select absent, cut from ratchet.slices order by slice").all()
    assert [json.loads(json.dumps(row[0])) for row in stored] == [
        [[a.column, a.field, list(a.nearest)] for a in vote.absent] for vote in votes
    ]
