"""Scenarios: what a pipeline is asked to do while points are armed. Each sets it going and does not look back.

Whatever is killed, nobody helps: the pipeline has to finish by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from tests.until import until

from .victim import WANTED, Victim

Scenario = Callable[[Victim], object]


def flow(line: Victim) -> None:
    """Two transactions, the first of them held: the other is prepared before it and waits, then goes with it."""
    line.ask("hold")
    line.publish(145, bad=5)
    line.trigger()


def grown(line: Victim) -> None:
    """The topic has one partition more, with records."""
    line.publish(50, partition=line.grow())
    line.publish(60)
    line.trigger()


def alone(line: Victim) -> None:
    """Two transactions, one after the other."""
    line.publish(145, bad=5)
    line.trigger()


def refused(line: Victim) -> None:
    """The transform refuses once."""
    line.ask("refuse")
    line.publish(60)
    line.trigger()


def failed(line: Victim) -> None:
    """The transform fails once, and another try of the same run would not help."""
    line.ask("fail")
    line.publish(60)
    line.trigger()


def gated(line: Victim) -> None:
    """A gate says no for a while."""
    line.shut(15)
    line.publish(60)
    line.trigger()


def revised(line: Victim) -> None:
    """A committed run is cleared."""
    row = line.newest("COMMITTED")
    if row is None:
        return flow(line)
    line.clear(row.run_id)


def rekeyed(line: Victim) -> None:
    """A committed run is cleared after code was deployed that makes other keys of the same records."""
    row = line.newest("COMMITTED")
    if row is None:
        return flow(line)
    line.deploy_the_other()
    line.clear(row.run_id)


def released(line: Victim) -> None:
    """A person has dead letters released; that code gives them up again, whoever is killed."""
    if line.newest("COMMITTED") is None:
        return flow(line)
    line.say("release", line.name, "--reason", WANTED)
    line.trigger()


def halved(line: Victim) -> None:
    """Of a committed run one task is cleared: that revision is given up."""
    row = line.newest("COMMITTED")
    if row is None:
        return flow(line)
    line.clear_task(row.run_id, "commit", downstream=False)


def lost(line: Victim) -> None:
    """A run that Airflow does not have holds a transaction."""
    line.publish(60)
    line.begin_as(f"lost_{time.time_ns()}")


def left(line: Victim) -> None:
    """Stages of what is committed are still there."""
    if not line.leave_a_stage():
        flow(line)


def late(line: Victim) -> None:
    """The deadline passes while a job works."""
    row = _working(line)
    if row:
        line.pass_deadline(row.txid)


def forgotten(line: Victim) -> None:
    """A run that Airflow does not have holds a transaction, and its deadline passes."""
    line.publish(60)
    line.pass_deadline(line.begin_as(f"forgotten_{time.time_ns()}"))


def voided(line: Victim) -> None:
    """A person voids what a job works on."""
    row = _working(line)
    if row:
        line.say("void", line.name, str(row.txid), "--reason", WANTED)
        line.forget()


def aborted(line: Victim) -> None:
    """A person aborts what a job works on."""
    row = _working(line)
    if row:
        line.say("abort", line.name, str(row.txid), "--reason", WANTED)
        line.forget()


def retried(line: Victim) -> None:
    """A person lets a failed transaction be tried again."""
    line.publish(60)
    run_id = f"retried_{time.time_ns()}"
    txid = line.begin_as(run_id)
    line.settle_as(run_id)
    line.say("retry", line.name, str(txid))


def fed(line: Victim) -> None:
    """Another pipeline sends it records, two transactions of them."""
    until("the other one has sent a transaction", lambda: len(line.topic()) > 100, 300)
    line.trigger()


def _working(line: Victim):
    """The transaction of a job that takes its time; None if none has come so far, as when its begin was killed."""
    line.ask("hold")
    line.publish(60)
    line.trigger()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(AssertionError):
            row = line.is_tried()
            if row:
                return row
        time.sleep(0.1)
    return None


EVERYWHERE: dict[str, Scenario] = {
    f.__name__: f for f in (flow, grown, lost, refused, gated, failed, left, late, forgotten, voided, aborted, retried)
}
CLEARS: dict[str, Scenario] = {f.__name__: f for f in (revised, released, halved)}
"""Only where deltas are kept, and something is committed."""


def scenarios_of(pipeline: str) -> dict[str, Scenario]:
    """What a pipeline can be asked to do."""
    if pipeline == "compacting":
        return {"flow": flow, "lost": lost}
    if pipeline == "sending":
        return {"flow": flow, "revised": revised, "released": released}
    if pipeline.startswith("keyed"):
        return {"flow": flow, "rekeyed": rekeyed}
    if pipeline == "chained":
        return {"flow": flow, "released": released}
    if pipeline == "onward":
        return {"fed": fed}
    if pipeline == "submit":
        return {"alone": alone, "refused": refused, "failed": failed}
    return EVERYWHERE | CLEARS
