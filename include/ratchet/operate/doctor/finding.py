"""Findings: what a check has seen, how bad that is, and what to do about it; and the checks, each bounded in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from queue import Empty, SimpleQueue
from threading import Thread

from ratchet.errors import RatchetError

SECONDS = 30.0
"""So long one check may take; most of it is the patience with a server that does not answer."""


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """Nothing fails by it now; or it could not be seen."""
    FAULT = "fault"
    """Runs fail by it, a line stands still, or a promise does not hold."""


CODES = {
    "airflow": "Airflow's API answers, and its scheduler, triggerer and dag-processor are alive",
    "airflow-version": "Airflow has a version that ratchet is tried with",
    "clock": "this machine and the ledger's database have the same time",
    "connections": "what `max_connections` leaves is not used up",
    "dag": "the pipeline has a DAG, and that is not paused",
    "destination": "each destination answers, has its mark, and lacks no commit for minutes",
    "halt": "the line is not halted",
    "imports": "Airflow has imported every DAG file",
    "kafka": "a broker answers, and lets this user in",
    "kafka-version": "every broker has a version that gives topics ids",
    "ledger": "the ledger's database answers",
    "ledger-schema": "the ledger has the schema that this version needs",
    "ledger-version": "PostgreSQL has a version that ratchet is tried with, without known security defects",
    "maintenance": "the maintenance was at the line within some minutes",
    "packages": "the installed packages are those that this version pins",
    "pause": "no person has paused the line behind a transaction",
    "pool": "the pool of the pipeline's tasks is there and does not count deferred ones",
    "pooler": "the connection to the ledger ends at PostgreSQL itself",
    "records": "Kafka still has every record that the next plan starts with",
    "retention": "unread records are read long before Kafka deletes them",
    "rights": "this user has the rights on the ledger that runs need",
    "setting": "PostgreSQL's settings keep what a commit was told",
    "spark": "a Spark Connect server answers, in the version of the client",
    "spec": "every spec can be read",
    "tables": "the tables of the sinks are what the spec needs",
    "topic": "the topic is there, may be read, and is compacted or not as the spec says",
    "topic-id": "the topic is the one that the ledger's ranges are of",
}
"""{code of a finding: what it means that it is ok}; an alert may go by a code."""


@dataclass(frozen=True)
class Finding:
    """What a check has seen; `error` is the code of the error that a run would meet."""

    code: str
    severity: Severity
    what: str
    remedy: str | None = None
    pipeline: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Check:
    """One look; whatever it raises is a finding too. Of a pipeline its findings have the name."""

    code: str
    look: Callable[[], Iterable[Finding]]
    pipeline: str | None = None
    needs: frozenset[str] = field(default_factory=frozenset[str])
    """Checks of servers without which this one would only wait."""


def ok(code: str, what: str) -> Finding:
    return Finding(code, Severity.OK, what)


def warning(code: str, what: str, remedy: str) -> Finding:
    return Finding(code, Severity.WARNING, what, remedy)


def fault(code: str, what: str, remedy: str) -> Finding:
    return Finding(code, Severity.FAULT, what, remedy)


def examine(checks: Iterable[Check], seconds: float = SECONDS) -> Iterator[Finding]:
    """Make every check, one after the other, and give what each has seen; one that fails stops no other."""
    down: set[str] = set()
    for check in checks:
        waits_for = sorted(check.needs & down)
        if waits_for:
            found = [warning(check.code, f"not checked, since {waits_for[0]} has a fault", "Mend that first.")]
        else:
            found = _made(check, seconds)
        if any(each.severity is Severity.FAULT for each in found):
            down.add(check.code)
        for each in found:
            yield replace(each, pipeline=check.pipeline)


def _made(check: Check, seconds: float) -> list[Finding]:
    """What a check gives within its time; the thread of one that takes longer is left behind."""
    told: SimpleQueue[list[Finding]] = SimpleQueue()
    Thread(target=lambda: told.put(_looked(check)), daemon=True, name=f"check of {check.code}").start()
    try:
        return told.get(timeout=seconds)
    except Empty:
        said = f"no answer within {seconds:g} s"
        return [fault(check.code, said, "See whether the server is overloaded, or a firewall drops packets.")]


def _looked(check: Check) -> list[Finding]:
    try:
        return list(check.look())
    except RatchetError as error:
        remedy = f"`ratchet explain {error.code}` says what to do."
        return [Finding(check.code, Severity.FAULT, str(error), remedy, error=error.code)]
    except Exception as error:
        # A check that cannot be made is no fault of what it looks at.
        said = f"could not be checked: {type(error).__name__}: {error}".splitlines()[0]
        return [warning(check.code, said, "See that the address and the rights are right, and try again.")]
