"""A slice on a Spark cluster whose executors and workers are killed and whose tasks run twice: staged is what was
planned, once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka import Producer
from psycopg import sql

from ratchet.dev.stack import CHECKOUT, Stack, prerequisites
from ratchet.dev.stack.connect import spark_home
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run, SliceWork
from ratchet.ledger.writers import registered
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import read_votes, take_try
from ratchet.source.kafka import Kafka
from tests.spark.cluster import HOLDS, Held, held, hold
from tests.spark.pipelines.cluster import PIPELINE
from tests.until import until

pytestmark = pytest.mark.cluster

RECORDS = 250_000
"""In each of two partitions: a task for each, which has sent several buffers of rows before its last batch."""


@pytest.fixture(scope="module")
def cluster(scratch: Path) -> Iterator[Stack]:
    (scratch / "cluster-holds").mkdir()
    env = {HOLDS: str(scratch / "cluster-holds")}
    with Stack(scratch / "cluster", {"standalone"}, env=env, say=lambda line: None) as stack:
        yield stack


@pytest.fixture
def holds(scratch: Path) -> Iterator[Path]:
    yield scratch / "cluster-holds"
    for file in (scratch / "cluster-holds").iterdir():
        file.unlink()


@pytest.fixture(scope="module")
def topic(kafka: Stack) -> None:
    """Two partitions of numbered records."""
    with Kafka(kafka.kafka) as client:
        client.admin.create_topics({PIPELINE.source.name: {"num_partitions": 2, "replication_factor": 1}})
    producer = Producer({"bootstrap.servers": kafka.kafka["bootstrap.servers"], "linger.ms": 50})
    for number in range(RECORDS):
        for partition in (0, 1):
            producer.produce(PIPELINE.source.name, b'{"v": %d}' % (2 * number + partition), partition=partition)
        producer.poll(0)
        if number % 20_000 == 0:
            producer.flush()
    assert producer.flush(60) == 0


class Submitted:
    """A transaction of one slice, whose driver runs against the cluster."""

    def __init__(self, ledger: Ledger, kafka: dict[str, str], cluster: Stack, log: Path, **conf: str):
        self.ledger, self.cluster, self.log = ledger, cluster, log
        migrate(ledger.url, [PIPELINE])
        with Kafka(kafka) as client:
            begun = begin(
                ledger, PIPELINE, Run("dag", "run"), partial(client.offsets, PIPELINE.source.name), lambda *_: True
            )
        assert isinstance(begun, Begun)
        self.claim = begun.claim
        work = take_try(ledger, PIPELINE, begun.claim, 0)
        assert isinstance(work, SliceWork) and len(begun.slices) == 1
        self.work, token = work, work.token
        url, settings = cluster.spark_master
        jars = ",".join(map(str, prerequisites.jars(CHECKOUT, "spark")))
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", url, "--jars", jars]
        for name, value in {**settings, **conf}.items():
            command += ["--conf", f"{name}={value}"]
        command += [str(CHECKOUT / "jobs" / "process_slice.py"), token.pipeline]
        command += map(str, token.numbers)
        env = {
            **os.environ,
            "JAVA_HOME": str(prerequisites.java().parent.parent),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(CHECKOUT),
            "RATCHET_PIPELINES": "tests.spark.pipelines",
            "RATCHET_LEDGER_URL": ledger.url,
            "RATCHET_KAFKA": json.dumps(kafka),
        }
        with log.open("w") as out:
            # spark-submit becomes the driver's JVM.
            self.driver = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)

    def ended(self, seconds: float = 180) -> None:
        """Wait for the driver to have voted."""
        until("the driver has ended", lambda: self.driver.poll() is not None, seconds)
        said = self.log.read_text()
        assert self.driver.returncode == 0 and "every slice has voted" in said, said[-4000:]

    def held(self, partition: int, attempt_number: int = 0) -> Held:
        """Wait until this task waits."""
        return until("the attempt is held", lambda: self._held(partition, attempt_number), 300)

    def _held(self, partition: int, attempt_number: int) -> Held | None:
        assert self.driver.poll() is None, self.log.read_text()[-4000:]
        return held(self.log.parent, partition, attempt_number)

    def executor(self, task: Held) -> tuple[psutil.Process, str]:
        """The executor that runs a task, and the name of the worker that it is a child of."""
        workers = {pid: name for name, pid in self.cluster.pids().items() if "worker" in name}
        for process in psutil.Process(task.pid).parents():
            if process.ppid() in workers:
                return process, workers[process.ppid()]
        raise AssertionError(f"no worker of {workers} has started {task}")

    def is_staging(self) -> bool:
        """Whether partition 1 is staged, and of partition 0 a buffer, in a database transaction that goes on."""
        with psycopg.connect(self.ledger.url) as conn:
            (staging,) = conn.execute(
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and application_name = 'ratchet stage' and state = 'idle in transaction' and query ilike 'copy %'"
            ).fetchone() or (0,)
        return [task for task, _ in self.written()] == [1] and staging == 1

    def written(self) -> dict[tuple[int, int], Counter[tuple[int, int]]]:
        """{(Spark partition, attempt): the multiset of (partition, offset)} that is in the delta table."""
        found: dict[tuple[int, int], Counter[tuple[int, int]]] = {}
        with psycopg.connect(self.ledger.url) as conn:
            query = sql.SQL(
                "select task_partition, task_attempt, _partition, _offset from {} "
                "join ratchet.writers on writer = _writer"
            )
            for task, attempt, *at in conn.execute(query.format(sql.Identifier(*self.work.relations["cluster_rows"]))):
                found.setdefault((task, attempt), Counter())[tuple(at)] += 1
        return found

    def accepted(self) -> set[tuple[int, int]]:
        """The (Spark partition, attempt) that the vote names."""
        with self.ledger.begin() as conn:
            ((_, _, sinks),) = read_votes(conn, PIPELINE.name, self.claim.txid, self.claim.epoch)
            found = registered(conn, sinks["cluster_rows"].writers)
        return {(writer.task_partition, writer.task_attempt) for writer in found.values()}

    def commits_exactly_the_plan(self) -> None:
        """What the vote names is the plan, once; so is what readers see after the commit, with each value."""
        assert sum((self.written()[tag] for tag in self.accepted()), Counter()) == PLANNED
        assert isinstance(commit(self.ledger, PIPELINE, self.claim), Committed)
        with psycopg.connect(self.ledger.url) as conn:
            rows = conn.execute("select _partition, _offset, v from cluster_rows").fetchall()
        assert Counter(rows) == Counter((p, o, 2 * o + p) for p, o in PLANNED)


PLANNED = Counter((partition, offset) for partition in (0, 1) for offset in range(RECORDS))


@pytest.fixture
def submit(cluster, topic, kafka_properties, ledger_url, holds):
    """Begin a transaction and submit its driver."""
    started: list[Submitted] = []

    def go(**conf: str) -> Submitted:
        ledger = Ledger(ledger_url)
        started.append(Submitted(ledger, kafka_properties, cluster, holds / "driver.log", **conf))
        return started[-1]

    yield go
    for each in started:
        if each.driver.poll() is None:
            os.killpg(each.driver.pid, signal.SIGKILL)
            each.driver.wait()
        each.ledger.close()


def test_a_slice_is_processed_on_both_workers_and_committed(submit, holds):
    for partition in (0, 1):
        hold(holds, partition)
    job = submit()
    tasks = [job.held(partition) for partition in (0, 1)]
    assert {job.executor(task)[1] for task in tasks} == {"spark-worker-1", "spark-worker-2"}
    for task in tasks:
        task.file.unlink()
    job.ended()
    assert job.accepted() == {(0, tasks[0].attempt), (1, tasks[1].attempt)}
    job.commits_exactly_the_plan()


def test_an_executor_that_is_killed_while_it_stages_leaves_nothing_and_its_task_is_run_again(submit, holds):
    hold(holds, 0)
    job = submit()
    task = job.held(0)
    until("the job is staging", job.is_staging)
    executor, _ = job.executor(task)
    executor.kill()
    task.file.unlink()
    job.ended()
    assert (0, task.attempt) not in job.accepted()
    assert set(job.written()) == job.accepted()
    job.commits_exactly_the_plan()


def test_a_worker_that_is_killed_is_restarted_and_its_task_is_run_again(submit, holds, cluster):
    hold(holds, 0)
    job = submit()
    task = job.held(0)
    until("the job is staging", job.is_staging)
    _, name = job.executor(task)
    before = cluster.pids()[name]
    os.kill(before, signal.SIGKILL)
    task.file.unlink()
    job.ended()
    assert (0, task.attempt) not in job.accepted()
    assert set(job.written()) == job.accepted()
    job.commits_exactly_the_plan()
    assert until("the server is started again", lambda: cluster.pids()[name]) != before


def test_of_a_task_that_runs_twice_by_speculation_and_stages_twice_one_attempt_is_taken(submit, holds):
    for attempt_number in (0, 1):
        hold(holds, 0, attempt_number)
    job = submit(
        **{
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "100ms",
        }
    )
    tasks = [job.held(0, attempt_number) for attempt_number in (0, 1)]
    assert len({job.executor(task)[1] for task in tasks}) == 2
    # While the driver sleeps neither attempt can win: both stage all of their rows.
    job.driver.send_signal(signal.SIGSTOP)
    for task in tasks:
        task.file.unlink()
    both = {(0, task.attempt) for task in tasks}
    until("both have staged", lambda: both <= set(job.written()), 60)
    job.driver.send_signal(signal.SIGCONT)
    job.ended()
    assert len(both & job.accepted()) == 1
    half = Counter({at: 1 for at in PLANNED if at[0] == 0})
    assert sorted(both) == sorted(tag for tag, rows in job.written().items() if rows == half)
    job.commits_exactly_the_plan()
