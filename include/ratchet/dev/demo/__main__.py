"""Start the stack, publish while the pipelines run, wait until all is committed, prove it, stay.

Exit status: 0 only if every sink equals pandas' answer. With CI=true everything ends by itself after the result.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event

from rich.console import Console

from ratchet.dev.demo import content, report, watch
from ratchet.dev.demo.content import Content
from ratchet.dev.demo.proof import prove
from ratchet.dev.demo.publisher import make_topic, publish
from ratchet.dev.demo.warm import warm
from ratchet.dev.stack import CORES, Stack
from ratchet.dev.stack.addresses import DEMO
from ratchet.errors import RatchetError, StackError
from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate
from ratchet.source.kafka import Kafka
from ratchet.spec.loading import load_pipelines
from ratchet.spec.pipeline import Pipeline

PATIENCE_SECONDS = 300
"""How long nothing at all may move before the demo gives up."""
EXAMPLES = {"flights": content.flights, "aircraft": content.planes}
SECONDS = {"flights": 35.0, "aircraft": 0.0}
"""How long publishing takes, from before Airflow starts until the pipelines have worked for a while.

A pipeline that has caught up with its topic waits for the next full minute, so it is not to be slower than they are.
"""


class Demo:
    """One run of the demo against servers that are up."""

    def __init__(self, console: Console, ledger_url: str, kafka: dict[str, str]):
        self.console = console
        self.kafka = kafka
        self.ledger = Ledger(ledger_url)
        self.ledger_url = ledger_url
        self.specs: dict[str, Pipeline] = {name: load_pipelines()[name] for name in EXAMPLES}
        self.contents: dict[str, Content] = {name: make(self.specs[name]) for name, make in EXAMPLES.items()}
        self.counts: dict[str, int] = {}
        self._stop, self._threads = Event(), ThreadPoolExecutor(len(EXAMPLES))
        self._publishing: list[Future] = []

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._threads.shutdown()
        self.ledger.close()

    def prepare(self) -> None:
        """Tables and topics, and what is missing in these begins to be published: the first run is to find records."""
        migrate(self.ledger_url, load_pipelines().values())
        with Kafka(self.kafka) as kafka:
            there = {name: make_topic(kafka, of) for name, of in self.contents.items()}
        self.counts = {name: sum(of.values()) for name, of in there.items()}
        self._publishing = [
            self._threads.submit(
                publish, self.kafka, of, there[name], SECONDS[name], self._stop, _adder(self.counts, name)
            )
            for name, of in self.contents.items()
        ]

    def warm(self, spark: str) -> None:
        """Have the server at `spark` ready for the first slices; a run does without it where that fails."""
        for spec in self.specs.values():
            try:
                warm(spec, spark, self.kafka)
            except RatchetError as error:
                self.console.print(f"Spark was not warmed for {spec.name}: {error}", markup=False)

    def drain(self) -> None:
        """Return when all that is published is committed, and all is published.

        Raises StackError, with what the ledger knows, when nothing moves for five minutes.
        """
        bars = report.Bars(self.console, sum(map(len, self.contents.values())))
        with bars.shown():
            self._watch(bars, self.counts, self._publishing)

    def _watch(self, bars: report.Bars, counts: dict[str, int], publishing: list[Future]) -> None:
        seen, moved_at = None, time.monotonic()
        wanted = {name: of.ends for name, of in self.contents.items()}
        while True:
            for future in publishing:
                if future.done():
                    future.result()
            now = watch.progress(self.ledger, self.specs)
            bars.show(published=sum(counts.values()), processed=now.processed, committed=now.committed)
            if now.until == wanted:
                return
            if (now, dict(counts)) != seen:
                seen, moved_at = (now, dict(counts)), time.monotonic()
            if time.monotonic() > moved_at + PATIENCE_SECONDS:
                raise StackError(
                    f"nothing has moved for {PATIENCE_SECONDS} s: {now.committed:,} records are committed; "
                    f"{now.trouble or 'no transaction was aborted'}; look at the runs in Airflow and its logs"
                )
            time.sleep(0.5)

    def tell(self) -> bool:
        """Print the transactions and the proof; whether the sinks are what pandas says."""
        for name, spec in self.specs.items():
            self.console.print(report.transactions(spec, watch.lines(self.ledger, name)))
            self.console.print(report.overlap(name, watch.overlap(self.ledger, name)))
        pairs = [(self.specs[name], self.contents[name]) for name in EXAMPLES]
        checks = prove(self.ledger, *pairs)
        self.console.print(report.proof(checks))
        for check in checks:
            for difference in check.differences:
                self.console.print(f"{check.name}: {difference}", style="red", markup=False)
        return all(check.equal for check in checks)


def main() -> int:
    """Run the demo in this checkout's `.state/demo` and return its exit status."""
    # Servers are forked while this process talks to Spark, and only to become other programs: gRPC has nothing to do.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    console = Console()
    if not console.is_terminal:
        console = Console(width=170)
    # `make down` sends SIGTERM: end as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    equal = False
    try:
        console.print("starting PostgreSQL, Kafka, Spark Connect and Airflow …")
        say = partial(console.print, markup=False)
        demos: list[Demo] = []

        def prepare(stack: Stack) -> None:
            demos.append(stack.guests.enter_context(Demo(console, stack.ledger_url, stack.kafka)))
            demos[0].prepare()

        def meanwhile(stack: Stack) -> None:
            demos[0].warm(stack.spark)

        with Stack(DEMO, say=say, before_airflow=prepare, meanwhile=meanwhile, slices_at_once=CORES) as stack:
            equal = _show(console, stack, demos[0])
            if os.environ.get("CI") != "true":
                console.print("press Ctrl-C to end everything; `make down` does the same from another terminal")
                signal.pause()
    except KeyboardInterrupt:
        console.print("ended")
    except RatchetError as error:
        console.print(f"{type(error).__name__}: {error}", style="red", markup=False)
    return 0 if equal else 1


def _show(console: Console, stack: Stack, demo: Demo) -> bool:
    started = time.monotonic()
    console.print(f"Airflow: {stack.airflow_url} (no password needed)", markup=False)
    demo.drain()
    equal = demo.tell()
    peak = sorted(stack.peak_memory().items(), key=lambda item: -item[1])
    said = ", ".join(f"{name} {held / 2**20:,.0f}" for name, held in peak)
    console.print(f"peak memory in MiB: {said}", markup=False)
    took = time.monotonic() - started
    verdict = "[green]all equal[/green]" if equal else "[red]the sinks differ from pandas[/red]"
    console.print(f"{verdict}, {took:.0f} s after the servers were up")
    console.print(f"Airflow: {stack.airflow_url} (no password needed)", markup=False)
    return equal


def _adder(counts: dict[str, int], name: str):
    def add(records: int) -> None:
        counts[name] += records

    return add


if __name__ == "__main__":
    sys.exit(main())
