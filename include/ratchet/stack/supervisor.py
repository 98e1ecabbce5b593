"""The supervisor: starts servers, restarts what ends, and ends all that it started."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from ratchet.errors import StackError
from ratchet.stack.server import Server, adopt_orphans, end

PAUSES = (1, 2, 4, 8, 16, 30)
"""Seconds before the first, second, … restart in a row."""
STEADY = 60
"""After so many seconds a server counts as well again, and its next pause is the first one."""
LOOK_EVERY = 0.5


class Supervisor:
    """Watches the servers of one stack; its record of processes, by id and start time, is in `record`."""

    def __init__(self, record: Path, say: Callable[[str], None]):
        self._record, self._say = record, say
        self._servers: list[Server] = []
        self._failures: dict[str, int] = {}
        self._started: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._peak: dict[str, int] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._starter = threading.Thread(target=self._watch, daemon=True, name="supervisor")
        self._wanted: list[Server] = []
        self._errors: list[BaseException] = []

    def end_leftovers(self) -> None:
        """End what an earlier supervisor of this stack left behind when it was killed."""
        if not self._record.exists():
            return
        left = []
        for pid, started in json.loads(self._record.read_text()):
            try:
                process = psutil.Process(pid)
                if abs(process.create_time() - started) < 1:
                    left += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        for process in left:
            self._say(f"ending process {process.pid}, which an earlier run left behind")
        for process in left:
            end([process], first=2, patience=10)
        self._record.unlink()

    def start(self, servers: list[Server]) -> None:
        """Start servers side by side and wait until all are ready.

        Raises StackError with the end of a server's log when it ends or is not ready in its time.
        """
        if not self._starter.is_alive():
            adopt_orphans()
            self._starter.start()
        with self._lock:
            self._wanted += servers
        for server in servers:
            self._await(server)
        with self._lock:
            self._servers += servers

    def _await(self, server: Server) -> None:
        deadline = time.monotonic() + server.seconds_to_start
        while True:
            if self._errors:
                raise StackError(f"{server.name} cannot be started: {self._errors[0]}")
            if server.process is not None:
                if server.ready():
                    return
                if server.ended:
                    raise StackError(f"{server.name} ended at once; the end of {server.log}:\n{server.last_lines()}")
            if time.monotonic() > deadline:
                raise StackError(
                    f"{server.name} is not ready after {server.seconds_to_start:.0f} s; "
                    f"the end of {server.log}:\n{server.last_lines()}"
                )
            self._stopping.wait(0.1)

    def stop(self) -> None:
        """End every process that was started, the last started first."""
        self._stopping.set()
        if self._starter.is_alive():
            self._starter.join()
        self._record.unlink(missing_ok=True)

    def pids(self) -> dict[str, int]:
        """{server: the id of its process}."""
        with self._lock:
            return {s.name: s.process.pid for s in self._servers if s.process}

    def peak_memory(self) -> dict[str, int]:
        """{server: the most bytes that its processes together held in memory, seen twice a second}."""
        with self._lock:
            return dict(self._peak)

    def _watch(self) -> None:
        # This thread starts every server, since the kernel ends a server with the thread that started it.
        all_of_them: list[Server] = []
        while not self._stopping.is_set():
            with self._lock:
                fresh, self._wanted = self._wanted, []
            for server in fresh:
                self._launch(server)
                all_of_them.append(server)
            with self._lock:
                watched = list(self._servers)
            for server in watched:
                self._look_after(server)
            self._measure(watched)
            self._stopping.wait(0.05 if fresh else LOOK_EVERY)
        families = [(server, server.family()) for server in reversed(all_of_them)]
        apart = [family for server, family in families if server.name not in ("kafka", "postgres")]
        threads = [threading.Thread(target=end, args=(f, 15, 10)) for f in apart if f]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for server, family in families:
            if server.name in ("kafka", "postgres") and family:
                end(family, server.stop_signal, 20)

    def _launch(self, server: Server) -> None:
        try:
            server.start()
        except OSError as error:
            self._errors.append(error)
            return
        self._started[server.name] = time.monotonic()
        self._write_record(server)

    def _write_record(self, server: Server) -> None:
        known = json.loads(self._record.read_text()) if self._record.exists() else []
        process = server.process
        if process is not None and psutil.pid_exists(process.pid):
            known.append([process.pid, psutil.Process(process.pid).create_time()])
        self._record.write_text(json.dumps(known))

    def _look_after(self, server: Server) -> None:
        name, now = server.name, time.monotonic()
        if not server.ended:
            if now - self._started[name] > STEADY:
                self._failures[name] = 0
            return
        if name not in self._due:
            failures = self._failures.get(name, 0)
            pause = PAUSES[min(failures, len(PAUSES) - 1)]
            self._failures[name] = failures + 1
            self._due[name] = now + pause
            code = server.process.returncode if server.process else None
            self._say(f"{name} ended (exit status {code}); starting it again in {pause} s; its log is {server.log}")
        if now >= self._due[name]:
            del self._due[name]
            self._launch(server)
            self._say(f"{name} was started again")

    def _measure(self, servers: list[Server]) -> None:
        for server in servers:
            held = 0
            for process in server.family():
                try:
                    held += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            with self._lock:
                self._peak[server.name] = max(held, self._peak.get(server.name, 0))
