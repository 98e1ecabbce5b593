"""Points: what the hook has traced, and the arming of a point so that the process which comes to it is killed there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

KILLABLE = ("begin", "process", "commit", "settle", "maintenance", "trigger", "spark worker", "driver")
"""Who is killed; a `command` too, whose person may not repeat it. What the runner itself does is not."""
COMMAND = "command"
OCCURRENCES = 3
"""The same point may be passed any number of times in one operation; it is killed the first so many times.

Where it only reads, the first time: how often it reads depends on what others happen to do.
"""
_READING = re.compile(r": (SELECT|FETCH|CLOSE) [^:]*$")
_OPENING = re.compile(
    r": (;|BEGIN.*|ROLLBACK|DEALLOCATE .*|show .*|(RELEASE|SAVEPOINT) \"_pg3_1\"|set (local|session) .*"
    r"|(?i:select) (pg_type|pg_backend_pid|set_config|current_schema|pg_catalog\.version|clock_timestamp))( #\d+)?$"
)
"""Statements that change nothing and lock nothing: those by which a connection or a transaction is opened or kept."""


class Point(NamedTuple):
    """A step of the hook's and one of its sides, `before` or `after`."""

    name: str
    side: str

    @property
    def role(self) -> str:
        """Who passes it."""
        return self.name.partition(": ")[0]

    @property
    def occurrence(self) -> int:
        """Which time within its operation."""
        _, mark, number = self.name.rpartition(" #")
        return int(number) if mark and number.isdigit() else 1

    def __str__(self) -> str:
        return f"{self.side} {self.name}"


@dataclass(frozen=True)
class Passed:
    """A line of the trace, `at` so many bytes; `backend` and `statement` are PostgreSQL's process and the statement's
    fingerprint.
    """

    at: int
    pid: int
    pipeline: str
    point: Point
    backend: int | None
    statement: str | None


def read_trace(file: Path) -> Iterator[Passed]:
    """Every point that was passed, in order."""
    at = 0
    for line in file.read_bytes().splitlines(keepends=True):
        said = json.loads(line)
        point = Point(said["point"], said["side"])
        yield Passed(at, said["pid"], said["pipeline"], point, said.get("backend"), said.get("statement"))
        at += len(line)


def is_killable(point: Point) -> bool:
    """Whether something may be killed there: it is a step of a task, a worker or a command, and one that changes,
    locks or reads something.
    """
    is_step = point.role in (*KILLABLE, COMMAND) and not _OPENING.search(point.name)
    return is_step and point.occurrence <= (1 if _READING.search(point.name) else OCCURRENCES)


@dataclass(frozen=True)
class Kill:
    """Whom a point has killed, and when, in seconds since 1970."""

    pid: int
    at: float


class Armoury:
    """The directory by which the hook is steered."""

    def __init__(self, directory: Path):
        self.directory = directory
        for name in ("armed", "killed"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        self._tickets = 0

    @property
    def trace(self) -> Path:
        """The file that points are written to as long as it is there."""
        return self.directory / "trace.jsonl"

    def arm(self, pipeline: str, point: Point) -> str:
        """Let the next process that comes to this point for this pipeline die there; the ticket that says so."""
        self._tickets += 1
        ticket = f"{pipeline}-{self._tickets}"
        into = self.directory / "armed" / pipeline
        into.mkdir(exist_ok=True)
        fresh = self.directory / ticket
        fresh.write_text(json.dumps(point._asdict()))
        fresh.rename(into / ticket)
        return ticket

    def disarm(self, pipeline: str, ticket: str) -> None:
        """Take a ticket back, fired or not."""
        (self.directory / "armed" / pipeline / ticket).unlink(missing_ok=True)

    def kill(self, ticket: str) -> Kill | None:
        """What the ticket has done; None if nobody has come to its point yet."""
        try:
            return Kill(**json.loads((self.directory / "killed" / ticket).read_text()))
        except (FileNotFoundError, ValueError):
            return None
