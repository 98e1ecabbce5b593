"""Warm and idle, on the whole stack: from the trigger of a run until its destination has its 1,000 rows, for each kind
of destination, beside the same pipeline without one until its commit; all of them by turns.

`python benchmarks/outside.py`; the figures are left in .state/bench-outside/result.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psycopg
from rich.console import Console
from rich.table import Table

# A script's own directory comes first; the package is beside it.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.destinations.shape import CATALOG, DATABASE, HOME  # noqa: E402
from benchmarks.latency import RECORDS, Line  # noqa: E402
from ratchet.dev.stack import CHECKOUT, Stack  # noqa: E402
from ratchet.operate.migrate import migrate  # noqa: E402
from ratchet.source.kafka import Kafka  # noqa: E402
from ratchet.spec.loading import load_pipelines  # noqa: E402

PIPELINES = "benchmarks.destinations"
ALONE = "alone"
MORE_THAN_ALONE = 0.5
"""How many seconds a destination may add to the median."""
WARM_UP = 2


class Sent(Line):
    """A pipeline, whose runs are over when its destination has what they have committed."""

    def _committed(self, run_id: str) -> Any:
        return self._ledger.execute(
            "select greatest(t.committed_at, d.reached_at) as committed_at from ratchet.transactions t "
            "join ratchet.runs r using (pipeline, txid, revision) join ratchet.pipelines p using (pipeline) "
            "left join ratchet.destinations d using (pipeline) where r.dag_id = %s and r.run_id = %s "
            "and t.state = 'COMMITTED' and (d.step is null or d.step = p.step)",
            [self.name, run_id],
        ).fetchone()

    def step(self) -> float:
        """Seconds from the last commit until its destination had it; 0 where there is none."""
        row = self._ledger.execute(
            "select extract(epoch from d.reached_at - t.committed_at)::float8 as took from ratchet.transactions t "
            "join ratchet.destinations d using (pipeline) where pipeline = %s order by t.txid desc limit 1",
            [self.name],
        ).fetchone()
        return row.took if row else 0.0


def main() -> None:
    """Measure, print, and leave the figures in .state/bench-outside/result.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    chosen = parser.parse_args()
    home = CHECKOUT / ".state" / "bench-outside"
    shutil.rmtree(home, ignore_errors=True)
    os.environ.update({"RATCHET_PIPELINES": PIPELINES, HOME: str(home / "sent")})
    env = {name: os.environ[name] for name in ("RATCHET_PIPELINES", HOME)}
    env["AIRFLOW__CORE__DAGS_FOLDER"] = str(CHECKOUT / "benchmarks" / "dags")
    specs = load_pipelines()
    with Stack(home, env=env, lasting=True) as stack:
        migrate(stack.ledger_url, specs.values())
        _connect(stack)
        lines = [Sent(name, stack) for name in specs]
        for line in lines:
            line.prepare()
        seconds, steps = _by_turns(lines, chosen.runs)
    (home / "result.json").write_text(json.dumps({"seconds": seconds, "steps": steps}, indent=2))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(_table(seconds, steps))


def _by_turns(lines: list[Sent], runs: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """{pipeline: seconds of each of its runs}, and of each one's step alone, behind some that are not counted; each
    second round goes backwards.
    """
    seconds: dict[str, list[float]] = {line.name: [] for line in lines}
    steps: dict[str, list[float]] = {line.name: [] for line in lines}
    for number in range(WARM_UP + runs):
        for line in lines if number % 2 else reversed(lines):
            line.publish(RECORDS)
            time.sleep(1)
            seconds[line.name].append(line.measure().total)
            steps[line.name].append(line.step())
    seconds, steps = ({name: of[WARM_UP:] for name, of in each.items()} for each in (seconds, steps))
    return seconds, steps


def _connect(stack: Stack) -> None:
    """Make the database, the topic and Airflow's connections."""
    url = stack.database_url(DATABASE)
    with psycopg.connect(stack.ledger_url, autocommit=True) as conn:
        conn.execute(f"create database {DATABASE}")
    with Kafka(stack.kafka) as kafka:
        kafka.admin.create_topics(
            {"topic_sent": {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True
        )
    at = psycopg.conninfo.conninfo_to_dict(url)
    login = {"host": at["host"], "port": int(at["port"]), "login": at["user"], "password": at["password"]}
    catalog = {"type": "sql", "uri": url, "warehouse": f"file://{os.environ[HOME]}/warehouse"}
    with httpx.Client(base_url=f"{stack.airflow_url}/api/v2", timeout=30) as airflow:
        for said in (
            {"connection_id": DATABASE, "conn_type": "postgres", **login, "schema": DATABASE},
            {"connection_id": CATALOG, "conn_type": "iceberg", "extra": json.dumps(catalog)},
        ):
            airflow.post("/connections", json=said).raise_for_status()


def _table(seconds: dict[str, list[float]], steps: dict[str, list[float]]) -> Table:
    table = Table(title=f"trigger → sent, {RECORDS:,} records, seconds, medians; aim: {MORE_THAN_ALONE} s more")
    for heading in ("destination", "runs", "total", "more", "met", "step", "each"):
        table.add_column(heading, justify="left" if heading == "destination" else "right")
    alone = median(seconds[ALONE])
    for name, of in seconds.items():
        more = median(of) - alone
        met = "" if name == ALONE else "yes" if more <= MORE_THAN_ALONE else "NO"
        each = " ".join(f"{one:.2f}" for one in of)
        step = f"{median(steps[name]):.2f}"
        table.add_row(name, str(len(of)), f"{median(of):.2f}", f"{more:.2f}", met, step, each)
    return table


if __name__ == "__main__":
    main()
