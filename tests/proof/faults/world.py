"""The embedded stack in surroundings that can be made to fail: its disk, its connections, its clocks, its processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import patch

import psutil

from ratchet.dev.stack import Stack
from ratchet.dev.stack.server import Server
from ratchet.operate.migrate import migrate
from ratchet.spec.loading import load_pipelines
from tests.acceptance.transforms import HOLDS
from tests.until import until

from .clock import Clocks
from .disk import Disk
from .network import Network

PIPELINES = f"{__package__}.pipelines"
TASKS, SPARK_WORKERS, TEST = "tasks", "Spark workers", "test"
"""Callers that are no servers: processes of Airflow's tasks, Spark's Python workers, and whoever started the stack."""


class World:
    """All servers with the pipelines of a package, whose tables are there; a context manager.

    `holds` is the directory that their transforms obey. PostgreSQL's data is on a disk of `disk_mb` in memory, every
    connection between two processes of the stack goes by way of a proxy, and each server looks at a clock of its own.
    The test's own connections are never troubled. `env` reaches Airflow's processes and Spark's workers. Raises
    StackError, naming what is missing, where the machine does not allow one of these.
    """

    def __init__(
        self,
        home: Path,
        pipelines: str = PIPELINES,
        *,
        env: dict[str, str] | None = None,
        disk_mb: int = 1024,
        say: Callable[[str], None] | None = None,
    ):
        self.home, self._pipelines, self._open = Path(home).resolve(), pipelines, ExitStack()
        self.holds = self.home / "holds"
        env = {"RATCHET_PIPELINES": pipelines, HOLDS: str(self.holds), **(env or {})}
        self.servers: dict[str, Server] = {}
        self.disk = Disk(self.home / "postgres", disk_mb * 2**20)
        self.network = Network(self.who)
        self.stack = Stack(
            self.home, env=env, say=say, before_airflow=self._migrate, advertise=self.network.before, alter=self._alter
        )

    def __enter__(self) -> World:
        self.holds.mkdir(parents=True, exist_ok=True)
        try:
            self.clocks = Clocks(self.home / "clocks")
            # The servers are ended before the mount and the proxies go.
            for part in (self.disk, self.network, self.stack):
                self._open.enter_context(part)
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def process(self, server: str) -> psutil.Process:
        """The process of a server that runs."""
        return psutil.Process(self.stack.pids()[server])

    def answers(self, server: str, seconds: float = 600) -> None:
        """Wait until a server is up and answers, which in the midst of other faults may take long."""
        until(
            f"{server} is up and answers",
            lambda: not self.servers[server].ended and self.servers[server].ready(),
            seconds,
        )

    def who(self, pid: int) -> str:
        """The name of the server that a process is, or one of TASKS, SPARK_WORKERS and TEST; "" for a stranger."""
        leaders = {leader: name for name, leader in self.stack.pids().items()}
        try:
            line = [process.pid for process in (psutil.Process(pid), *psutil.Process(pid).parents())]
            line.append(os.getsid(pid))
        except (psutil.NoSuchProcess, ProcessLookupError):
            return ""
        server = next((leaders[one] for one in line if one in leaders), None)
        if server is None:
            return TEST if os.getpid() in line else ""
        if pid in leaders:
            return server
        return {"scheduler": TASKS, "connect": SPARK_WORKERS}.get(server, server)

    def strays(self) -> list[psutil.Process]:
        """What a server has left behind, and what stands still."""
        # Whatever was started from here shares the mount that nobody else sees.
        ours, known = os.readlink("/proc/thread-self/ns/mnt"), [self.process(server) for server in self.servers]
        mine = psutil.Process()
        # The ledger of other tests, which may be started amid these.
        others = [child for child in mine.children() if child.name() == "postgres" and child not in known]
        known = [*known, *(child for server in (*known, *others) for child in server.children(recursive=True))]
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, OSError):
                if (
                    os.readlink(f"/proc/{process.pid}/ns/mnt") != ours
                    or process == mine
                    or mine in process.parents()[:1]
                ):
                    continue
                if process not in known or process.status() == psutil.STATUS_STOPPED:
                    found.append(process)
        return found

    def _alter(self, server: Server) -> None:
        self.servers[server.name] = server
        self.clocks.fit(server)
        if server.name == "postgres":
            # By default as much as the whole disk.
            server.command += ["-c", "max_wal_size=128MB", "-c", "min_wal_size=32MB"]

    def _migrate(self, stack: Stack) -> None:
        with patch.dict(os.environ, RATCHET_PIPELINES=self._pipelines):
            specs = load_pipelines()
        migrate(stack.ledger_url, specs.values())
