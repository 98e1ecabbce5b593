"""What all measured works share: servers, backlogs, contestants that take turns, aims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal

from pyspark.sql import SparkSession

from benchmarks.backlog import Backlog, Form
from benchmarks.copying import PlainLoop
from benchmarks.streaming import Streaming, Writer
from ratchet.dev.stack import CHECKOUT, Stack, prerequisites
from ratchet.spark.engine import connect_session

WARM_RECORDS = 500_000
"""The backlog over which contestants are warmed, and batch sizes chosen."""
BATCH_SIZES: dict[Writer, tuple[int, ...]] = {"jdbc": (1_000, 10_000, 50_000), "copy": (10_000, 50_000, 200_000)}

Figures = dict[str, list[float]]
"""{contestant: the figure of each run}: seconds, or what the work's `unit` says."""
Contestant = Callable[[Backlog], Mapping[str, float]]
"""Works through a backlog, checks its result, and returns {name: seconds}."""


@dataclass(frozen=True)
class Aim:
    """What is wanted of a contestant: to be so many times as fast as another, at most so many times its time or its
    memory, or at most so many seconds or MiB.
    """

    of: str
    what: Literal["times as fast as", "times the time of", "times the memory of", "seconds", "MiB"]
    bound: float
    beside: str = ""

    def value(self, figures: Figures) -> float:
        """What was measured, by the medians of the runs."""
        mine = median(figures[self.of])
        if not self.beside:
            return mine
        other = median(figures[self.beside])
        return other / mine if self.what == "times as fast as" else mine / other

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.what == "times as fast as" else value <= self.bound

    def __str__(self) -> str:
        bound = f"{'≥' if self.what == 'times as fast as' else '≤'} {self.bound:g}"
        return f"{self.of}: {bound} {self.what} {self.beside}".strip()


@dataclass(frozen=True)
class Work:
    """One thing to measure: the servers that it needs, how, and the aims."""

    title: str
    servers: frozenset[str]
    measure: Callable[[Bench], Figures]
    aims: Sequence[Aim]
    unit: str = "s"


class Bench:
    """The servers and what uses them, each made when a work first asks for it; a context manager that ends that."""

    def __init__(self, stack: Stack, records: int, runs: int, tell: Callable[[str], None]):
        self.stack, self.records, self.runs, self.tell = stack, records, runs, tell
        self.notes: dict[str, object] = {}
        """What else was seen, for the result's file."""
        self._guests = ExitStack()
        self._sizes: dict[Writer, int] = {}
        self._backlogs: dict[tuple[int, int, Form], Backlog] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._guests.close()

    @property
    def url(self) -> str:
        """The ledger's, which is that of every table."""
        return self.stack.ledger_url

    def backlog(self, records: int, times: int = 1, form: Form = "json") -> Backlog:
        """So many different records, `times` times, waiting."""
        if (records, times, form) not in self._backlogs:
            made = Backlog(self.stack.kafka, records * times, times, form=form)
            made.fill()
            self._backlogs[records, times, form] = made
        return self._backlogs[records, times, form]

    @cached_property
    def driver(self) -> Streaming:
        """The driver of Structured Streaming."""
        jars = [*prerequisites.jars(CHECKOUT, "spark"), *prerequisites.jars(CHECKOUT, "bench")]
        home = self.stack.home
        return self._guests.enter_context(Streaming(jars, prerequisites.java(), home, self.stack.kafka, self.url))

    @cached_property
    def loop(self) -> PlainLoop:
        """The plain loop's processes."""
        return self._guests.enter_context(PlainLoop(self.stack.kafka, self.url))

    @cached_property
    def session(self) -> SparkSession:
        """A session for the bare count."""
        return self._guests.enter_context(connect_session(self.stack.spark, "bench", "count"))

    def batch_size(self, writer: Writer) -> int:
        """The best of BATCH_SIZES, chosen once, over a small backlog and outside the measured runs."""
        if writer not in self._sizes:
            small = self.backlog(WARM_RECORDS)
            self.driver.append(small, writer, BATCH_SIZES[writer][0])
            took = {size: self.driver.append(small, writer, size)[-1] for size in BATCH_SIZES[writer]}
            self._sizes[writer] = min(took, key=lambda size: took[size])
            self.tell(f"Structured Streaming, {writer}: batches of {self._sizes[writer]:,} are the best of {took}")
            self.notes[f"batch size, {writer}"] = self._sizes[writer]
        return self._sizes[writer]

    def alternate(self, backlog: Backlog, contestants: Sequence[Contestant]) -> Figures:
        """Every contestant in turn, as often as there are runs, after a turn each over a small backlog.

        Each second round goes backwards, so that nobody has always the same one's dirty pages before it.
        """
        warm = self.backlog(min(WARM_RECORDS, backlog.part), backlog.times, backlog.form)
        for contestant in contestants:
            contestant(warm)
        seconds: Figures = {}
        for number in range(self.runs):
            for contestant in contestants[:: -1 if number % 2 else 1]:
                for name, took in contestant(backlog).items():
                    seconds.setdefault(name, []).append(took)
                    self.tell(f"run {number + 1}, {name}: {took:.3f} s")
        return seconds
