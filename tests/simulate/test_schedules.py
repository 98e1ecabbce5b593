"""Schedules in which everything that can be killed, lost, doubled or late is so, between any two statements."""

from __future__ import annotations

import pytest

from tests.simulate.__main__ import simulate

SCHEDULES, SEED = 2_000, 1
"""The same ones every time, so that no change is blamed for what another one has done; `make simulate` draws others."""


@pytest.mark.timeout(1500)
def test_whatever_is_interleaved_and_cut_off_each_record_takes_effect_once(postgres):
    failed = simulate(postgres, SCHEDULES, SEED, jobs=2)
    assert failed is None, failed
