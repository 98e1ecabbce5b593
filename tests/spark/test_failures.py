"""What fails around a slice, by real failures: what another try can mend is told from what it cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.connect.session import SparkSession as RemoteSession

from ratchet import Append
from ratchet.airflow.connect import SECONDS_TO_STOP, ConnectJob
from ratchet.dev.stack import Stack
from ratchet.dev.stack.ports import HOST
from ratchet.errors import (
    OUTAGES,
    WORTH_ANOTHER_TRY,
    BrokerUnreachable,
    EngineLost,
    EngineUnreachable,
    LedgerUnreachable,
    TransformError,
    WritingFailed,
)
from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate
from ratchet.source.kafka import Kafka
from ratchet.spark import engine, frame_lane
from ratchet.spark.engine import connect_session
from ratchet.spark.servers import Servers
from ratchet.spark.slice import run_slice
from tests.spark.rig import SINK, Rig, address, content, every, numbered, spec_of
from tests.until import until


@pytest.fixture
def bare(ledger_url, kafka_properties):
    """A rig without a session: a process has one active session, so each test opens its own."""
    with Kafka(kafka_properties) as client, Ledger(ledger_url) as ledger:
        yield Rig(None, ledger, kafka_properties, client)


@pytest.fixture
def rig(bare, spark_connect):
    with connect_session(spark_connect.spark, "failures", "code") as session:
        yield replace(bare, spark=session)


def prepared(rig, transform: Callable, **given):
    """(spec, work) of one slice with ten records."""
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)))
    spec = spec_of(topic, transform, value="a int", **given)
    (work,) = rig.begin(spec)
    return spec, work


def on_worker(df, act):
    """The records, where each worker first does `act`."""

    def acting(batches):
        for batch in batches:
            act()
            yield batch

    return {SINK: df.select("a", "_partition", "_offset").mapInArrow(acting, "a int, _partition int, _offset bigint")}


def kills_its_worker(df):
    return on_worker(df, lambda: os.kill(os.getpid(), signal.SIGKILL))


def exhausts_its_worker(df):
    def raise_it():
        raise MemoryError

    return on_worker(df, raise_it)


@pytest.mark.parametrize("transform", [kills_its_worker, exhausts_its_worker])
def test_a_worker_that_dies_is_no_fault_of_the_transform(rig, transform):
    spec, work = prepared(rig, transform)
    with pytest.raises(EngineLost, match="^p: transaction 1, slice 0: Spark, one of its workers"):
        rig.run(spec, work)
    assert not rig.written(work, SINK)


def test_a_session_that_is_closed_meanwhile_is_no_fault_of_the_transform(bare, spark_connect):
    spec, work = prepared(bare, every)
    code = uuid4().hex
    with connect_session(spark_connect.spark, "closed", code) as closed:
        closed.client.release_session()
        with pytest.raises(EngineLost, match="INVALID_HANDLE"):
            replace(bare, spark=closed).run(spec, work)
    with connect_session(spark_connect.spark, "closed", code) as successor:
        bare.check(spec, work, replace(bare, spark=successor).run(spec, work))


def test_what_a_transform_has_called_by_a_name_is_not_found_by_the_next_job(spark_connect):
    code, seen = uuid4().hex, []
    for _ in range(2):
        with connect_session(spark_connect.spark, "named", code) as session:
            seen.append(session.session_id)
            session.range(3).createTempView("of_this_job")
    assert seen[0] == seen[1]


COUNTS_A_VIEW = """
import sys
from pyspark.sql import functions as F
from ratchet.spark.engine import connect_session

url, code, rows = sys.argv[1:]
with connect_session(url, "asked", code) as session:
    session.range(int(rows)).createOrReplaceTempView("numbers")
    asked = session.sql("select * from numbers").withColumn("more", F.lit(1))
    assert asked.schema.names == ["id", "more"]
    print(session.session_id, asked.count())
