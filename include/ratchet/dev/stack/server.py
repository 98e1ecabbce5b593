"""One embedded server: its command, its log, how to see that it is ready, and its processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_FOREIGN = ("AIRFLOW", "SPARK_", "PYSPARK_", "PYTHONPATH", "PYTHONHOME", "KAFKA_", "PG", "CLASSPATH")
"""What the user may have set for servers of their own, and must not reach ours."""


def environment(added: dict[str, str]) -> dict[str, str]:
    """This process's environment without what is meant for the user's own servers, and with `added`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return {**kept, **added}


@dataclass(eq=False)
class Server:
    """A process that is started, watched and ended; `ready` is asked again and again and raises nothing."""

    name: str
    command: list[str]
    log: Path
    ready: Callable[[], bool]
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    seconds_to_start: float = 90
    seconds_to_stop: float = 5
    """How long it may take to end by itself; a task that is cut off is finished by the next run."""
    process: subprocess.Popen | None = None
    started: float = 0.0
    """When the process was started, in seconds since 1970."""

    def start(self) -> None:
        """Start the process, in a session of its own, its output appended to the log.

        Call it from a thread that lives as long as the stack: the kernel ends the server together with it.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=environment(self.env),
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        try:
            self.started = psutil.Process(self.process.pid).create_time()
        except psutil.NoSuchProcess:
            self.started = 0.0

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.process is None or self.process.poll() is not None

    def family(self) -> list[psutil.Process]:
        """The server's process and all that came from it, also after it has ended itself."""
        return [] if self.process is None else family(self.process.pid, self.started)

    def last_lines(self, count: int = 15) -> str:
        """The end of the log, for an error message."""
        if not self.log.exists():
            return "  it has written nothing"
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-count:]) or "  it has written nothing"


def family(leader: int, started: float) -> list[psutil.Process]:
    """The processes of the session that `leader`, started at `started`, leads or has led, and their children.

    The leader comes first. An orphan stays in the session when its parent ends, and while one is in it the kernel
    gives its number to nobody else; a leader with another start time is a stranger, and so is all of its session.
    """
    members = [process for process in map(_of_session(leader), psutil.pids()) if process is not None]
    if any(p.pid == leader and abs(p.create_time() - started) > 1 for p in members):
        return []
    found = {p.pid: p for p in members if p.create_time() > started - 1}
    for member in list(found.values()):
        try:
            # PostgreSQL gives each of its children a session of its own.
            found |= {child.pid: child for child in member.children(recursive=True)}
        except psutil.NoSuchProcess:
            continue
    return sorted(found.values(), key=lambda p: p.pid != leader)


def end(processes: list[psutil.Process], first: signal.Signals, patience: float) -> None:
    """End processes by their id and start time: `first` and `patience` seconds for the one in front, then the rest.

    What does not end on SIGTERM within three seconds is killed, with what it has started until then.
    """
    _send(processes[:1], first)
    psutil.wait_procs(processes[:1], timeout=patience)
    rest = _halted(processes)
    _send(rest, signal.SIGTERM)
    _send(rest, signal.SIGCONT)
    psutil.wait_procs(rest, timeout=3)
    left = _halted(rest)
    _send(left, signal.SIGKILL)
    psutil.wait_procs(left, timeout=5)


def _halted(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that live and all that came from them, standing still: else one could start another meanwhile.

    An Airflow worker that still has work takes up the next task when its last one is ended, in a session of its own.
    """
    found: dict[int, psutil.Process] = {}
    fresh = [process for process in processes if process.is_running()]
    while fresh:
        _send(fresh, signal.SIGSTOP)
        found |= {process.pid: process for process in fresh}
        fresh = [child for process in fresh for child in _children(process) if child.pid not in found]
    return list(found.values())


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []


def _send(processes: list[psutil.Process], what: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(what)
        except psutil.NoSuchProcess:
            continue


def _of_session(leader: int) -> Callable[[int], psutil.Process | None]:
    def member(pid: int) -> psutil.Process | None:
        try:
            process = psutil.Process(pid) if os.getsid(pid) == leader else None
            return process if process and process.status() != psutil.STATUS_ZOMBIE else None
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            return None

    return member


def die_with_parent() -> None:
    """What a new process does to be killed when the thread that started it ends, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
