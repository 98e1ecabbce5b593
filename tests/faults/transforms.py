"""The transforms of the killed pipelines: the records as they are, and once what a file says.

A file is taken by the first job that finds it, so what it asks for happens once, whoever is killed then; nobody has to
let a job go on.
"""

from __future__ import annotations

import functools
import os
import time
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame

from ratchet import Refused

ASKED = "RATCHET_FAULTS_ASKED"
"""Names the directory of those files: `PIPELINE.slow` with the seconds that the job takes, `.refuse`, `.fail`."""


def transform(pipeline: str, df: DataFrame) -> dict[str, DataFrame]:
    slow = _take(pipeline, "slow")
    if slow is not None:
        time.sleep(float(slow))
    if _take(pipeline, "refuse") is not None:
        raise Refused("the test wants a refusal")
    if _take(pipeline, "fail") is not None:
        raise ValueError("the test wants a failure")
    return {f"{pipeline}_{sink}": df for sink in ("rows", "sums", "last")}


def _take(pipeline: str, what: str) -> str | None:
    """What the file says, for the one job that takes it; None for every other."""
    asked = Path(os.environ[ASKED], f"{pipeline}.{what}")
    taken = asked.with_name(f"{asked.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        asked.rename(taken)
        said = taken.read_text()
        taken.unlink()
        return said
    return None


def __getattr__(name: str):
    """`connect_1`, `submit` and the others: a transform for each pipeline of package `lines`."""
    if name.startswith("_"):
        raise AttributeError(name)
    return functools.partial(transform, name)
