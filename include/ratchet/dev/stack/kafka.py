"""The embedded Kafka: one process, or several, each of them broker and controller."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4, uuid5

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from ratchet.dev.stack.machine import BRIEF
from ratchet.dev.stack.ports import HOST
from ratchet.dev.stack.server import Server
from ratchet.errors import StackError
from ratchet.source.properties import client_settings


@dataclass(frozen=True)
class Security:
    """SASL_SSL: whom the brokers let in, and how they prove who they are.

    `authority` is the PEM certificate that clients trust; `identity` is the brokers' PEM file, a PKCS #8 key and the
    certificate signed by `authority`, made out to 127.0.0.1. `users` are {name: password}; the first of them is also
    the brokers' own login, and may do everything; the others may what is granted to them. They log in by PLAIN, or by
    SCRAM-SHA-512 once somebody has made such a credential.
    """

    authority: Path
    identity: Path
    users: dict[str, str]

    def properties(self, user: str) -> dict[str, str]:
        """What a client needs, by Java names, to log in as `user`."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": self.login({"username": user, "password": self.users[user]}),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
        }

    def login(self, said: dict[str, str]) -> str:
        """A PLAIN login as JAAS writes it."""
        quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in said.items()}
        options = " ".join(f'{name}="{value}"' for name, value in quoted.items())
        return f"org.apache.kafka.common.security.plain.PlainLoginModule required {options};"

    def settings(self) -> dict[str, object]:
        """What a broker needs, by Java names."""
        first = next(iter(self.users))
        known = {f"user_{name}": password for name, password in self.users.items()}
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return {
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": self.login(
                {"username": first, "password": self.users[first], **known}
            ),
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Controllers know each other by their addresses, which nobody else has.
            "super.users": f"User:{first};User:ANONYMOUS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.identity,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
        }


class KafkaBroker:
    """Broker `number` of a KRaft cluster whose brokers are at `ports`, [(for clients, for controllers), …].

    Its log is in a directory of its own below `home`. All brokers of a cluster get the same `cluster`, a number that
    was made up for it, from which follow the ids by which they know each other's logs. Clients are told to reach it at
    port `advertised`, where that is not its own.
    """

    def __init__(
        self,
        home: Path,
        number: int,
        ports: Sequence[tuple[int, int]],
        java: Path,
        jars: list[Path],
        security: Security | None = None,
        advertised: int | None = None,
        lasting: bool = False,
    ):
        """With `lasting` Java compiles for hours of work, at the cost of the first minutes."""
        self.name = "kafka" if number == 1 else f"kafka-{number}"
        self.home, self.number, self.ports, self.security = home / self.name, number, list(ports), security
        self._advertised = advertised or self.ports[number - 1][0]
        heap = "768m" if len(ports) == 1 else "384m"
        self._java = [str(java), f"-Xmx{heap}", "-cp", str(jars[0].parent / "*")]
        self._brief = [] if lasting else list(BRIEF)

    @property
    def properties(self) -> dict[str, str]:
        """Client properties by their Java names; they name every broker of the cluster, this one first."""
        others = [p for n, p in enumerate(self.ports, 1) if n != self.number]
        servers = ",".join(f"{HOST}:{port}" for port in (self._advertised, *(port for port, _ in others)))
        secure = self.security.properties(next(iter(self.security.users))) if self.security else {}
        return {"bootstrap.servers": servers, **secure}

    def initialize(self, cluster: UUID) -> None:
        """Write the configuration, and format the log directory once."""
        self.home.mkdir(parents=True, exist_ok=True)
        config = self.home / "server.properties"
        config.touch(mode=0o600)
        lines = [f"{name}={value}".replace("\\", "\\\\") for name, value in self._settings().items()]
        config.write_text("\n".join(lines) + "\n")
        if (self.home / "log" / "meta.properties").exists():
            return
        controllers = ",".join(
            f"{n}@{HOST}:{port}:{_directory_id(cluster, n)}" for n, (_, port) in enumerate(self.ports, 1)
        )
        tool = [*self._java, *BRIEF, "kafka.tools.StorageTool", "format", "-t", str(cluster), "-c", str(config)]
        done = subprocess.run([*tool, "--initial-controllers", controllers], capture_output=True, text=True)
        if done.returncode:
            raise StackError(f"Kafka could not format {self.home / 'log'}: {(done.stderr or done.stdout).strip()}")

    def _settings(self) -> dict[str, object]:
        port, controller_port = self.ports[self.number - 1]
        protocol, copies = "SASL_SSL" if self.security else "PLAINTEXT", len(self.ports)
        enough = 1 if copies == 1 else copies - 1
        return {
            "process.roles": "broker,controller",
            "node.id": self.number,
            "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{port}" for _, port in self.ports),
            "listeners": f"{protocol}://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"{protocol}://{HOST}:{self._advertised},CONTROLLER://{HOST}:{controller_port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.home / "log",
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": enough,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": enough,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": enough,
            "group.initial.rebalance.delay.ms": 0,
            # How soon another broker takes over from one that was killed, and lets it in again.
            **({} if copies == 1 else {"broker.session.timeout.ms": 4000, "broker.heartbeat.interval.ms": 500}),
            **(self.security.settings() if self.security else {}),
        }

    def server(self, log: Path) -> Server:
        """The broker's process."""
        command = [*self._java, *self._brief, "kafka.Kafka", str(self.home / "server.properties")]
        # The last of several has nobody left to hand over to, and would try for long.
        patience = 20 if len(self.ports) == 1 else 1
        return Server(self.name, command, log, self.is_ready, cwd=self.home, seconds_to_stop=patience)

    def is_ready(self) -> bool:
        """Whether it knows all brokers of its cluster; it prints nothing that could be read instead."""
        own = f"{HOST}:{self.ports[self.number - 1][0]}"
        settings = client_settings({**self.properties, "bootstrap.servers": own})
        try:
            # Pyright's stubs are of an older kafka-python.
            admin = KafkaAdminClient(**settings, bootstrap_timeout_ms=1000)  # pyright: ignore[reportCallIssue]
        except (KafkaError, OSError, ValueError):
            return False
        try:
            return len(admin.describe_cluster()["brokers"]) == len(self.ports)
        except (KafkaError, OSError):
            return False
        finally:
            admin.close()


def cluster_id(home: Path) -> UUID:
    """The number of the cluster whose brokers are below `home`, made up once."""
    file = home / "kafka-cluster"
    if not file.exists():
        file.write_text(str(uuid4()))
    return UUID(file.read_text())


def _directory_id(cluster: UUID, number: int) -> str:
    """The id of a broker's log directory, in Kafka's form: 16 bytes in base64."""
    return base64.urlsafe_b64encode(uuid5(cluster, str(number)).bytes).decode().rstrip("=")
