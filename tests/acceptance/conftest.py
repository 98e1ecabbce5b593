"""One whole stack for all acceptance tests, with their own pipelines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.migrate import migrate
from ratchet.specs import load_pipelines
from ratchet.stack import Stack

from .line import Line
from .transforms import HOLDS

PIPELINES = "tests.acceptance.pipelines"


@pytest.fixture(scope="session")
def whole(scratch: Path) -> Iterator[tuple[Stack, Path]]:
    """All servers, with the pipelines of this package, and the directory that their transforms obey."""
    holds = scratch / "holds"
    holds.mkdir()
    env = {"RATCHET_PIPELINES": PIPELINES, HOLDS: str(holds)}
    before = os.environ.get("RATCHET_PIPELINES")
    os.environ["RATCHET_PIPELINES"] = PIPELINES
    try:
        specs = load_pipelines()
    finally:
        os.environ.pop("RATCHET_PIPELINES") if before is None else os.environ.update(RATCHET_PIPELINES=before)
    with Stack(scratch / "acceptance", env=env) as stack:
        migrate(stack.ledger_url, specs.values())
        yield stack, holds


def _line(whole: tuple[Stack, Path], name: str) -> Iterator[Line]:
    stack, holds = whole
    with Line(name, stack.ledger_url, stack.kafka, stack.airflow_url, holds) as line:
        line.reset()
        yield line
        line.reset()


@pytest.fixture
def warm(whole) -> Iterator[Line]:
    """The pipeline through Spark Connect: 100 records a transaction, two slices."""
    yield from _line(whole, "warm")


@pytest.fixture
def cold(whole) -> Iterator[Line]:
    """The pipeline through spark-submit: 100 records a transaction, one slice."""
    yield from _line(whole, "cold")


@pytest.fixture
def lost(whole) -> Iterator[Line]:
    """The pipeline whose Spark connection does not exist."""
    stack, holds = whole
    with Line("lost", stack.ledger_url, stack.kafka, stack.airflow_url, holds) as line:
        line.find_dag()
        yield line
