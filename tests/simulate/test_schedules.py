"""Schedules in which everything that can be killed, lost, doubled or late is so, between any two statements."""

from __future__ import annotations

import re

import pytest

from .conftest import SCHEDULES


@pytest.mark.timeout(2400)
def test_whatever_is_interleaved_and_cut_off_each_record_takes_effect_once(schedules):
    status, said = schedules()
    print(said)
    assert status == 0, said
    (finished,) = re.findall(r"([\d,]+) finished", said)
    assert int(finished.replace(",", "")) >= SCHEDULES
