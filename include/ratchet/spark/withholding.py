"""What Spark's tasks let out of errors: Spark logs whatever a task raises, so values are left out there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pyarrow as pa

from ratchet.values.withheld import kept_out

Task = Callable[[Any, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The `__call__` of what a task does; the object says whether it is `private`."""


def withholding(task: Task) -> Task:
    """The task, whose errors hold no values where its pipeline is private."""

    @wraps(task)
    def call(self: Any, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with kept_out(self.private):
            yield from task(self, given)

    return call
