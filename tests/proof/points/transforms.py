"""The transforms of the killed pipelines: the records as they are, and once what a file says.

A file is taken by the first job that finds it, so what it asks for happens once, whoever is killed then. A hold is for
a job that has the first of what was published: of two transactions the other one would wait for nothing.
"""

from __future__ import annotations

import functools
import os
import time
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame

from ratchet import Refused
from tests.proof.witness.plain import Made, plain_numbers

ASKED = "RATCHET_FAULTS_ASKED"
"""Names the directory of those files: `PIPELINE.hold`, `.refuse`, `.fail`."""
PATIENCE = 180
"""Seconds for which a held job waits at most, if nobody lets it go."""


def transform(pipeline: str, df: DataFrame) -> dict[str, DataFrame]:
    held = _take(pipeline, "hold") if _is_asked(pipeline, "hold") and not df.where("v = 0").isEmpty() else None
    until = time.monotonic() + PATIENCE
    while held and held.exists() and time.monotonic() < until:
        time.sleep(0.1)
    if _take(pipeline, "refuse"):
        raise Refused("the test wants a refusal")
    if _take(pipeline, "fail"):
        raise ValueError("the test wants a failure")
    return {f"{pipeline}_{sink}": df for sink in ("rows", "sums", "last")}


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
    if name.startswith("plain_"):
        return functools.partial(plain, name.removeprefix("plain_"))
    return functools.partial(transform, name)
