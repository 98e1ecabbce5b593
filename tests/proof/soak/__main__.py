"""`make soak`: half an hour of steady load without faults, and whether anything grows that should not.

The campaign's four pipelines take what its producers write, at a rate that two cores bear. Memory, open files,
sessions, tables and what is dead in them are measured all the while; more in the last third than in the second fails
the run. MINUTES=60 asks for another length.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from ratchet.dev.stack import CHECKOUT, Stack
from ratchet.operate.migrate import migrate
from ratchet.spec.loading import load_pipelines
from tests.acceptance.runs import MAINTENANCE
from tests.acceptance.transforms import HOLDS
from tests.proof.campaign.line import PIPELINES, CampaignLine
from tests.proof.campaign.producers import PARTITIONS, Producers, create_topics
from tests.proof.parts import commit, wide_console
from tests.proof.witness.comparison import examine
from tests.until import until

from .gauges import Gauges

STATE = CHECKOUT / ".state" / "soak"
EVERY = 15
"""Seconds between two looks."""
WARM = 10
"""In fewer minutes, what warms up is taken for what grows."""
RATE = 400.0
"""Records a second for each pipeline, of which a third is aborted."""


def main() -> int:
    """The exit status: 1 if anything has grown, or a record is lost or doubled."""
    minutes, console, at = float(os.environ.get("MINUTES") or 30), wide_console(), commit()
    home, holds = STATE / "servers", STATE / "servers" / "holds"
    shutil.rmtree(home, ignore_errors=True)
    holds.mkdir(parents=True)

    def prepare(stack: Stack) -> None:
        with patch.dict(os.environ, RATCHET_PIPELINES=PIPELINES):
            migrate(stack.ledger_url, load_pipelines().values())
        create_topics(stack.kafka)

    env = {"RATCHET_PIPELINES": PIPELINES, HOLDS: str(holds)}
    with Stack(home, env=env, before_airflow=prepare) as stack:
        lines = [CampaignLine(name, stack, holds, home) for name in PARTITIONS]
        for line in lines:
            line.ready()
        lines[0].find_dag(MAINTENANCE)
        gauges = Gauges(stack)
        with Producers(stack.kafka, 1, dict.fromkeys(PARTITIONS, RATE)) as producers:
            for line in lines:
                # Of a line that has never run, maintenance knows nothing.
                line.trigger()
            _measure(gauges, producers, minutes * 60, console)
        wrong = [f"{line.name}: {fault}" for line in lines for fault in _faults(line, stack)]
    growing = [gauge for gauge in gauges.all.values() if not gauge.is_flat]
    _report(console, at, minutes, producers.committed, gauges, wrong)
    return 1 if growing or wrong else 0


def _measure(gauges: Gauges, producers: Producers, seconds: float, console: Console) -> None:
    began, told = time.monotonic(), 0.0
    while (now := time.monotonic() - began) < seconds:
        gauges.measure()
        if now - told > 60:
            told = now
            console.print(f"{now / 60:5.1f} min: {producers.committed:,} records are committed by producers")
        # The rate of looks is the measure here, not a guess at when something will be so.
        time.sleep(max(0.0, EVERY - (time.monotonic() - began - now)))


def _faults(line: CampaignLine, stack: Stack) -> list[str]:
    """What is wrong with a pipeline that is given the time to commit what is left."""
    try:
        # Some Kafka transactions were left to the broker, which aborts them when their time is over.
        until("all is committed or aborted", line.is_decided, 120)
        until("all that is committed is in the sinks", line.is_drained, 600)
    except AssertionError as error:
        return [str(error)]
    return examine(line.spec, stack.kafka, stack.ledger_url).faults()


def _report(console: Console, at: str, minutes: float, records: int, gauges: Gauges, wrong: list[str]) -> None:
    table = Table("what", "over time", "second third", "last third", "")
    for gauge in gauges.all.values():
        said = [f"{value:,.0f} {gauge.kind.unit}" for value in (gauge.middle, gauge.end)]
        table.add_row(gauge.name, gauge.drawn(30), *said, "" if gauge.is_flat else "GROWS")
    console.print(table)
    found = {"commit": at, "minutes": minutes, "every": EVERY, "records": records}
    found["gauges"] = {gauge.name: gauge.values for gauge in gauges.all.values()}
    (STATE / f"{at}.json").write_text(json.dumps(found))
    growing = [gauge.name for gauge in gauges.all.values() if not gauge.is_flat]
    console.print(f"commit {at}: {minutes:g} min, {records:,} records; grows: {', '.join(growing) or 'nothing'}")
    if growing and minutes < WARM:
        console.print(f"in less than {WARM} minutes servers still warm up: ask again with MINUTES=30")
    for line in wrong or ["no record is lost, doubled or different"]:
        console.print(line, markup=False)


if __name__ == "__main__":
    sys.exit(main())
