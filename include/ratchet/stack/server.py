"""One embedded server: its command, its log, how to see that it is ready, and its process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of its servers' orphans, so that all can be ended."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass
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
    process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the process, in a session of its own, its output appended to the log.

        Call it from a thread that lives as long as the stack: the kernel ends the server together with it.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.env},
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.process is None or self.process.poll() is not None

    def family(self) -> list[psutil.Process]:
        """The server's process and all its descendants."""
        if self.process is None:
            return []
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def last_lines(self, count: int = 5) -> str:
        """The end of the log, for an error message."""
        if not self.log.exists():
            return "it has written nothing"
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-count:]) or "it has written nothing"


def end(processes: list[psutil.Process], first: signal.Signals, patience: float) -> None:
    """End processes by their id (and start time): `first` to the one in front, SIGKILL to what is left."""
    for process in processes[:1]:
        _send(process, first)
    gone, alive = psutil.wait_procs(processes[:1], timeout=patience)
    rest = [p for p in processes if p.is_running()]
    for process in rest:
        _send(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(rest, timeout=3)
    for process in alive:
        _send(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=5)


def _send(process: psutil.Process, what: signal.Signals) -> None:
    try:
        process.send_signal(what)
    except psutil.NoSuchProcess:
        pass
