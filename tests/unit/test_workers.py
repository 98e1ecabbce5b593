"""What a Python worker of Spark takes for changed code."""

import gc
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


@pytest.mark.parametrize("is_new", [True, False])
def test_what_a_worker_has_loaded_for_its_first_task_is_left_alone_by_the_collector_from_then_on(is_new):
    loaded: list[list[object]] = []
    ours, spark_s = os.pipe()
    os.write(spark_s, b"a task, and another")
    worker = workers.Fresh("m", lambda *_: loaded.append([[] for _ in range(100)]), workers._now() + 1, is_new=is_new)
    try:
        with open(ours, "rb") as infile, open(os.devnull, "wb") as outfile:
            worker(infile, outfile)
            once = gc.get_freeze_count()
            worker(infile, outfile)
        assert once > 100 and len(loaded) == 2
        # What the second task has loaded is still looked at.
        assert any(each is loaded[1] for each in gc.get_objects())
        assert not any(each is loaded[0] for each in gc.get_objects())
    finally:
        gc.unfreeze()
        os.close(spark_s)
