"""Waiting for a condition with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(what: str, look: Callable[[], T], seconds: float = 120) -> T:
    """What `look` gives as soon as it is true; AssertionError with `what` and its last answer at the deadline."""
    began = time.monotonic()
    while not (found := look()):
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds:.0f} s: {what}; {found!r}"
        # Whoever has waited for long is not in a hurry, and most looks ask Airflow, whom an answer costs 20 ms.
        time.sleep(min(0.05 + waited / 20, 0.3))
    return found
