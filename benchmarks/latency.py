"""Warm and idle, on the whole stack: from the trigger of a run to its commit beside three tasks that do nothing, and
six runs at once.

`python benchmarks/latency.py`; the figures are left in .state/bench-latency/result.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psycopg
from kafka import KafkaProducer
from psycopg.rows import namedtuple_row
from rich.console import Console
from rich.table import Table

# A script's own directory comes first; the package is beside it.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from ratchet.dev.stack import CHECKOUT, Stack  # noqa: E402
from ratchet.errors import UnknownTopic  # noqa: E402
from ratchet.operate.migrate import migrate  # noqa: E402
from ratchet.source.kafka import Kafka  # noqa: E402
from ratchet.spec.loading import load_pipelines  # noqa: E402

PIPELINES = "benchmarks.pipelines"
EMPTY = "three_empty_tasks"
MORE_THAN_EMPTY = 0.6
"""How many seconds a run may take more than three tasks that do nothing."""
RECORDS = 1_000
AT_ONCE = 6
PATIENCE_SECONDS = 180
TASKS = ("begin", "process", "commit")


@dataclass(frozen=True)
class Sample:
    """One run: seconds from trigger to committed, and what each task and the time between them took."""

    total: float
    parts: dict[str, float]


class Runs:
    """The runs of one DAG, by Airflow's REST API."""

    def __init__(self, name: str, stack: Stack):
        self.name = name
        self._http = httpx.Client(base_url=f"{stack.airflow_url}/api/v2", timeout=30)

    def trigger(self) -> tuple[str, datetime]:
        """Start a run: its id, and when it was asked for."""
        run_id, at = f"bench_{time.time_ns()}", datetime.now(UTC)
        self._http.post(
            f"/dags/{self.name}/dagRuns", json={"dag_run_id": run_id, "logical_date": None}
        ).raise_for_status()
        return run_id, at

    def measure(self) -> float:
        """Seconds of one run from its trigger to the end of its last task."""
        run_id, at = self.trigger()
        self.rest()
        return max((datetime.fromisoformat(t["end_date"]) - at).total_seconds() for t in self.tasks(run_id))

    def tasks(self, run_id: str) -> list[dict[str, Any]]:
        """What Airflow tells of a run's tasks."""
        return self._http.get(f"/dags/{self.name}/dagRuns/{run_id}/taskInstances").json()["task_instances"]

    def rest(self) -> None:
        """Wait until no run is active."""
        active: dict[str, Any] = {"params": {"state": ["queued", "running"], "limit": 1}}
        self.until(lambda: not self._http.get(f"/dags/{self.name}/dagRuns", **active).json()["dag_runs"])

    def appear(self) -> None:
        """Wait until Airflow knows the DAG."""
        self.until(lambda: self._http.get(f"/dags/{self.name}").is_success)

    def until(self, look: Callable[[], Any]) -> Any:
        """What `look` gives when it gives something."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := look()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: nothing for {PATIENCE_SECONDS} s; see the runs in Airflow")
            time.sleep(0.1)
        return found


class Line:
    """One pipeline of the stack."""

    def __init__(self, name: str, stack: Stack):
        self.name, self._kafka = name, stack.kafka
        self._runs = Runs(name, stack)
        self._ledger = psycopg.connect(stack.ledger_url, autocommit=True, row_factory=namedtuple_row)

    def prepare(self) -> None:
        """The topic and the DAG are there, and nothing is left over from before."""
        with Kafka(self._kafka) as kafka:
            try:
                kafka.offsets(self.name)
            except UnknownTopic:
                kafka.admin.create_topics(
                    {self.name: {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True
                )
        self._runs.appear()
        while self.waiting():
            self.measure()

    def waiting(self) -> int:
        """Records that no transaction has committed."""
        with Kafka(self._kafka) as kafka:
            there = sum(kafka.offsets(self.name).stable.values())
        done = self._ledger.execute(
            "select coalesce(sum(until_offset - from_offset), 0)::bigint as n from ratchet.ranges r "
            "join ratchet.heads h using (pipeline) where pipeline = %s and r.txid between 1 and h.txid",
            [self.name],
        ).fetchone()
        return there - done.n

    def publish(self, count: int) -> None:
        """So many records, with keys."""
        producer = KafkaProducer(bootstrap_servers=self._kafka["bootstrap.servers"], linger_ms=20)
        for number in range(count):
            value = {"account": f"a-{number % 97}", "amount": number}
            producer.send(self.name, json.dumps(value).encode(), key=f"key-{number}".encode())
        producer.flush()
        producer.close()

    def measure(self) -> Sample:
        """One run from its trigger to its commit; the next one waits until it has ended."""
        run_id, at = self._runs.trigger()
        row = self._runs.until(lambda: self._committed(run_id))
        self._runs.rest()
        return Sample((row.committed_at - at).total_seconds(), self._parts(run_id, at, row.committed_at))

    def burst(self) -> dict[str, float]:
        """Seconds: of six runs triggered at once, the last one's wait after all were prepared, and the whole."""
        first = self._head() + 1
        started = datetime.now(UTC)
        for _ in range(AT_ONCE):
            self._runs.trigger()
        last = first + AT_ONCE - 1
        self._runs.until(lambda: self._head() >= last)
        row = self._ledger.execute(
            "select max(prepared_at) as prepared, max(committed_at) as committed, min(opened_at) as opened, "
            "sum(records) as records, count(*) as n from ratchet.transactions where pipeline = %s and txid >= %s",
            [self.name, first],
        ).fetchone()
        if (row.n, row.records) != (AT_ONCE, AT_ONCE * RECORDS):
            raise RuntimeError(f"{row.n} transactions of {row.records} records, not {AT_ONCE} of {RECORDS} each")
        self._runs.rest()
        return {
            "wait": (row.committed - row.prepared).total_seconds(),
            "all": (row.committed - started).total_seconds(),
        }

    def _head(self) -> int:
        row = self._ledger.execute("select txid as head from ratchet.heads where pipeline = %s", [self.name]).fetchone()
        return row.head if row else 0

    def _committed(self, run_id: str) -> Any:
        return self._ledger.execute(
            "select t.committed_at from ratchet.transactions t join ratchet.runs r using (pipeline, txid, revision) "
            "where r.dag_id = %s and r.run_id = %s and t.state = 'COMMITTED'",
            [self.name, run_id],
        ).fetchone()

    def _parts(self, run_id: str, at: datetime, committed: datetime) -> dict[str, float]:
        """{"to begin", "begin", "to process", …}: the tasks, and what Airflow needs from one to the next."""
        said = self._runs.tasks(run_id)
        parts, before = {}, at
        for task in TASKS:
            mine = [t for t in said if t["task_id"] == task]
            start = min(datetime.fromisoformat(t["start_date"]) for t in mine)
            # The commit task goes on for a moment after what it is for.
            end = committed if task == "commit" else max(datetime.fromisoformat(t["end_date"]) for t in mine)
            parts |= {f"to {task}": (start - before).total_seconds(), task: (end - start).total_seconds()}
            before = end
        return parts

    def steps(self) -> dict[str, float]:
        """Median seconds of each step inside the jobs, as the votes tell them."""
        votes = self._ledger.execute("select seconds from ratchet.slices where pipeline = %s", [self.name]).fetchall()
        return {step: median(vote.seconds[step] for vote in votes) for step in votes[-1].seconds}


