"""Waiting for a condition with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(what: str, look: Callable[[], T], seconds: float = 120) -> T:
    """What `look` gives as soon as it is true; AssertionError with `what` and its last answer at the deadline."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; {found!r}"
        time.sleep(0.1)
    return found
