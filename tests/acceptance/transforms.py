"""Transforms that a test can hold or fail: they run where the job is driven, and look at files there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyspark.sql import DataFrame

HOLDS = "RATCHET_TEST_HOLDS"
"""Names the directory in which a test says what the next jobs of a pipeline are to do."""


def warm(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are, through Spark Connect."""
    obey("warm")
    return {"warm_rows": df, "warm_sums": df}


def cold(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are, through spark-submit."""
    obey("cold")
    return {"cold_rows": df}


def secret(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are, with connections that hold canaries."""
    obey("secret")
    return {"secret_rows": df}


def secret_cold(df: DataFrame) -> dict[str, DataFrame]:
    """The same, submitted; held after a first query, so that there is something to show."""
    df.limit(1).collect()
    obey("secret_cold")
    return {"secret_cold_rows": df}


def standalone(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are, through spark-submit to a cluster."""
    obey("standalone")
    return {"standalone_rows": df}


def obey(pipeline: str) -> None:
    """Raise while there is a file `<pipeline>.fail`; the first to take `<pipeline>.hold` waits for its release.

    Taking it renames it to `<pipeline>.held.<process id>`; the test deletes that to release the job.
    """
    holds = Path(os.environ[HOLDS])
    if (holds / f"{pipeline}.fail").exists():
        raise ValueError("the test wants this transform to fail")
    held = holds / f"{pipeline}.held.{os.getpid()}"
    try:
        (holds / f"{pipeline}.hold").rename(held)
    except FileNotFoundError:
        return
    while held.exists():
        time.sleep(0.05)
