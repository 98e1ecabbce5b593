"""The embedded Spark: a Connect server that stays warm, so that a job does not pay for a JVM of its own."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

from ratchet.dev.stack.checkout import CHECKOUT
from ratchet.dev.stack.machine import BRIEF, CORES, LASTING
from ratchet.dev.stack.ports import HOST
from ratchet.dev.stack.server import Server
from ratchet.errors import StackError

SERVER = CHECKOUT / "include" / "ratchet" / "spark" / "connect_server.py"
"""What spark-submit runs."""


def spark_home() -> Path:
    """Where pyspark and its jars are."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise StackError("the package pyspark is not installed; run `make install`")
    return Path(found.origin).parent


class SparkConnect:
    """A Spark Connect server on all of this machine's cores; clients reach it at `port` on the loopback."""

    def __init__(
        self, home: Path, port: int, java: Path, jars: list[Path], env: dict[str, str], *, lasting: bool = False
    ):
        """With `lasting` Java compiles for hours of work, at the cost of the first minutes."""
        self.home, self.port = home / "spark", port
        self._java, self._jars, self._env, self._lasting = java, jars, env, lasting

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"sc://{HOST}:{self.port}"

    def server(self, log: Path) -> Server:
        """The server's process."""
        self.home.mkdir(parents=True, exist_ok=True)
        settings = {
            "spark.python.daemon.module": "ratchet.spark.workers",
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": self.port,
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.driver.memory": "1536m" if self._lasting else "1g",
            "spark.driver.extraJavaOptions": " ".join(LASTING if self._lasting else BRIEF),
            # Each query's consumers are cached for itself, and so is what they have fetched ahead; after five minutes
            # of it the heap is full of records that nobody reads again.
            "spark.kafka.consumer.cache.capacity": 4,
            "spark.kafka.consumer.cache.timeout": "10s",
            "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
            "spark.kafka.consumer.fetchedData.cache.timeout": "10s",
            "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": CORES,
            "spark.sql.warehouse.dir": self.home / "warehouse",
            "spark.local.dir": self.home / "local",
            "spark.log.level": "WARN",
        }
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", f"local[{CORES}]"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += ["--jars", ",".join(map(str, self._jars)), str(SERVER)]
        env = {
            **self._env,
            "JAVA_HOME": str(self._java.parent.parent),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            # Workers import transforms as the driver does.
            "PYTHONPATH": os.pathsep.join(filter(None, (self._env.get("PYTHONPATH"), str(CHECKOUT)))),
        }
        return Server("connect", command, log, self.is_ready, env=env, cwd=self.home, seconds_to_start=120)

    def is_ready(self) -> bool:
        """Whether it listens; it does so when its session is up."""
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True
