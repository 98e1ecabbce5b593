"""Sessions of Spark Connect: kept and lent, so that no job finds anything of another one's."""

from __future__ import annotations

import importlib
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest
from pyspark.sql import functions as F

from ratchet import Accumulate, Append
from ratchet.spark.engine import connect_session

from .rig import SINK, content, numbered, spec_of


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


def test_a_session_is_lent_to_one_job_at_a_time_and_not_kept_by_one_that_failed(spark_connect):
    def session():
        return connect_session(spark_connect.spark, "lent", code)

    code = uuid4().hex
    with session() as first, session() as second:
        assert first.session_id != second.session_id
    with pytest.raises(ZeroDivisionError), session() as failed:
        raise ZeroDivisionError
    with session() as kept, session() as third:
        assert {first.session_id, second.session_id} == {failed.session_id, kept.session_id}
        assert third.session_id not in {failed.session_id, kept.session_id}


@pytest.mark.all
@pytest.mark.invariant("I7")
def test_what_a_worker_has_imported_is_not_what_changed_code_imports(spark_connect, tmp_path, monkeypatch):
    package = f"jobs_{uuid4().hex[:8]}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "orders.py").write_text("from .rates import RATE")
    monkeypatch.syspath_prepend(tmp_path)
    spec = spec_of("none", numbered).model_copy(update={"transform": f"{package}.orders:transform"})

    def rated(n):
        if str(tmp_path) not in sys.path:
            sys.path.append(str(tmp_path))
        return n * importlib.import_module(f"{package}.orders").RATE

    def with_rate(rate):
        (tmp_path / package / "rates.py").write_text(f"RATE = {rate}")
        with connect_session(spark_connect.spark, "changed", spec.code_hash) as session:
            # A row in each partition: a worker that has had none has imported nothing.
            rows = session.range(1, 5, 1, 4).select(F.udf(rated, "long")("id")).collect()
            return session.session_id, [row[0] for row in rows]

    first, again, changed = with_rate(7), with_rate(7), with_rate(8)
    assert first == again
    assert first[1] == [7, 14, 21, 28]
    assert changed[1] == [8, 16, 24, 32]


MET = threading.Barrier(2, timeout=120)


def through_a_view(df):
    """Two slices at once make a view of one name, and then both read it."""
    df.createOrReplaceTempView("seen")
    MET.wait()
    return {SINK: df.sparkSession.sql("select * from seen"), "sums": df.sparkSession.table("seen")}


def test_slices_at_the_same_time_do_not_see_each_others_views(rig, spark_connect):
    topic = rig.topic()
    rig.send(topic, *numbered(range(20)))
    sinks = [Append(SINK, columns="a int"), Accumulate("sums", key="b string", sum="a int", count="n")]
    spec = spec_of(topic, through_a_view, max_records=100, slice_records=10, sinks=sinks)
    code = uuid4().hex

    def run(work):
        with connect_session(spark_connect.spark, "views", code) as session:
            return replace(rig, spark=session).run(spec, work)

    works = rig.begin(spec)
    with ThreadPoolExecutor(2) as pool:
        votes = list(pool.map(run, works))
    assert content(rig.written(works[0], SINK)) == Counter((0, o, o) for o in range(20))
    sums = {(row["a_sum"], row["n"]) for row in rig.written(works[0], "sums")}
    assert sums == {(sum(range(10)), 10), (sum(range(10, 20)), 10)}
    for work, vote in zip(works, votes, strict=True):
        rig.check(spec, work, vote)
