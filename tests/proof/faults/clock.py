"""Clocks of single servers that are set while they run; the machine's own is never touched.

A small library of our own is preloaded. libfaketime was tried: told to leave CLOCK_MONOTONIC alone, its 0.9.10 makes
every `time.sleep` of Python fail (EINVAL); else it moves that clock too, which no setting of a clock does.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from ratchet.dev.stack.server import Server
from ratchet.errors import StackError

SOURCE = Path(__file__).with_name("clock.c")


class Clocks:
    """Makes servers look at clocks of their own, which go right until they are stepped; files are below `home`.

    Raises StackError where the library cannot be made.
    """

    def __init__(self, home: Path):
        self.home, self.library = home, home / "clock.so"
        home.mkdir(parents=True, exist_ok=True)
        if shutil.which("gcc") is None:
            raise StackError("steps of clocks need a C compiler; Debian: apt-get install gcc libc6-dev")
        command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(self.library), str(SOURCE), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise StackError(f"the library that steps clocks cannot be made: {done.stderr.strip()}")

    def fit(self, server: Server) -> None:
        """Give a server that has not started yet a clock of its own; what it starts looks at the same one."""
        file = self._file(server.name)
        if not file.exists():
            file.write_bytes(struct.pack("q", 0))
        server.env = {**server.env, "LD_PRELOAD": str(self.library), "FAULTY_CLOCK": str(file)}

    def step(self, server: str, seconds: float) -> None:
        """Set a server's clock so far ahead of the machine's, or, where negative, behind it; 0 sets it right."""
        with self._file(server).open("r+b") as file, mmap.mmap(file.fileno(), 8) as seen:
            # One store of eight bytes, of which nobody sees a half.
            memoryview(seen).cast("q")[0] = int(seconds * 1e9)

    def is_seen(self, server: str, process: psutil.Process) -> bool:
        """Whether a server's process looks at the clock that is the server's own."""
        with suppress(OSError):
            mapped = Path(f"/proc/{process.pid}/maps").read_text()
            return str(self.library) in mapped and str(self._file(server)) in mapped
        return False

    def _file(self, server: str) -> Path:
        return self.home / f"{server}.offset"


class Clock:
    """A server's clock is so many seconds ahead, or behind, for a while; then it is set right again."""

    def __init__(
        self,
        clocks: Clocks,
        server: str,
        process: Callable[[], psutil.Process],
        name: str,
        by: float,
        seconds: float = 20,
    ):
        self._clocks, self._server, self._process = clocks, server, process
        self._by, self.seconds, self.met = by, seconds, 0
        self.kind = f"{name}'s clock {_spoken(abs(by))} {'ahead' if by > 0 else 'behind'}"

    def strike(self) -> None:
        self._clocks.step(self._server, self._by)
        self.met = int(self._clocks.is_seen(self._server, self._process()))

    def heal(self) -> None:
        self._clocks.step(self._server, 0)


def _spoken(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds:g} s"
