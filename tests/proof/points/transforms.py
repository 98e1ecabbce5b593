"""The transforms of the killed pipelines: the records as they are, and once what a file says.

A file is taken by the first job that finds it, so what it asks for happens once, whoever is killed then. A hold is for
a job that has the first of what was published: of two transactions the other one would wait for nothing.
"""

from __future__ import annotations

import functools
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ratchet import Refused
from tests.proof.witness.plain import GIVEN_UP, Made, plain_numbers

ASKED = "RATCHET_FAULTS_ASKED"
"""Names the directory of those files: `PIPELINE.hold`, `.refuse`, `.fail`."""
PATIENCE = 180
"""Seconds for which a held job waits at most, if nobody lets it go."""
KEYED = {"": (0, 3), "_otherwise": (4, 5)}
"""{end of a transform's name: where tens of `v` begin and which rows delete}: two versions make other keys."""


def transform(pipeline: str, df: DataFrame) -> dict[str, DataFrame]:
    _obey(pipeline, df)
    return {f"{pipeline}_{sink}": df for sink in ("rows", "sums", "last")}


def keyed(pipeline: str, shift: int, every: int, df: DataFrame) -> dict[str, DataFrame]:
    """The records of a key are rows of several, ten values of `v` of each; some delete theirs, and are in no sum."""
    _obey(pipeline, df)
    ten = F.floor((F.col("v") + shift) / 10).cast("string")
    made = df.withColumn("k", F.concat_ws(" of ", "k", ten)).withColumn("_deleted", F.col("v") % every == 0)
    return {f"{pipeline}_last": made, f"{pipeline}_sums": made.where(~F.col("_deleted"))}


def plain_keyed(pipeline: str, shift: int, every: int, _: bytes | None, value: bytes) -> Made:
    try:
        row = json.loads(value)
    except ValueError:
        return GIVEN_UP
    made = {"k": f"{row['k']} of {(row['v'] + shift) // 10}", "v": row["v"]}
    if row["v"] % every == 0:
        return {f"{pipeline}_last": [{**made, "_deleted": True}]}
    return {f"{pipeline}_last": [made], f"{pipeline}_sums": [made]}


def _obey(pipeline: str, df: DataFrame) -> None:
    """Do what a file asks for."""
    held = _take(pipeline, "hold") if _is_asked(pipeline, "hold") and not df.where("v = 0").isEmpty() else None
    until = time.monotonic() + PATIENCE
    while held and held.exists() and time.monotonic() < until:
        time.sleep(0.1)
    if _take(pipeline, "refuse"):
        raise Refused("the test wants a refusal")
    if _take(pipeline, "fail"):
        raise ValueError("the test wants a failure")


def _is_asked(pipeline: str, what: str) -> bool:
    return Path(os.environ[ASKED], f"{pipeline}.{what}").exists()


def _take(pipeline: str, what: str) -> Path | None:
    """The file as the one job has it that takes it; None for every other."""
    asked = Path(os.environ[ASKED], f"{pipeline}.{what}")
    with suppress(FileNotFoundError):
        return asked.rename(asked.with_name(f"{asked.name}.taken"))
    return None


def plain(pipeline: str, _: bytes | None, value: bytes) -> Made:
    return plain_numbers(pipeline, value)


def __getattr__(name: str):
    """`connect_1`, `plain_connect_1` and so on: a transform for each pipeline of package `lines`, and a plain one."""
    if name.startswith("_"):
        raise AttributeError(name)
    pipeline, is_plain = name.removeprefix("plain_"), name.startswith("plain_")
    if pipeline.startswith("keyed"):
        pipeline, version, _ = pipeline.partition("_otherwise")
        return functools.partial(plain_keyed if is_plain else keyed, pipeline, *KEYED[version])
    return functools.partial(plain if is_plain else transform, pipeline)
