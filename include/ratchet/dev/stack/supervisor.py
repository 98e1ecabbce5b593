"""The supervisor: starts servers, restarts what ends, and ends all that it started."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from ratchet.dev.stack.server import Server, end, family
from ratchet.errors import StackError

PAUSES = (1, 2, 4, 8, 16, 30)
"""Seconds before the first, second, … restart in a row."""
STEADY = 60
"""After so many seconds a server counts as well again, and its next pause is the first one."""
LOOK_EVERY = 0.5
MEASURE_EVERY = 10
"""The kernel goes through all pages of a process for it."""
SERVES_OTHERS = ("postgres", "kafka", "kafka-2", "kafka-3", "connect", "api-server")
"""Servers that others call until they end themselves: these end last, the first of them at the very end."""


class Supervisor:
    """Watches the servers of one stack; its record of processes, by id and start time, is in `record`."""

    def __init__(self, record: Path, say: Callable[[str], None]):
        self._record, self._say = record, say
        self._launched: list[Server] = []
        self._watched: list[Server] = []
        self._wanted: list[Server] = []
        self._refused: dict[str, OSError] = {}
        self._failures: dict[str, int] = {}
        self._steady_from: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._peak: dict[str, int] = {}
        self._measured = 0.0
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        # The kernel ends a server with the thread that started it, so one thread starts and watches them all.
        self._thread = threading.Thread(target=self._run, daemon=True, name="supervisor")

    def end_leftovers(self) -> None:
        """End what an earlier supervisor of this stack left behind when it was killed."""
        if not self._record.exists():
            return
        for name, pid, started in json.loads(self._record.read_text()):
            left = family(pid, started)
            if left:
                self._say(f"ending what an earlier run has left of {name} (process {left[0].pid})")
                end(left, signal.SIGINT if name == "postgres" else signal.SIGTERM, patience=10)
        self._record.unlink()

    def launch(self, servers: list[Server]) -> None:
        """Start servers side by side; `wait` tells when they are ready, and only then are they started anew."""
        with self._lock:
            self._wanted += servers
        if servers and not self._thread.is_alive():
            self._thread.start()

    def wait(self, servers: list[Server]) -> None:
        """Return when all of these, which were launched, are ready.

        Raises StackError with the end of a server's log when it ends or is not ready in its time, counted from here.
        """
        for server in servers:
            self._await(server)
        with self._lock:
            self._watched += servers

    def start(self, servers: list[Server]) -> None:
        """Launch servers and wait for them; raises what `wait` raises."""
        self.launch(servers)
        self.wait(servers)

    def stop(self) -> None:
        """End every process that was started, the last started first."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def pids(self) -> dict[str, int]:
        """{server: the id of its process}."""
        with self._lock:
            return {s.name: s.process.pid for s in self._watched if s.process}

    def peak_memory(self) -> dict[str, int]:
        """{server: the most bytes that its processes together held, seen every ten seconds}.

        Of a page that n processes share, each holds one nth.
        """
        with self._lock:
            return dict(self._peak)

    def _await(self, server: Server) -> None:
        deadline = time.monotonic() + server.seconds_to_start
        while True:
            if server.name in self._refused:
                raise StackError(f"{server.name} cannot be started: {self._refused[server.name]}")
            if server.process is not None:
                if server.ready() and not server.ended:
                    return
                if server.ended:
                    said = f"{server.name} ended while it was starting (exit status {server.process.returncode})"
                    raise StackError(f"{said}; its log {server.log} ends with:\n{server.last_lines()}")
            if time.monotonic() > deadline:
                said = f"{server.name} is not ready after {server.seconds_to_start:.0f} s"
                raise StackError(f"{said}; its log {server.log} ends with:\n{server.last_lines()}")
            self._stopping.wait(0.1)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
            except (OSError, psutil.Error) as error:
                # Were this thread to end, so would every server.
                self._tell(f"the supervisor goes on after an error: {error}")
            self._stopping.wait(0.05 if self._wanted else LOOK_EVERY)
        self._end_all()

    def _look(self) -> None:
        with self._lock:
            fresh, self._wanted = self._wanted, []
            watched = list(self._watched)
        for server in fresh:
            self._launch(server)
        for server in watched:
            self._look_after(server)
        if time.monotonic() - self._measured > MEASURE_EVERY:
            self._measured = time.monotonic()
            self._measure()

    def _launch(self, server: Server) -> bool:
        if server not in self._launched:
            self._launched.append(server)
        try:
            server.start()
        except OSError as error:
            self._refused[server.name] = error
            return False
        self._refused.pop(server.name, None)
        self._steady_from[server.name] = time.monotonic() + STEADY
        self._write_record()
        return True

    def _write_record(self) -> None:
        known = [[s.name, s.process.pid, s.started] for s in self._launched if s.process]
        # Replaced as a whole: half a record would hide a server from the next start.
        fresh = self._record.with_suffix(".new")
        fresh.write_text(json.dumps(known))
        fresh.replace(self._record)

    def _look_after(self, server: Server) -> None:
        name, now = server.name, time.monotonic()
        if not server.ended:
            if now > self._steady_from[name]:
                self._failures[name] = 0
            return
        if name not in self._due:
            # Without their parent they would hold on to memory, ports and locks.
            end(server.family(), signal.SIGKILL, patience=0)
            failures = self._failures.get(name, 0)
            pause = PAUSES[min(failures, len(PAUSES) - 1)]
            self._failures[name] = failures + 1
            self._due[name] = now + pause
            status = server.process.returncode if server.process else None
            self._tell(f"{name} ended (exit status {status}); starting it again in {pause} s; its log is {server.log}")
        if now >= self._due[name]:
            del self._due[name]
            if self._launch(server):
                self._tell(f"{name} was started again (process {server.process.pid if server.process else '?'})")
            else:
                self._tell(f"{name} cannot be started: {self._refused[name]}")

    def _measure(self) -> None:
        for server in self._launched:
            held = sum(map(_held, server.family()))
            with self._lock:
                self._peak[server.name] = max(held, self._peak.get(server.name, 0))

    def _end_all(self) -> None:
        callers = [s for s in reversed(self._launched) if s.name not in SERVES_OTHERS]
        threads = [threading.Thread(target=end, args=(s.family(), s.stop_signal, s.seconds_to_stop)) for s in callers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rank = {name: rank for rank, name in enumerate(SERVES_OTHERS)}
        for server in sorted(set(self._launched) - set(callers), key=lambda s: -rank[s.name]):
            end(server.family(), server.stop_signal, server.seconds_to_stop)
        for server in self._launched:
            if server.process is not None:
                server.process.poll()
        self._record.unlink(missing_ok=True)

    def _tell(self, line: str) -> None:
        try:
            self._say(line)
        except OSError:
            # A full disk or a closed terminal is no reason to stop watching.
            pass


def _held(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.AccessDenied:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
