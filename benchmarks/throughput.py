"""`make bench`: records per second from a waiting backlog into an Append, beside a bare count and Streaming."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

# A script's own directory comes first; the package is beside it.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import backlog, streaming, table  # noqa: E402
from benchmarks.drain import Drain  # noqa: E402
from ratchet.dev.stack import CHECKOUT, Stack, prerequisites  # noqa: E402
from ratchet.spark.engine import connect_session  # noqa: E402
from ratchet.spark.reader import read  # noqa: E402

BATCH_SIZES = (1_000, 10_000, 50_000)
CONTESTANTS = {
    "ratchet": "ratchet, without a transform",
    "frames": "ratchet, a transform over DataFrames",
    "count": "Spark, count only",
    "streaming": "Structured Streaming",
}


class Bench:
    """The contestants over one backlog, on servers that are up; `session` serves the bare count."""

    def __init__(
        self, stack: Stack, session: SparkSession, driver: streaming.Streaming, records: int, console: Console
    ):
        self.stack, self.session, self.driver, self.records, self.console = stack, session, driver, records, console
        self.url, self.kafka = stack.ledger_url, stack.kafka
        self.topic = backlog.fill(self.kafka, records, stack.home)
        self.plans = backlog.plans(self.kafka, self.topic, table.CAP)
        self.spec = table.spec_of("bench", self.topic)
        self.batch_size = BATCH_SIZES[0]
        self.steps: list[dict[str, float]] = []

    def ratchet(self) -> float:
        """Seconds of a fresh pipeline from its first begin to its last commit, checked row by row: worker lane."""
        seconds, drain = self._drained(None)
        self.steps.append(drain.from_ledger())
        return seconds

    def frames(self) -> float:
        """The same through the DataFrame lane."""
        return self._drained("benchmarks.transforms:rows")[0]

    def _drained(self, transform: str | None) -> tuple[float, Drain]:
        spec = table.spec_of(f"bench_{time.time_ns() // 10**6}", self.topic, transform)
        table.renew(self.url, spec)
        drain = Drain(self.url, self.kafka, self.stack.spark, spec)
        seconds = drain.run()
        table.verify(self.url, self.plans)
        return seconds, drain

    def count(self) -> float:
        """Seconds to count the same ranges, one batch job for each transaction's."""
        started = time.monotonic()
        counted = sum(read(self.session, ranges, self.kafka).count() for ranges in self.plans)
        seconds = time.monotonic() - started
        if counted != self.records:
            raise RuntimeError(f"{counted:,} records were counted of {self.records:,}")
        return seconds

    def streaming(self) -> float:
        """Seconds of Structured Streaming with the chosen batch size, checked row by row."""
        table.renew(self.url, self.spec)
        streaming.make_tables(self.url, table.TABLE)
        request = {
            "kafka": self.kafka,
            "topic": self.topic,
            "ledger_url": self.url,
            "columns": backlog.COLUMNS,
            "table": table.TABLE,
            "cap": table.CAP,
            "batch_size": self.batch_size,
            "home": str(self.stack.home),
        }
        seconds = self.driver.run(request)
        table.verify(self.url, self.plans)
        return seconds

    def choose_batch_size(self) -> dict[int, float]:
        """Records per second of Streaming for each batch size, warm; the best one is kept."""
        self.streaming()
        rates = {}
        for size in BATCH_SIZES:
            self.batch_size = size
            rates[size] = self.records / self.streaming()
            self.tell(f"Structured Streaming, batches of {size:,}: {rates[size]:,.0f} records/s")
        self.batch_size = max(rates, key=rates.get)
        return rates

    def alternate(self, runs: int) -> dict[str, list[float]]:
        """{contestant: its rates}, by turns."""
        self.ratchet()
        self.frames()
        self.count()
        self.steps.clear()
        rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
        for number in range(runs):
            for name in CONTESTANTS:
                rates[name].append(self.records / getattr(self, name)())
                self.tell(f"run {number + 1}, {CONTESTANTS[name]}: {rates[name][-1]:,.0f} records/s")
        return rates

    def shares(self) -> dict[str, float]:
        """{step: seconds per transaction of 500,000 records} in the worker lane, medians over the measured runs."""
        told = {step: median(run.get(step, 0.0) for run in self.steps) for step in self.steps[0]}
        inside = told["start"] + told["work"] + told["check"]
        return {
            "begin": told["begin"] + told["try"],
            "look at the topic": told["start"] + told["check"],
            "read, decode, stage": told["work"],
            "vote": max(0.0, told["process"] - inside),
            "wait": told["wait"],
            "commit": told["commit"],
        }

    def tell(self, line: str) -> None:
        self.console.print(line, markup=False)


def main() -> None:
    """Measure, print, and leave the figures in .state/bench/result.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    home = CHECKOUT / ".state" / "bench"
    with Stack(home, {"postgres", "kafka", "connect"}, lasting=True) as stack:
        jars = [*prerequisites.jars(CHECKOUT, "spark"), *prerequisites.jars(CHECKOUT, "bench")]
        with (
            streaming.Streaming(jars, prerequisites.java(), home / "streaming.log", CHECKOUT) as driver,
            connect_session(stack.spark, "bench", "count") as session,
        ):
            bench = Bench(stack, session, driver, chosen.records, console)
            sizes = bench.choose_batch_size()
            rates = bench.alternate(chosen.runs)
            shares = bench.shares()
        memory = stack.peak_memory()
    result = {
        "records": chosen.records,
        "rates": rates,
        "median": {name: median(of) for name, of in rates.items()},
        "streaming_batch_sizes": sizes,
        "seconds_per_transaction": shares,
        "commit_share": shares["commit"] / _sum(shares),
        "peak_memory": memory,
    }
    (home / "result.json").write_text(json.dumps(result, indent=2))
    show(console, result)


def show(console: Console, result: dict[str, Any]) -> None:
    """The two tables: rates side by side, and where a transaction's time goes."""
    rates = Table(title=f"{result['records']:,} records of {backlog.BYTES} bytes, transactions of {table.CAP:,}")
    for heading in ("", "records/s, each run", "median", "ratchet is"):
        rates.add_column(heading, justify="right" if heading else "left")
    mine = result["median"]["ratchet"]
    for name, title in CONTESTANTS.items():
        each = "  ".join(f"{rate:,.0f}" for rate in result["rates"][name])
        middle = result["median"][name]
        rates.add_row(title, each, f"{middle:,.0f}", "" if name == "ratchet" else f"{mine / middle:.2f} ×")
    console.print(rates)
    steps = Table(title="seconds per transaction, both cores busy")
    for heading in ("step", "seconds", "share"):
        steps.add_column(heading, justify="left" if heading == "step" else "right")
    shares = result["seconds_per_transaction"]
    for step, seconds in shares.items():
        part = "" if step == "wait" else f"{seconds / _sum(shares):.1%}"
        steps.add_row(step, f"{seconds:.3f}", part)
    console.print(steps)
    console.print(f"commit's part of the sum of the steps, waiting left out: {result['commit_share']:.1%}")
    said = ", ".join(f"{name} {held / 2**20:,.0f}" for name, held in result["peak_memory"].items())
    console.print(f"peak memory in MiB: {said}", markup=False)


def _sum(shares: dict[str, float]) -> float:
    return sum(seconds for step, seconds in shares.items() if step != "wait")


if __name__ == "__main__":
    main()
