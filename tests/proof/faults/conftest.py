"""One world for all tests of faults, and a table of how long each was felt."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.runs import MAINTENANCE
from tests.summary import noted

from .endure import endure
from .fault import Fault
from .shaken import Shaken
from .world import World

FELT = "seconds from the end of a fault"
Endure = Callable[[Fault], None]


@pytest.fixture(scope="session")
def world(scratch) -> Iterator[World]:
    """All servers, with all that surrounds them in the test's hands."""
    with World(scratch / "world", say=lambda line: None) as made:
        yield made


@pytest.fixture
def shaken(world) -> Iterator[Shaken]:
    """The line that is shaken, with nothing unfinished before; maintenance is at work."""
    with Shaken(world) as line:
        line.find_dag(MAINTENANCE)
        line.reset()
        with line.maintained():
            yield line
            line.let_go()


@pytest.fixture
def felt(record_property) -> Callable[[str, float, float], None]:
    """Note for the summary: a kind, seconds from its end until all was committed, and until nothing ran any more."""
    return lambda *row: record_property(FELT, row)


@pytest.fixture(name="endure")
def enduring(shaken: Shaken, felt) -> Endure:
    """Strike with a fault while transactions are in flight, heal it, and see that all is committed exactly once."""

    def one(fault: Fault) -> None:
        recovery = endure(shaken, fault)
        felt(fault.kind, recovery.committed, recovery.ended)

    return one


def pytest_terminal_summary(terminalreporter) -> None:
    rows = noted(terminalreporter, FELT)
    if rows:
        terminalreporter.section(FELT)
        terminalreporter.write_line(f"{'fault':<55}{'all is committed':>18}{'nothing runs':>14}")
        for kind, committed, ended in rows:
            terminalreporter.write_line(f"{kind:<55}{committed:>18.1f}{ended:>14.1f}")
