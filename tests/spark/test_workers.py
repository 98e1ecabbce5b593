"""Spark's Python workers: all sessions share them, and they never work with code that has changed."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from pyspark.sql import functions as F

from ratchet.dev.stack import CORES
from ratchet.spark.engine import connect_session


def workers_of(spark_connect, work=lambda n: n) -> tuple[set[int], list[int]]:
    """The process ids of the workers that a new session's job ran in, and what it made of 1, 2, 3, 4."""

    def here(n):
        return f"{os.getpid()} {work(n)}"

    with connect_session(spark_connect.spark, "workers", uuid4().hex) as session:
        # A row in each partition, so that every task has work.
        rows = session.range(1, 5, 1, 4).select(F.udf(here, "string")("id")).collect()
    said = [tuple(map(int, row[0].split())) for row in rows]
    return {pid for pid, _ in said}, [made for _, made in said]


def daemons(spark_connect) -> list[psutil.Process]:
    server = psutil.Process(spark_connect.pids()["connect"])
    alive = [p for p in server.children() if p.status() != psutil.STATUS_ZOMBIE]
    return [p for p in alive if "ratchet.spark.workers" in p.cmdline()]


def test_sessions_share_their_workers_which_are_bounded_by_the_cores(spark_connect):
    first, _ = workers_of(spark_connect)
    again, _ = workers_of(spark_connect)
    assert first & again
    # Spark has a task on each core, and a task has two workers at most: one that decodes and one that stages.
    (daemon,) = daemons(spark_connect)
    assert first | again <= {p.pid for p in daemon.children()}
    assert len(daemon.children()) <= 2 * CORES


def test_a_worker_has_its_libraries_before_its_first_task(spark_connect):
    def is_loaded(_):
        return int("ratchet.spark.worker_lane" in sys.modules and "pandas" in sys.modules)

    assert workers_of(spark_connect, is_loaded)[1] == [1, 1, 1, 1]


@pytest.mark.all
def test_a_worker_whose_code_has_changed_is_the_same_process_with_the_new_code(spark_connect, tmp_path):
    module = f"rates_{uuid4().hex[:8]}"

    def rated(n):
        if str(tmp_path) not in sys.path:
            sys.path.append(str(tmp_path))
        return n * importlib.import_module(module).RATE

    def with_code(text: str) -> tuple[set[int], list[int]]:
        # Renamed into place, with the older time of another file.
        (tmp_path / "fresh").write_text(text)
        os.utime(tmp_path / "fresh", (0, 0))
        Path(tmp_path / "fresh").rename(tmp_path / f"{module}.py")
        return workers_of(spark_connect, rated)

    before, sevens = with_code("RATE = 7")
    after, eighty = with_code("RATE = 80")
    assert sevens == [7, 14, 21, 28] and eighty == [80, 160, 240, 320]
    assert before & after
