"""A point: a step of a process that lasts; it is traced here, and the process can be killed here.

It does nothing unless RATCHET_FAULTS names a directory.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .naming import fingerprint, where

DIRECTORY = "RATCHET_FAULTS"
"""Names the directory by which the hook is steered."""


class Operation:
    """What a process is doing: who it is, for which pipeline, and how often it has passed each point."""

    def __init__(self, role: str, pipeline: str):
        self.role, self.pipeline = role, pipeline
        self.passed: Counter[str] = Counter()


current: ContextVar[Operation | None] = ContextVar("operation", default=None)
"""What this process, or this task of its event loop, is doing, where something has said so."""
_directory = os.environ.get(DIRECTORY, "")


def operation() -> Operation:
    """What this process is doing now; by its command line, where nothing has said so."""
    found = current.get()
    if found is None:
        found = Operation(*_by_command_line(sys.orig_argv))
        current.set(found)
    return found


def _by_command_line(command: list[str]) -> tuple[str, str]:
    for number, word in enumerate(command):
        if word.endswith("process_slice.py"):
            return "driver", command[number + 1]
        if word == "ratchet" and command[number - 1] == "-m" and len(command) > number + 2:
            return "command", command[number + 2]
    return "other", "-"


@contextmanager
def point(what: str, *, backend: int | None = None, statement: bytes | None = None) -> Iterator[None]:
    """A step that lasts, or that begins or ends something: it is traced, and may be where this process dies.

    A step that raises is over too, except a statement, which PostgreSQL has refused then.
    """
    if not _directory:
        yield
        return
    doing = operation()
    name = f"{doing.role}: {where()}{what}"
    doing.passed[name] += 1
    if doing.passed[name] > 1:
        name = f"{name} #{doing.passed[name]}"
    _pass(doing, name, "before", backend, statement)
    try:
        yield
    except BaseException:
        if backend is None:
            _pass(doing, name, "after")
        raise
    _pass(doing, name, "after")


def _pass(doing: Operation, name: str, side: str, backend: int | None = None, statement: bytes | None = None) -> None:
    _trace(doing, name, side, backend, statement)
    _die_if_armed(doing, name, side)


def _trace(doing: Operation, name: str, side: str, backend: int | None, statement: bytes | None) -> None:
    line = {"pid": os.getpid(), "pipeline": doing.pipeline, "point": name, "side": side}
    if backend is not None:
        line |= {"backend": backend, "statement": fingerprint(statement or b"")}
    try:
        # Only where there is a trace: a runner that wants none has made none.
        file = os.open(f"{_directory}/trace.jsonl", os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        return
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def _die_if_armed(doing: Operation, name: str, side: str) -> None:
    for ticket, armed in armed_in(doing):
        if armed == (name, side):
            _die(ticket)


def armed_in(doing: Operation) -> Iterator[tuple[str, tuple[str, str]]]:
    """The tickets of its pipeline, each with the name and the side of its point."""
    where = f"{_directory}/armed/{doing.pipeline}"
    try:
        tickets = os.listdir(where)
    except (FileNotFoundError, NotADirectoryError):
        return
    for ticket in tickets:
        try:
            with open(f"{where}/{ticket}") as file:
                wanted = json.load(file)
        except (FileNotFoundError, ValueError):
            continue
        yield ticket, (wanted["name"], wanted["side"])


def is_awaited(doing: Operation) -> bool:
    """Whether somebody who does this is still to be killed at it: others of its pipeline are no reason."""
    return any(
        name.startswith(f"{doing.role}: ") and not os.path.exists(f"{_directory}/killed/{ticket}")
        for ticket, (name, _) in armed_in(doing)
    )


def _die(ticket: str) -> None:
    try:
        taken = os.open(f"{_directory}/killed/{ticket}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    os.write(taken, json.dumps({"pid": os.getpid(), "at": time.time()}).encode())
    os.close(taken)
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(owner: Any, name: str, what: Callable[..., str]) -> None:
    """Make every call of a function or method a point."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any):
        with point(what(*args)):
            return inner(*args, **kwargs)

    setattr(owner, name, outer)


def steered() -> bool:
    """Whether a directory steers this process."""
    return bool(_directory)


def steer(directory: str) -> bool:
    """Have this directory steer this process from now on, or none where it is empty; whether one did before."""
    global _directory
    already, _directory = bool(_directory), directory
    return already
