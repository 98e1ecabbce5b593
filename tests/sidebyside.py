"""Tests in several processes: which stay in one, and which begin first."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath

import pytest
from xdist.scheduler import LoadScopeScheduling

STACKS = ("acceptance", "proof/faults")
"""Packages below `tests` that share one of all servers, which takes half a minute to start."""
ORDER = ("proof/simulate", *STACKS, "proof/points", "unit", "stack", "proof", "spark")
"""What takes longest begins first; behind the schedules, in their process, comes something small."""


class ByServers(LoadScopeScheduling):
    """The tests of a module stay in one process, since it may have a session or a topic that is made once."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "stacks" if any(_is_below(path, part) for part in STACKS) else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByServers:
    """Called where there are several."""
    return ByServers(config, log)  # pyright: ignore[reportArgumentType]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests in their order; of the others large modules come first, so that no process ends long after the rest."""
    sizes = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[int, int, str]:
        at = next((at for at, part in enumerate(ORDER) if _is_below(item.nodeid, part)), len(ORDER))
        return (at, -sizes[item.path], str(item.path)) if at == len(ORDER) else (at, 0, "")

    items.sort(key=place)


def _is_below(nodeid: str, part: str) -> bool:
    return PurePath(nodeid.partition("::")[0]).is_relative_to(PurePath("tests") / part)