"""


def test_what_a_transform_asks_of_a_view_is_not_what_the_process_before_it_has_asked(spark_connect):
    code, told = uuid4().hex, []
    for rows in ("30", "60"):
        # Each task of Airflow is a process of its own, which numbers its plans from the beginning.
        asked = [sys.executable, "-c", COUNTS_A_VIEW, spark_connect.spark, code, rows]
        told.append(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())
    assert [count for _, count in told] == ["30", "60"]
    assert len({session for session, _ in told}) == 1


def test_a_session_whose_job_has_failed_is_released(spark_connect):
    with pytest.raises(MemoryError), connect_session(spark_connect.spark, "failed", uuid4().hex) as failed:
        raise MemoryError
    again = RemoteSession.builder.remote(f"{spark_connect.spark}/;session_id={failed.session_id}").create()
    try:
        with pytest.raises(PySparkException, match="INVALID_HANDLE.SESSION_CLOSED"):
            again.range(1).count()
    finally:
        again.release_session_on_close = False
        again.stop()


def test_a_server_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(engine, "_PATIENCE", {"max_retries": 2})
    with pytest.raises(EngineUnreachable, match=f"p: no session of Spark Connect at sc://{HOST}:1: failed to connect"):
        with connect_session(f"sc://{HOST}:1", "p", "code"):
            pass


@pytest.fixture
def own_server(scratch):
    with Stack(scratch / "own-connect", {"connect"}) as stack:
        yield stack


MARK = Path(os.environ.get("TMPDIR", "/tmp"), f"ratchet-test-{os.getpid()}")


def waits_on_a_worker(df):
    mark = MARK

    def wait():
        mark.touch()
        deadline = time.monotonic() + 60
        while mark.exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    return on_worker(df, wait)


@pytest.fixture
def mark():
    MARK.unlink(missing_ok=True)
    yield MARK
    MARK.unlink(missing_ok=True)


@pytest.mark.all
def test_a_server_killed_in_mid_job_costs_a_try_and_nothing_else(bare, own_server, mark):
    spec, work = prepared(bare, waits_on_a_worker)
    with ThreadPoolExecutor(1) as pool:
        with connect_session(own_server.spark, "killed", "code") as lost:
            running = pool.submit(replace(bare, spark=lost).run, spec, work)
            until("the job has begun", mark.exists, seconds=90)
            killed = own_server.pids()["connect"]
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(EngineLost, match="^p: transaction 1, slice 0: Spark, one of its workers"):
                running.result(timeout=120)
    assert not bare.written(work, SINK)
    mark.unlink(missing_ok=True)
    until("Spark Connect is started again", lambda: own_server.pids().get("connect", killed) != killed, seconds=60)
    plain = spec.model_copy(update={"transform": address(every)})
    with connect_session(own_server.spark, "killed", "code") as again:
        vote = replace(bare, spark=again).run(plain, work)
    assert vote.records == 10
    assert content(bare.written(work, SINK)) == Counter((0, o, o) for o in range(10))


@pytest.mark.all
def test_a_server_that_is_silent_for_ever_is_given_up_and_holds_nobody_up(bare, own_server, mark, monkeypatch):
    # The server forbids to ask so often, but only the third time.
    monkeypatch.setitem(engine._KEEPALIVE, "grpc.keepalive_time_ms", 15_000)
    monkeypatch.setitem(engine._KEEPALIVE, "grpc.keepalive_timeout_ms", 2_000)
    monkeypatch.setattr(engine, "_PATIENCE", {"max_retries": 2})
    spec, work = prepared(bare, waits_on_a_worker)
    job = ConnectJob(own_server.spark, spec, work, bare.ledger, Servers(bare.kafka))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.run)
        until("the job has begun", mark.exists, seconds=90)
        silent = own_server.pids()["connect"]
        os.kill(silent, signal.SIGSTOP)
        try:
            began = time.monotonic()
            job.stop()
            assert time.monotonic() - began < SECONDS_TO_STOP + 2
            assert not running.done()
            with pytest.raises(EngineLost, match="^p: transaction 1, slice 0: Spark, one of its workers"):
                running.result(timeout=120)
            with pytest.raises(EngineUnreachable, match="p: no session of Spark Connect"):
                with connect_session(own_server.spark, "p", "code"):
                    pass
        finally:
            os.kill(silent, signal.SIGCONT)
    assert not bare.written(work, SINK)


def exhausts_the_heap(df):
    endless = F.repeat(F.col("a").cast("string"), 2_000_000_000)
    return {SINK: df.withColumn("a", F.col("a") + F.length(endless) % 2)}


@pytest.mark.all
def test_a_heap_that_is_exhausted_is_no_fault_of_the_transform(bare, own_server):
    spec, work = prepared(bare, exhausts_the_heap)
    with connect_session(own_server.spark, "exhausted", "code") as lost:
        with pytest.raises(EngineLost, match="^p: transaction 1, slice 0: Spark, one of its workers"):
            replace(bare, spark=lost).run(spec, work)
    assert not bare.written(work, SINK)


def fails_when_told(df):
    mark = MARK

    def wait():
        mark.touch()
        deadline = time.monotonic() + 60
        while mark.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        raise MemoryError

    return on_worker(df, wait)


@pytest.mark.all
def test_where_kafka_does_not_answer_either_that_is_the_reason(bare, spark_connect, scratch, mark):
    with Stack(scratch / "own-kafka", {"kafka"}) as own, Kafka(own.kafka) as client, ThreadPoolExecutor(1) as pool:
        with connect_session(spark_connect.spark, "failures", uuid4().hex) as session:
            rig = replace(bare, spark=session, kafka=own.kafka, client=client)
            spec, work = prepared(rig, fails_when_told)
            running = pool.submit(rig.run, spec, work)
            until("the job has begun", mark.exists, seconds=90)
            broker = own.pids()["kafka"]
            os.kill(broker, signal.SIGSTOP)
            try:
                mark.unlink()
                with pytest.raises(
                    BrokerUnreachable, match="^p: transaction 1, slice 0: no answer from Kafka.*Spark said"
                ):
                    running.result(timeout=120)
            finally:
                os.kill(broker, signal.SIGCONT)
    assert not rig.written(work, SINK)


def test_a_ledger_that_the_workers_do_not_reach_is_worth_another_try(rig):
    spec, work = prepared(rig, every)
    with pytest.raises(LedgerUnreachable, match="slice 0, try 1: the ledger at .* does not answer: .*refused"):
        run_slice(rig.spark, spec, work, f"postgresql://nobody@{HOST}:1/none", rig.servers)


def test_more_tasks_than_postgresql_gives_connections_are_done_one_after_the_other(rig, postgres):
    topic = rig.topic(partitions=2)
    for partition in (0, 1):
        rig.send(topic, *numbered(range(10)), partition=partition)
    spec = spec_of(topic, every, value="a int")
    (work,) = rig.begin(spec)
    name, url = f"one_{uuid4().hex[:8]}", rig.ledger.engine.url.set(drivername="postgresql")
    with psycopg.connect(rig.ledger.url, autocommit=True) as conn:
        conn.execute(f"create role {name} login password 'x' connection limit 1")
        migrate(rig.ledger.url, [spec], name)
        limited = url.set(username=name, password="x").render_as_string(hide_password=False)
        refused, log = f'too many connections for role "{name}"', postgres.home / "logs" / "postgres.log"
        with ThreadPoolExecutor(1) as pool, psycopg.connect(limited) as holder:
            running = pool.submit(run_slice, rig.spark, spec, work, limited, rig.servers)
            until("a task is refused", lambda: running.done() or refused in log.read_text())
            holder.close()
            rig.check(spec, work, running.result(timeout=60))
        conn.execute(f"drop owned by {name}")
        conn.execute(f"drop role {name}")


@contextmanager
def interrupted(rig, spec, work, by: str):
    """A job whose task is held up as it writes, and to whose session PostgreSQL then does this."""
    waiting = "select pid from pg_stat_activity where application_name = 'ratchet stage' and wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(rig.ledger.url, autocommit=True) as onlooker:
        with psycopg.connect(rig.ledger.url) as holder:
            holder.execute("select 1 from ratchet.slices for update")
            running = pool.submit(rig.run, spec, work)
            pid = until("the stage's session waits", lambda: onlooker.execute(waiting).fetchone())[0]
            onlooker.execute(f"select {by}(%s)", [pid])
            yield running


def test_a_ledger_that_is_lost_while_rows_are_staged_is_worth_another_try(rig):
    spec, work = prepared(rig, every)
    with interrupted(rig, spec, work, "pg_terminate_backend") as running:
        with pytest.raises(LedgerUnreachable, match="slice 0, try 1: .* does not answer: terminating connection"):
            running.result(timeout=60)
    assert not rig.written(work, SINK)
    rig.check(spec, work, rig.run(spec, work))


def test_a_statement_that_postgresql_gives_up_is_no_outage(rig):
    spec, work = prepared(rig, every)
    with interrupted(rig, spec, work, "pg_cancel_backend") as running:
        said = f"slice 0, try 1: sink '{SINK}': .*canceling statement due to"
        with pytest.raises(WritingFailed, match=said) as told:
            running.result(timeout=60)
    assert isinstance(told.value, WORTH_ANOTHER_TRY) and not isinstance(told.value, OUTAGES)
    assert not rig.written(work, SINK)


def as_wide_as_no_row_can_be(df):
    # Texts as short as these stay in the row, of which a page holds 8160 bytes.
    wide = [F.lit("x" * 20).alias(f"c{number}") for number in range(450)]
    return {SINK: df.select(*wide, "_partition", "_offset")}


def test_a_row_that_is_too_big_for_postgresql_is_the_transforms_fault(rig):
    columns = ", ".join(f"c{number} string" for number in range(450))
    spec, work = prepared(rig, as_wide_as_no_row_can_be, sinks=[Append(SINK, columns=columns)])
    with pytest.raises(TransformError, match=f"sink '{SINK}': PostgreSQL cannot hold a value: row is too big"):
        rig.run(spec, work)
    assert not rig.written(work, SINK)


def into_two(df):
    return {**waits_on_a_worker(df), "rows2": df}


def test_records_that_were_kept_are_let_go_when_the_job_is_interrupted(rig, mark, monkeypatch):
    kept = []
    whole = frame_lane._kept
    monkeypatch.setattr(frame_lane, "KEEP_FROM", 0)
    monkeypatch.setattr(frame_lane, "_kept", lambda decoded: kept.append(decoded) or whole(decoded))
    sinks = [Append(SINK, columns="a int"), Append("rows2", columns="a int")]
    spec, work = prepared(rig, into_two, sinks=sinks)

    def run():
        rig.spark.addTag("interrupted")
        try:
            rig.run(spec, work)
        finally:
            rig.spark.removeTag("interrupted")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        until("the job has begun", mark.exists, seconds=90)
        assert kept[0].storageLevel.useMemory
        rig.spark.interruptTag("interrupted")
        with pytest.raises(EngineLost, match="OPERATION_CANCELED"):
            running.result(timeout=60)
    assert not kept[0].storageLevel.useMemory
