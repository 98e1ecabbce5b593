"""One whole stack for all acceptance tests, with their own pipelines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError

from ratchet.dev.stack import CHECKOUT, SERVERS, Stack
from ratchet.operate.migrate import migrate
from ratchet.spec.loading import load_pipelines
from tests.summary import noted

from .line import PIPELINES, Line
from .runs import LASTING_DAGS, MAINTENANCE
from .transforms import HOLDS

BUNDLES = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"


@pytest.fixture(scope="package")
def whole(scratch: Path) -> Iterator[tuple[Stack, Path]]:
    """All servers, with the pipelines of this package, and the directory that their transforms obey."""
    with stack_of(scratch / "acceptance") as made:
        yield made


@contextmanager
def stack_of(
    home: Path,
    servers: Iterable[str] = SERVERS,
    *,
    pipelines: str = PIPELINES,
    more: dict[str, str] | None = None,
    schedulers: int = 1,
) -> Iterator[tuple[Stack, Path]]:
    """A stack with the pipelines of a package, and the directory that their transforms obey.

    `more` is added to the environment of its servers.
    """
    holds = home.with_name(f"{home.name}-holds")
    holds.mkdir()
    env = {"RATCHET_PIPELINES": pipelines, HOLDS: str(holds), BUNDLES: json.dumps(_bundles()), **LASTING_DAGS}
    env |= more or {}
    with pytest.MonkeyPatch.context() as patch:
        # A spec names a directory among those of the test.
        patch.setenv("RATCHET_PIPELINES", pipelines)
        patch.setenv(HOLDS, str(holds))
        specs = load_pipelines()
    with Stack(home, servers, env=env, schedulers=schedulers) as stack:
        migrate(stack.ledger_url, specs.values())
        _pause_maintenance(stack, holds)
        yield stack, holds


def _bundles() -> list[dict[str, Any]]:
    """Where Airflow finds DAGs: those that users have, and those of a DAG that is told of commits."""
    path = "airflow.dag_processing.bundles.local.LocalDagBundle"
    folders = {"dags-folder": CHECKOUT / "dags", "acceptance": Path(__file__).parent / "dags"}
    return [{"name": name, "classpath": path, "kwargs": {"path": str(at)}} for name, at in folders.items()]


def _pause_maintenance(stack: Stack, holds: Path) -> None:
    """It starts runs by itself; the tests that want that say so."""
    with Line("warm", stack.ledger_url, stack.kafka, stack.airflow_url, holds) as line:
        line.find_dag(MAINTENANCE)
        line.rest()


def line_of(whole: tuple[Stack, Path], name: str, pipelines: str = PIPELINES) -> Iterator[Line]:
    """A pipeline of the stack, with nothing unfinished before and after."""
    stack, holds = whole
    with Line(name, stack.ledger_url, stack.kafka, stack.airflow_url, holds, pipelines) as line:
        line.reset()
        yield line
        line.reset()


@pytest.fixture
def warm(whole) -> Iterator[Line]:
    """The pipeline through Spark Connect: 100 records a transaction, two slices."""
    yield from line_of(whole, "warm")


@pytest.fixture
def cold(whole) -> Iterator[Line]:
    """The pipeline through spark-submit: 100 records a transaction, one slice."""
    yield from line_of(whole, "cold")


@pytest.fixture
def strict(whole) -> Iterator[Line]:
    """The pipeline that halts after two failures, with a gate and a deadline: 100 records a transaction, one slice."""
    yield from line_of(whole, "strict")


@pytest.fixture
def asked(whole) -> Iterator[Line]:
    """The pipeline whose runs people start: 100 records a transaction, one slice."""
    yield from line_of(whole, "asked")


@pytest.fixture
def arriving(whole) -> Iterator[Line]:
    """The pipeline whose runs records start: 20 of them or 5 seconds, 100 records a transaction, one slice."""
    stack, _ = whole
    admin = KafkaAdminClient(bootstrap_servers=stack.kafka["bootstrap.servers"])
    with suppress(TopicAlreadyExistsError):
        admin.create_topics([NewTopic("arriving-out", 2, 1)])
    admin.close()
    yield from line_of(whole, "arriving")


@pytest.fixture
def several(whole) -> Iterator[Line]:
    """The pipeline of all topics `several-??`, of which there are two: 100 records a transaction, 25 a slice."""
    for line in line_of(whole, "several"):
        for topic in ("several-eu", "several-us"):
            line.create_topic(topic)
        yield line


@pytest.fixture
def monthly(whole) -> Iterator[Line]:
    """The pipeline that plans by interval, one slice."""
    yield from line_of(whole, "monthly")


@pytest.fixture
def lost(whole) -> Iterator[Line]:
    """The pipeline whose Spark connection does not exist."""
    stack, holds = whole
    with Line("lost", stack.ledger_url, stack.kafka, stack.airflow_url, holds) as line:
        line.find_dag()
        yield line


@pytest.fixture
def crash(whole) -> Iterator[Line]:
    """The pipeline whose servers are killed: 100 records a transaction, two slices; with maintenance at work."""
    for line in line_of(whole, "crash"):
        with line.maintained():
            yield line


RECOVERIES = "seconds from kill -9"


@pytest.fixture
def recovered(record_property) -> Callable[[str, float, float], None]:
    """Note for the summary: what was killed, after how many seconds all was committed, and when every run had ended."""
    return lambda *row: record_property(RECOVERIES, row)


def pytest_terminal_summary(terminalreporter) -> None:
    rows = noted(terminalreporter, RECOVERIES)
    if rows:
        terminalreporter.section(RECOVERIES)
        terminalreporter.write_line(f"{'killed':<15}{'all is committed':>18}{'every run has ended':>21}")
        for name, committed, ended in rows:
            terminalreporter.write_line(f"{name:<15}{committed:>18.1f}{ended:>21.1f}")
