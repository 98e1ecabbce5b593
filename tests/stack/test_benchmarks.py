"""The benchmarks still run: nothing else calls them, and they call what everything else does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.curves import CURVES
from benchmarks.works import WORKS
from ratchet.dev.stack import CHECKOUT

SECONDS = 900
"""Beside other tests, each takes several times as long as alone."""
pytestmark = pytest.mark.timeout(SECONDS + 60)


def measured(works: str, records: int) -> dict:
    """What one run of these works leaves behind."""
    command = [sys.executable, "-m", "benchmarks.throughput", "--works", works]
    command += ["--records", str(records), "--runs", "1"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((CHECKOUT / ".state" / "bench" / "result.json").read_text())["works"]


@pytest.mark.all
def test_every_curve_is_measured_and_drawn():
    command = [sys.executable, "-m", "benchmarks.curves", "--records", "32000", "--runs", "1"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    said = (CHECKOUT / ".state" / "bench" / "curves.md").read_text()
    assert [line[4:] for line in said.splitlines() if line.startswith("### ")] == [c.title for c in CURVES.values()]
    assert said.count("xychart-beta") == len(CURVES)


@pytest.mark.all
@pytest.mark.parametrize(
    "works", ["append", "upsert,accumulate,sinks", "commit,view,revision", "avro,kafka,parquet,delta,iceberg"]
)
def test_every_contestant_is_measured_and_every_aim_is_judged(works):
    names = works.split(",")
    found = measured(works, records=32_000)
    assert list(found) == names
    for name in names:
        assert all(figures for figures in found[name]["figures"].values())
        assert [aim["said"] for aim in found[name]["aims"]] == [str(aim) for aim in WORKS[name].aims]
