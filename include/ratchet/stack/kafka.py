"""The embedded Kafka: one process that is broker and controller."""

from __future__ import annotations

import subprocess
from pathlib import Path
from uuid import uuid4

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from ratchet.errors import StackError
from ratchet.stack.ports import HOST
from ratchet.stack.server import Server


class KafkaBroker:
    """A KRaft broker whose log is below `home`; clients reach it at `port` on the loopback."""

    def __init__(self, home: Path, port: int, controller_port: int, java: Path, jars: list[Path]):
        self.home, self.port, self.controller_port = home / "kafka", port, controller_port
        self._java = [str(java), "-Xmx768m", "-cp", str(jars[0].parent / "*")]

    @property
    def properties(self) -> dict[str, str]:
        """Client properties by their Java names."""
        return {"bootstrap.servers": f"{HOST}:{self.port}"}

    def initialize(self) -> None:
        """Write the configuration, and format the log directory once."""
        self.home.mkdir(parents=True, exist_ok=True)
        config = self.home / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"{HOST}:{self.controller_port}",
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.home / "log",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if (self.home / "log" / "meta.properties").exists():
            return
        tool = [*self._java, "kafka.tools.StorageTool", "format", "--standalone", "-t", str(uuid4()), "-c", str(config)]
        done = subprocess.run(tool, capture_output=True, text=True)
        if done.returncode:
            raise StackError(f"Kafka could not format {self.home / 'log'}: {(done.stderr or done.stdout).strip()}")

    def server(self, log: Path) -> Server:
        """The broker's process."""
        command = [*self._java, "kafka.Kafka", str(self.home / "server.properties")]
        return Server("kafka", command, log, self.is_ready, cwd=self.home, seconds_to_stop=20)

    def is_ready(self) -> bool:
        """Whether it answers a request for metadata; it prints nothing that could be read instead."""
        try:
            admin = KafkaAdminClient(bootstrap_servers=f"{HOST}:{self.port}", bootstrap_timeout_ms=1000)
        except (KafkaError, OSError, ValueError):
            return False
        try:
            admin.list_topics()
        except (KafkaError, OSError):
            return False
        finally:
            admin.close()
        return True
