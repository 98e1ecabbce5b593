"""What a minute of maintenance costs while nothing is to be done, for more and more pipelines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.curves.curve import LITTLE, Curve, Points
from ratchet.dev.stack import CHECKOUT
from ratchet.operate.migrate import migrate
from ratchet.source.kafka import Kafka

PIPELINES = (10, 100, 1_000)
PACKAGE = "many_pipelines"

_MODULE = """
from ratchet import Accumulate, Append, Arrivals, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="{name}",
    source=Topic("{topic}", value=Json("carrier string, tailnum string, dep_delay int, time_hour timestamp")),
    sinks=[
        Append("{name}_rows", columns="carrier string, tailnum string, dep_delay int"),
        Accumulate("{name}_sums", key="carrier string", sum="dep_delay bigint", count="flights"),
    ],
    runs=Arrivals(),
)
"""
_TASK = """
import runpy, sys, time
part = int(sys.argv[1])
# As in the scheduler, from which tasks are forked.
sys.argv = ["airflow", "scheduler"]
runpy.run_path("plugins/preload.py")
began = time.process_time()
from types import SimpleNamespace
from ratchet.airflow.maintenance import maintenance_dag
from ratchet.spec.loading import modules
tasks = maintenance_dag(len(modules())).tasks
tasks[part].execute({"ti": None, "dag_run": SimpleNamespace(dag_id="m", run_id="r", clear_number=0)})
print(len(tasks), time.process_time() - began)
"""
"""One of the DAG's tasks, from where Airflow has started its process; where there is no work it asks for nothing."""
_LINES = """
    insert into ratchet.pipelines (pipeline, topics)
        select name, jsonb_build_array(jsonb_build_object('topic', topic, 'id', id))
        from unnest({names}::text[], {topics}::text[], {ids}::text[]) as of (name, topic, id);
    insert into ratchet.heads (pipeline) select pipeline from ratchet.pipelines;
    insert into ratchet.sources (pipeline, source, cause, partitions, first_txid, begun)
        select pipeline, 1, 'first', 1, 1, '{{"rule": "earliest", "starts": {{"0": 0}}, "logs": {{"0": 0}}}}'
        from ratchet.pipelines;
    insert into ratchet.topics (pipeline, source, number, topic, topic_id)
        select pipeline, 1, 0, topics->0->>'topic', topics->0->>'id' from ratchet.pipelines;
    insert into ratchet.ranges (pipeline, txid, source, partition, until_offset)
        select pipeline, 0, 1, 0, 0 from ratchet.pipelines;
    analyze;
"""


def measure(bench: Bench) -> Points:
    """Milliseconds of CPU in a minute: of the tasks without what Airflow needs for them, of PostgreSQL, of Kafka."""
    points: Points = {"tasks": {}, "PostgreSQL": {}, "Kafka": {}}
    for number in PIPELINES if bench.records >= LITTLE else (2, 4):
        stamp = f"{time.time_ns() // 10**6}"
        names, topics = [f"p{n}" for n in range(number)], [f"idle_{stamp}_{n}" for n in range(number)]
        with (
            psycopg.connect(bench.url, autocommit=True) as conn,
            Kafka(bench.stack.kafka) as brokers,
            tempfile.TemporaryDirectory() as home,
        ):
            database = sql.Identifier(f"bench_idle_{stamp}")
            conn.execute(sql.SQL("create database {}").format(database))
            brokers.admin.create_topics(
                {topic: {"num_partitions": 1, "replication_factor": 1} for topic in topics}, wait_for_metadata=True
            )
            try:
                url = bench.stack.database_url(f"bench_idle_{stamp}")
                migrate(url, [])
                ids = {found["name"]: str(found["topic_id"]) for found in brokers.admin.describe_topics(topics)}
                with psycopg.connect(url, autocommit=True) as lines:
                    given = {"names": names, "topics": topics, "ids": [ids[topic] for topic in topics]}
                    lines.execute(sql.SQL(_LINES).format(**{key: sql.Literal(of) for key, of in given.items()}))
                env = _write(Path(home), url, bench.stack.kafka, names, topics)
                # The first sets the consumer groups.
                _minute(bench, env)
                for _ in range(bench.runs):
                    for line, seconds in _minute(bench, env).items():
                        points[line].setdefault(number, []).append(1_000 * seconds)
                bench.tell(f"{number:,} pipelines: { ({line: of[number][-1] for line, of in points.items()}) }")
            finally:
                brokers.admin.delete_topics(topics)
                conn.execute(sql.SQL("drop database {} with (force)").format(database))
    return points


def _write(home: Path, url: str, kafka: dict[str, str], names: list[str], topics: list[str]) -> dict[str, str]:
    """A module for each pipeline; the environment of the tasks."""
    package = home / PACKAGE
    package.mkdir()
    (package / "__init__.py").touch()
    for name, topic in zip(names, topics, strict=True):
        (package / f"{name}.py").write_text(_MODULE.format(name=name, topic=topic))
    return {
        **os.environ,
        "PYTHONPATH": str(home),
        "RATCHET_PIPELINES": PACKAGE,
        "AIRFLOW_CONN_RATCHET_LEDGER": url,
        "AIRFLOW_CONN_RATCHET_KAFKA": json.dumps({"conn_type": "kafka", "extra": kafka}),
    }


def _minute(bench: Bench, env: dict[str, str]) -> dict[str, float]:
    """Seconds of CPU that a run of the DAG costs."""
    pids = bench.stack.pids()
    before = {line: _cpu(pids[name]) for line, name in (("PostgreSQL", "postgres"), ("Kafka", "kafka"))}
    tasks, seconds, part = 1, 0.0, 0
    while part < tasks:
        command = [sys.executable, "-c", _TASK, str(part)]
        done = subprocess.run(command, env=env, cwd=CHECKOUT, capture_output=True, text=True, check=True)
        count, took = done.stdout.split()[-2:]
        tasks, seconds, part = int(count), seconds + float(took), part + 1
    after = {line: _cpu(pids[name]) for line, name in (("PostgreSQL", "postgres"), ("Kafka", "kafka"))}
    return {"tasks": seconds, **{line: after[line] - before[line] for line in after}}


def _cpu(pid: int) -> float:
    """Seconds of a process and of those of its children that have ended."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, parts[11:15])) / os.sysconf("SC_CLK_TCK")


CURVE = Curve(
    "A minute of maintenance of idle pipelines", "pipelines", "ms of CPU", frozenset({"postgres", "kafka"}), measure
)
