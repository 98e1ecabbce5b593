"""What a Python worker of Spark takes for changed code."""

import importlib
import os
import sys

import pytest

from ratchet.spark import workers


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "rates_of_today.py").write_text("RATE = 7")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("rates_of_today")
    sys.modules.pop("rates_of_today")


def test_a_file_that_was_loaded_and_not_touched_since_is_not_changed(module):
    assert not workers.changed_since(os.stat(module.__file__).st_ctime_ns + 1)


def test_a_file_that_was_replaced_by_one_of_an_older_time_is_changed(module, tmp_path):
    before = os.stat(module.__file__).st_ctime_ns + 1
    assert not workers.changed_since(before)
    (tmp_path / "other").write_text("RATE = 8")
    os.utime(tmp_path / "other", (0, 0))
    (tmp_path / "other").rename(module.__file__)
    assert workers.changed_since(before)


def test_a_file_that_is_gone_is_changed(module):
    before = os.stat(module.__file__).st_ctime_ns + 1
    os.remove(module.__file__)
    assert workers.changed_since(before)


def test_the_age_of_this_process_is_that_since_its_start():
    began = workers._now() - workers._age()
    assert 0 < workers._now() - began < 3600 * 10**9
