"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = 30) -> T:
    """What `condition` returns once it is true; AssertionError with its last answer when it is not in time."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not so after {seconds} s, but {answer!r}"
        time.sleep(0.1)
    return answer
