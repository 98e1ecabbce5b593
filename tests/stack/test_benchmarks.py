"""The benchmarks still run: nothing else calls them, and they call what everything else does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ratchet.dev.stack import CHECKOUT


@pytest.mark.all
def test_throughput_is_measured_of_all_three():
    command = [sys.executable, "benchmarks/throughput.py", "--records", "20000", "--runs", "1"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("run 1, ratchet: ", "run 1, Structured Streaming: ", "run 1, Spark, count only: ", "commit's part"):
        assert said in done.stdout
