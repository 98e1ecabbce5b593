"""The transforms of the measured pipelines: every column as it came."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame


def tables(records: pa.Table) -> dict[str, pa.Table]:
    """The Append of the throughput benchmark, over Arrow tables."""
    return {"bench_append": records}


def frames(df: DataFrame) -> dict[str, DataFrame]:
    """The same over DataFrames."""
    return {"bench_append": df}


def latency(df: DataFrame) -> dict[str, DataFrame]:
    """Small transactions through Spark Connect."""
    return {"latency_frames_rows": df}


def submit(df: DataFrame) -> dict[str, DataFrame]:
    """Small transactions through spark-submit."""
    return {"submit_rows": df}


def burst(df: DataFrame) -> dict[str, DataFrame]:
    """Six transactions at once."""
    return {"burst_rows": df}
