"""I1, I10: whatever is done to a process while transactions are in flight, all is committed once, without a person.

That each server may be killed is shown by tests/acceptance/test_recovery.py.
"""

from __future__ import annotations

import pytest

from .conftest import Endure
from .kinds import fault

pytestmark = pytest.mark.timeout(1200)

KINDS = (
    "PostgreSQL backend killed",
    "Spark worker killed",
    "task killed",
    "supervisor of a task killed",
    "Kafka stopped for 40 s",
    "Spark Connect stopped for 40 s",
    "scheduler stopped for 40 s",
    "triggerer stopped for 40 s",
    "api-server stopped for 40 s",
    "PostgreSQL backend stopped for 40 s",
    "Spark worker stopped for 40 s",
    "task stopped for 40 s",
)


@pytest.mark.all
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_is_killed_or_stands_still_costs_time_and_nothing_else(world, endure: Endure, kind: str):
    endure(fault(world, kind))
