"""Transforms that a test can hold or fail: they run where the job is driven, and look at files there."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ratchet import Refused

HOLDS = "RATCHET_TEST_HOLDS"
"""Names the directory in which a test says what the next jobs of a pipeline are to do."""


def warm(df: DataFrame) -> dict[str, DataFrame]:
    """The records, through Spark Connect."""
    obeyed = obey("warm", df)
    return {"warm_rows": obeyed, "warm_sums": obeyed}


def cold(df: DataFrame) -> dict[str, DataFrame]:
    """The records, through spark-submit."""
    return {"cold_rows": obey("cold", df)}


def asked(df: DataFrame) -> dict[str, DataFrame]:
    """The records, of runs that are asked for."""
    return {"asked_rows": obey("asked", df)}


def arriving(df: DataFrame) -> dict[str, DataFrame]:
    """The records, of runs that records start."""
    return {"arriving_rows": obey("arriving", df)}


def several(df: DataFrame) -> dict[str, DataFrame]:
    """The records of several topics."""
    return {"several_rows": obey("several", df)}


def secret(df: DataFrame) -> dict[str, DataFrame]:
    """The records, with connections that hold canaries."""
    return {"secret_rows": obey("secret", df)}


def secret_cold(df: DataFrame) -> dict[str, DataFrame]:
    """The same, submitted; held after a first query, so that there is something to show."""
    df.count()
    return {"secret_cold_rows": obey("secret_cold", df)}


def standalone(df: DataFrame) -> dict[str, DataFrame]:
    """The records, through spark-submit to a cluster."""
    return {"standalone_rows": obey("standalone", df)}


def crash(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are; besides, Spark's own tasks wait while there is a file `crash.wait`."""
    obeyed = obey("crash", df)
    wait = F.udf(waiting(f"{os.environ[HOLDS]}/crash"), "bigint").asNondeterministic()
    return {"crash_rows": obeyed.withColumn("v", wait("v")), "crash_sums": obeyed}


def waiting(file: str):
    """A function for Spark's workers, which have no modules of the tests."""

    def wait(value: int) -> int:
        import os
        import time

        while os.path.exists(f"{file}.wait"):
            with open(f"{file}.waiting.{os.getpid()}", "w"):
                time.sleep(0.1)
        return value

    return wait


def strict(df: DataFrame) -> dict[str, DataFrame]:
    return {"strict_rows": obey("strict", df)}


def monthly(df: DataFrame) -> dict[str, DataFrame]:
    return {"monthly_rows": obey("monthly", df)}


def obey(pipeline: str, df: DataFrame) -> DataFrame:
    """The records, as the files of the pipeline say.

    The first to take `<pipeline>.hold` waits for its release: taking it renames it to `<pipeline>.held.<process id>`,
    which the test deletes. Then it raises if there is `<pipeline>.fail`, refuses with what `<pipeline>.refuse` says,
    and multiplies `v` by what `<pipeline>.factor` says.
    """
    holds = Path(os.environ[HOLDS])
    held = holds / f"{pipeline}.held.{os.getpid()}"
    with suppress(FileNotFoundError):
        (holds / f"{pipeline}.hold").rename(held)
    while held.exists():
        time.sleep(0.05)
    fail, refuse, factor = (holds / f"{pipeline}.{what}" for what in ("fail", "refuse", "factor"))
    if fail.exists():
        raise ValueError("the test wants this transform to fail")
    if refuse.exists():
        raise Refused(refuse.read_text())
    return df.withColumn("v", F.col("v") * int(factor.read_text())) if factor.exists() else df