def samples(line: Line, count: int, warm_up: int, beside: Runs | None = None) -> tuple[list[Sample], list[float]]:
    """So many runs of exactly 1,000 records each, one after the other, behind some that are not counted; and after
    each a run `beside` it.
    """
    line.prepare()
    found: list[Sample] = []
    others: list[float] = []
    if beside is not None:
        beside.appear()
    for _ in range(warm_up + count):
        line.publish(RECORDS)
        time.sleep(1)
        found.append(line.measure())
        if beside is not None:
            others.append(beside.measure())
    return found[warm_up:], others[warm_up:]


def main() -> None:
    """Measure, print, and leave the figures in .state/bench-latency/result.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    chosen = parser.parse_args()
    os.environ["RATCHET_PIPELINES"] = PIPELINES
    console = Console(width=None if sys.stdout.isatty() else 120)
    home = CHECKOUT / ".state" / "bench-latency"
    shutil.rmtree(home, ignore_errors=True)
    dags = str(CHECKOUT / "benchmarks" / "dags")
    with Stack(home, env={"RATCHET_PIPELINES": PIPELINES, "AIRFLOW__CORE__DAGS_FOLDER": dags}, lasting=True) as stack:
        migrate(stack.ledger_url, load_pipelines().values())
        line = Line("latency", stack)
        connect, empty = samples(line, chosen.runs, warm_up=2, beside=Runs(EMPTY, stack))
        steps = line.steps()
        frames, _ = samples(Line("latency_frames", stack), chosen.runs, warm_up=2)
        burst = Line("burst", stack)
        samples(burst, 0, warm_up=1)
        burst.publish(AT_ONCE * RECORDS)
        time.sleep(1)
        at_once = burst.burst()
        submit, _ = samples(Line("submit", stack), min(2, chosen.runs), warm_up=0)
        memory = stack.peak_memory()
    engines = {"Spark Connect": connect, "Spark Connect, DataFrames": frames, "spark-submit": submit}
    console.print(_table(engines))
    more = median(s.total for s in connect) - median(empty)
    each = " ".join(f"{seconds:.2f}" for seconds in empty)
    console.print(f"three tasks that do nothing: {median(empty):.2f} s, each {each}", markup=False)
    met = "yes" if more <= MORE_THAN_EMPTY else "NO"
    console.print(
        f"aim: with Spark Connect at most {MORE_THAN_EMPTY} s more; measured {more:.2f} s; met: {met}", markup=False
    )
    inside = ", ".join(f"{step} {seconds:.2f}" for step, seconds in steps.items())
    console.print(f"inside a job with Spark Connect: {inside}", markup=False)
    console.print(
        f"{AT_ONCE} runs at once: the last was committed {at_once['wait']:.2f} s after all were prepared, "
        f"{at_once['all']:.1f} s after the first trigger"
    )
    said = sorted(memory.items(), key=lambda item: -item[1])
    console.print(f"peak memory in MiB: {', '.join(f'{n} {held / 2**20:,.0f}' for n, held in said)}", markup=False)
    console.print(f"together {sum(memory.values()) / 2**20:,.0f} MiB", markup=False)
    result = {
        "seconds": {name: [vars(s) for s in of] for name, of in engines.items()},
        "empty": empty,
        "steps": steps,
        "burst": at_once,
        "peak_memory": memory,
    }
    (home / "result.json").write_text(json.dumps(result, indent=2))


def _table(engines: dict[str, list[Sample]]) -> Table:
    table = Table(title=f"trigger → committed of {RECORDS:,} records, seconds, medians")
    steps = [part for task in TASKS for part in (f"to {task}", task)]
    for heading in ("engine", "runs", "total", "each", *steps):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for name, of in engines.items():
        each = " ".join(f"{s.total:.2f}" for s in of)
        parts = [f"{median(s.parts[step] for s in of):.2f}" for step in steps]
        table.add_row(name, str(len(of)), f"{median(s.total for s in of):.2f}", each, *parts)
    return table


if __name__ == "__main__":
    main()
