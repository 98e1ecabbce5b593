"""What becomes of the records of pipelines that are shaken; a test can hold them, in the driver or in Spark."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.acceptance.transforms import HOLDS, obey, waiting
from tests.proof.witness.plain import Made, plain_numbers

GIVEN_UP = 13
"""One in so many records is given up."""


def shaken(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are; a few are given up. Spark's own tasks wait while there is `shaken.wait`."""
    obeyed = obey("shaken", df)
    given_up = F.when(F.col("v") % GIVEN_UP == 0, F.lit("thirteen"))
    good, bad = obeyed.where(given_up.isNull()), obeyed.withColumn("error", given_up).where("error is not null")
    wait = F.udf(waiting(f"{os.environ[HOLDS]}/shaken"), "bigint").asNondeterministic()
    return {
        "shaken_rows": good.withColumn("v", wait("v")),
        "shaken_sums": good,
        "shaken_last": good,
        "dead_letters": bad,
    }


def plain_shaken(_: bytes | None, value: bytes) -> Made:
    return plain_numbers("shaken", value, given_up=GIVEN_UP)
