"""Transforms over DataFrames and in SQL in a test: their records come from this process, and their rows go to it."""

from __future__ import annotations

import os
import sys
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ratchet.sinks.lookup import sink_of
from ratchet.spark import frame_lane
from ratchet.spark.decode import good_fields
from ratchet.spark.engine import SETTINGS
from ratchet.spark.failure import explained
from ratchet.spark.result import letters_of, rows_of
from ratchet.spark.statements import told
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline


def transformed(
    spec: Pipeline, rows: pa.RecordBatch, txn_time: datetime, session: SparkSession | None
) -> dict[str, pa.Table]:
    """{sink: what the transform gives it, with positions}; raises what a job of the DataFrame lane raises."""
    spark = session or _local()
    with explained(spec.name, str(spec.transform), lambda: None, spec.private):
        good = spark.createDataFrame(pa.Table.from_batches([rows]), StructType(good_fields(spec.source)))
        result = frame_lane.applied(spec, txn_time, good)
        given = {**result, DEAD_LETTERS: letters_of(spec, result[DEAD_LETTERS])} if DEAD_LETTERS in result else result
        rows = {name: rows_of(spec, sink_of(spec, name), frame) for name, frame in given.items()}
        return {name: _taken(spec, name, frame) for name, frame in rows.items()}


def _taken(spec: Pipeline, name: str, rows: DataFrame) -> pa.Table:
    with told(spec, name):
        return rows.toArrow()


def _local() -> SparkSession:
    """The session of this process, or a new one of one thread, which ends with it."""
    # Those of its workers that are not started by a person's PYSPARK_PYTHON must find this library.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[1]").appName("ratchet.testing")
    settings: dict[str, bool | float | int | str | None] = {
        **SETTINGS,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    return builder.config(map=settings).getOrCreate()
