"""The embedded Spark cluster: a standalone master and two workers, each a JVM of its own, as on several machines."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from ratchet.dev.stack.connect import spark_home
from ratchet.dev.stack.ports import HOST, Ports
from ratchet.dev.stack.server import Server

WORKER_HOSTS = (HOST, "127.0.0.2")
"""Each worker has a host of its own: Spark never runs a second attempt of a slow task on the host of the first."""


class SparkStandalone:
    """A standalone cluster on the loopback, two workers with a core and 1 GiB each; executors are their children."""

    def __init__(self, home: Path, ports: Ports, java: Path, env: dict[str, str]):
        self.home = home / "standalone"
        self.port, self._page = ports.get("spark_master"), ports.get("spark_master_page")
        self._worker_ports = [ports.get(f"spark_worker_{number}") for number, _ in enumerate(WORKER_HOSTS, 1)]
        self._env = {
            **env,
            "JAVA_HOME": str(java.parent.parent),
            "SPARK_HOME": str(spark_home()),
            "SPARK_NO_DAEMONIZE": "true",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }

    @property
    def url(self) -> str:
        """What a driver connects to."""
        return f"spark://{HOST}:{self.port}"

    @property
    def conf(self) -> dict[str, str]:
        """What a driver must set to fit into so small a cluster and to stay on the loopback."""
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
        }

    def master(self, log: Path) -> Server:
        """The master's process; its page, which is on the loopback too, says which workers it has."""
        self.home.mkdir(parents=True, exist_ok=True)
        command = self._command("master.Master", HOST, self.port, self._page)
        return Server("spark-master", command, log, self._is_up, env=self._on(HOST), cwd=self.home)

    def workers(self, logs: Path) -> list[Server]:
        """The workers' processes; start them when the master is up, since a worker that finds none waits long."""
        return [
            Server(
                f"spark-worker-{number}",
                [
                    *self._command("worker.Worker", host, port, 0),
                    *("--cores", "1", "--memory", "1g", "--work-dir", str(self.home / f"work-{number}"), self.url),
                ],
                logs / f"spark-worker-{number}.log",
                lambda host=host, port=port: self._is_registered(host, port),
                env=self._on(host),
                cwd=self.home,
            )
            for number, (host, port) in enumerate(zip(WORKER_HOSTS, self._worker_ports, strict=True), 1)
        ]

    def _command(self, name: str, host: str, port: int, page: int) -> list[str]:
        where = ["--host", host, "--port", str(port), "--webui-port", str(page)]
        return [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *where]

    def _on(self, host: str) -> dict[str, str]:
        """The environment of a process on this host; a worker's executors inherit it."""
        return {**self._env, "SPARK_LOCAL_IP": host, "SPARK_LOCAL_HOSTNAME": host}

    def _is_up(self) -> bool:
        return self._state().get("status") == "ALIVE"

    def _is_registered(self, host: str, port: int) -> bool:
        try:
            # The master still lists a worker that ended a moment ago.
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            return False
        workers = self._state().get("workers", [])
        return any((w["host"], w["port"], w["state"]) == (host, port, "ALIVE") for w in workers)

    def _state(self) -> dict:
        try:
            with urlopen(f"http://{HOST}:{self._page}/json/", timeout=2) as answer:
                return json.load(answer)
        except (URLError, OSError, ValueError):
            return {}
