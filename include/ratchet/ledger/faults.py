"""Faults: what is found wrong, a line each, however much of it there is."""

from __future__ import annotations

MOST = 100
"""So many are said one by one."""


class Faults:
    """The first faults of a check, and how many more it has found."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._more = 0

    def add(self, line: str) -> None:
        """One more."""
        if len(self._first) < MOST:
            self._first.append(line)
        else:
            self._more += 1

    @property
    def lines(self) -> list[str]:
        """What to say of them; empty when there is none."""
        return [*self._first, f"and {self._more:,} more like these"] if self._more else list(self._first)
