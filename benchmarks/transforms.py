"""The transforms of the measured pipelines: every column as it came."""

from __future__ import annotations

from pyspark.sql import DataFrame


def rows(df: DataFrame) -> dict[str, DataFrame]:
    """The records of the throughput benchmark."""
    return {"bench_rows": df}


def latency(df: DataFrame) -> dict[str, DataFrame]:
    """Small transactions through Spark Connect."""
    return {"latency_rows": df}


def submit(df: DataFrame) -> dict[str, DataFrame]:
    """Small transactions through spark-submit."""
    return {"submit_rows": df}


def burst(df: DataFrame) -> dict[str, DataFrame]:
    """Six transactions at once."""
    return {"burst_rows": df}
