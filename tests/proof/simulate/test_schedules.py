"""Schedules in which everything that can be killed, lost, doubled or late is so, between any two statements."""

from __future__ import annotations

import re

import pytest

from .conftest import SCHEDULES
from .schedule import COMMITS, GROUPS, WAITS


@pytest.mark.timeout(2400)
def test_whatever_is_interleaved_and_cut_off_each_record_takes_effect_once(schedules):
    status, said = schedules()
    print(said)
    assert status == 0, said
    found = {what: int(number.replace(",", "")) for number, what in re.findall(r"(\d[\d,]*) ([a-z ]+)", said)}
    assert found["finished"] >= SCHEDULES
    # A schedule that never comes to a commit shows nothing of it.
    for what, share in ((COMMITS, 4), (WAITS, 4), (GROUPS, 50)):
        assert found[what] >= SCHEDULES / share, f"{found[what]} {what} in {SCHEDULES} schedules"
