"""A transform whose tasks a test can hold: they run on executors, and look at files there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

HOLDS = "RATCHET_TEST_HOLDS"
"""Names the directory in which a test says which tasks are to wait."""


def transform(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are, by way of Python on the executors."""
    return {"cluster_rows": df.mapInArrow(obey, df.schema)}


def obey(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All batches; a task for which there is a hold waits before it gives the last one."""
    last = None
    for batch in batches:
        if last is not None:
            yield last
        last = batch
    task = TaskContext.get()
    _wait(Path(os.environ[HOLDS]), f"{task.partitionId()}.{task.attemptNumber()}", task.taskAttemptId())
    if last is not None:
        yield last


def _wait(holds: Path, name: str, attempt: int) -> None:
    """Take `<name>.hold` by renaming it to `<name>.held.<process id>.<attempt>`, and wait until that is deleted."""
    parent = os.getppid()
    held = holds / f"{name}.held.{os.getpid()}.{attempt}"
    try:
        (holds / f"{name}.hold").rename(held)
    except FileNotFoundError:
        return
    while held.exists() and os.getppid() == parent:
        time.sleep(0.05)


@dataclass(frozen=True)
class Held:
    """A task that waits: its file, its Python process, and the id that Spark gave this attempt at it."""

    file: Path
    pid: int
    attempt: int


def hold(holds: Path, partition: int, attempt_number: int = 0) -> None:
    """Make this attempt (0, 1, …) at this Spark partition wait."""
    (holds / f"{partition}.{attempt_number}.hold").touch()


def held(holds: Path, partition: int, attempt_number: int = 0) -> Held | None:
    """The task that waits, if it does by now."""
    for file in holds.glob(f"{partition}.{attempt_number}.held.*"):
        *_, pid, attempt = file.name.split(".")
        return Held(file, int(pid), int(attempt))
    return None
