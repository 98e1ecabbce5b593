"""What the demo prints: progress bars while it runs, and afterwards the transactions and the proof."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ratchet.dev.demo.proof import Check
from ratchet.dev.demo.watch import Line, Overlap
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline

STEPS = ("published", "processed", "committed")
LOG_SECONDS = 10
"""How often a line is printed where there is no terminal to draw bars on."""


class Bars:
    """Three bars over the same number of records: published, processed, committed."""

    def __init__(self, console: Console, total: int):
        self._console, self._total, self._logged = console, total, 0.0
        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = {step: self._progress.add_task(step, total=total) for step in STEPS}

    @contextmanager
    def shown(self) -> Iterator[Bars]:
        """Draw the bars while the block runs."""
        with self._progress:
            yield self

    def show(self, **done: int) -> None:
        """Set the bars to these numbers of records."""
        for step, records in done.items():
            self._progress.update(self._tasks[step], completed=records)
        if not self._console.is_terminal and time.monotonic() > self._logged + LOG_SECONDS:
            self._logged = time.monotonic()
            said = ", ".join(f"{step} {records:,}" for step, records in done.items())
            self._console.print(f"{said} of {self._total:,} records")


def transactions(spec: Pipeline, lines: list[Line]) -> Table:
    """A row for each transaction; seconds as the ledger recorded them."""
    sinks = [*(sink.name for sink in spec.sinks), DEAD_LETTERS]
    table = Table(title=f"{spec.name}: {len(lines)} transactions", title_justify="left")
    for header in ("txid", "ranges", "records", *sinks, "process s", "waiting s", "commit s"):
        table.add_column(header, justify="left" if header == "ranges" else "right", overflow="fold")
    for line in lines:
        table.add_row(
            str(line.txid),
            " ".join(f"{r.partition}[{r.from_offset},{r.until_offset})" for r in line.ranges),
            f"{line.records:,}",
            *(f"{line.rows.get(sink, 0):,}" for sink in sinks),
            f"{line.process_seconds:.1f}",
            f"{line.wait_seconds:.1f}",
            f"{line.commit_seconds:.2f}",
        )
    return table


def overlap(name: str, most: Overlap) -> str:
    """The greatest number of transactions under way at once, in a sentence."""
    at = f"{most.at:%H:%M:%S} UTC" if most.at else "no time"
    return f"{name}: at most {most.transactions} transactions were processed or waiting at once, first at {at}"


def proof(checks: list[Check]) -> Table:
    """Sinks and pandas beside each other."""
    table = Table(title="the sinks and pandas over the same CSV files, as multisets", title_justify="left")
    for header in ("what", "sink", "pandas", "equal"):
        table.add_column(header, justify="right" if header in ("sink", "pandas") else "left")
    for check in checks:
        verdict = "[green]equal" if check.equal else "[red]DIFFERENT"
        table.add_row(check.name, f"{check.found:,}", f"{check.expected:,}", verdict)
    return table
