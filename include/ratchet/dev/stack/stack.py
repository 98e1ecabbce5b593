"""The whole stack: which servers there are, in which order they start, and how others reach them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TextIO

import psutil

from ratchet.dev.stack import prerequisites
from ratchet.dev.stack.addresses import Addresses, publish, running, withdraw
from ratchet.dev.stack.airflow import Airflow
from ratchet.dev.stack.checkout import CHECKOUT
from ratchet.dev.stack.connect import SparkConnect
from ratchet.dev.stack.kafka import KafkaBroker, Security, cluster_id
from ratchet.dev.stack.machine import BRIEF
from ratchet.dev.stack.ports import HOST, Ports
from ratchet.dev.stack.postgres import Postgres
from ratchet.dev.stack.server import Server, end
from ratchet.dev.stack.standalone import SparkStandalone
from ratchet.dev.stack.supervisor import Supervisor
from ratchet.errors import StackError

SERVERS = frozenset({"postgres", "kafka", "connect", "airflow"})
"""What runs unless a caller says otherwise; `standalone`, a Spark cluster, runs only where it is named."""
BRIEF_DRIVER = {"spark.driver.extraJavaOptions": " ".join(BRIEF)}
"""Spark's settings for a driver that is submitted for one slice: it ends before compiling better would pay."""


class Stack:
    """Embedded servers with their state below `home`; a context manager that ends all it has started.

    `env` is added to the environment of Airflow's processes and of Spark's workers, and may set Airflow otherwise.
    `schedulers` is how many Airflow has. `say` is given a line for every restart; by default it goes to standard
    error. `before_airflow` is called when PostgreSQL and Kafka are up: what the first scheduled run needs, tables and
    topics, is made there. `meanwhile` is called when Spark is up too, while Airflow starts: what the first run would
    have to wait for is warmed there. Everything is also in `home`/supervisor.log.
    `slices_at_once` is how many process tasks Airflow runs at a time; by default only its parallelism bounds them.
    With `lasting` the servers' Java compiles for hours of work, at the cost of the first minutes.
    `brokers` is how many Kafka brokers there are; of three, any one may fail. With `security` clients must log in.
    `advertise` is given the name and port of PostgreSQL, the first Kafka broker, Spark Connect and the api-server, and
    returns the port at which the servers are told to reach it, where something stands between them. `alter` is given
    each server before it is started, and may change its command and its environment.
    """

    def __init__(
        self,
        home: Path,
        servers: Iterable[str] = SERVERS,
        *,
        env: dict[str, str] | None = None,
        schedulers: int = 1,
        say: Callable[[str], None] | None = None,
        before_airflow: Callable[[Stack], None] | None = None,
        meanwhile: Callable[[Stack], None] | None = None,
        slices_at_once: int | None = None,
        lasting: bool = False,
        brokers: int = 1,
        security: Security | None = None,
        advertise: Callable[[str, int], int] = lambda name, port: port,
        alter: Callable[[Server], None] = lambda server: None,
    ):
        self._advertise, self._alter = advertise, alter
        self.home, self.servers = Path(home).resolve(), frozenset(servers)
        self._env, self._to_user = dict(env or {}), say or (lambda line: print(line, file=sys.stderr))
        self._before_airflow, self._meanwhile, self._schedulers = before_airflow, meanwhile, schedulers
        self._slices_at_once, self._lasting = slices_at_once, lasting
        self._brokers, self._security = brokers, security
        self._pid_file = self.home / "supervisor.pid"
        self._lock: TextIO | None = None
        self.guests = ExitStack()
        """What uses the servers from this process: it is left before they are ended, whatever they have come to."""
        self.supervisor = Supervisor(self.home / "processes.json", self._say)

    def __enter__(self) -> Stack:
        try:
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _up(self) -> None:
        # Step 1: is everything there that the servers need?
        self.home.mkdir(parents=True, exist_ok=True)
        prerequisites.disk(self.home)
        needs_java = self.servers & {"kafka", "connect", "standalone"}
        java = prerequisites.java() if needs_java else Path()
        self._claim()
        self.supervisor.end_leftovers()
        # Step 2: the servers that need no other, side by side; those that take longest to start come first.
        ports, logs = Ports(self.home / "ports.json", self._say), self.home / "logs"
        path = os.pathsep.join([self._env.get("PYTHONPATH", ""), str(CHECKOUT)]).strip(os.pathsep)
        env = {**self._env, "PYTHONPATH": path}
        spark: list[Server] = []
        if "connect" in self.servers:
            jars = prerequisites.jars(CHECKOUT, "spark")
            self._connect = SparkConnect(self.home, ports.get("connect"), java, jars, env, lasting=self._lasting)
            self._connect_at = self._advertise("connect", self._connect.port)
            spark.append(self._connect.server(logs / "connect.log"))
        if "standalone" in self.servers:
            self._standalone = SparkStandalone(self.home, ports, java, env)
            spark.append(self._standalone.master(logs / "spark-master.log"))
        self._launch(spark)
        kafka = self._kafka_servers(ports, java, logs) if "kafka" in self.servers else []
        self._launch(kafka)
        if "postgres" in self.servers:
            port = ports.get("postgres")
            self._postgres = Postgres(self.home, port, self._advertise("postgres", port))
            self._postgres.initialize()
            self._start([self._postgres.server(logs / "postgres.log")])
            self._postgres.create_databases()
        # Step 3: Airflow's database, while the others start, and its api-server, for which the rest of it waits.
        airflow: list[Server] = []
        if "airflow" in self.servers:
            home = {"JAVA_HOME": str(java.parent.parent)} if needs_java else {}
            self._airflow = self._airflow_of(ports, env | home)
            self._airflow.initialize(self._postgres)
            airflow = self._airflow.servers(logs)
        self._launch(airflow[:1])
        # Step 4: what the first run needs.
        self.supervisor.wait(kafka)
        if self._before_airflow is not None:
            self._before_airflow(self)
        # Step 5: the rest of Airflow, and meanwhile Spark.
        self._launch(airflow[1:])
        self.supervisor.wait(airflow[:1])
        self.supervisor.wait(spark)
        if "standalone" in self.servers:
            self._start(self._standalone.workers(logs))
        if self._meanwhile is not None:
            self._meanwhile(self)
        self.supervisor.wait(airflow[1:])
        publish(self.home, self._addresses())

    def _airflow_of(self, ports: Ports, env: dict[str, str]) -> Airflow:
        more = [ports.get(f"scheduler_{number}") for number in range(2, self._schedulers + 1)]
        port = ports.get("airflow")
        told = {**self._connections(), **env}
        return Airflow(self.home, CHECKOUT, port, told, more, self._advertise("api-server", port), self._slices_at_once)

    def _start(self, servers: list[Server]) -> None:
        self._launch(servers)
        self.supervisor.wait(servers)

    def _launch(self, servers: list[Server]) -> None:
        for server in servers:
            self._alter(server)
        self.supervisor.launch(servers)

    def _kafka_servers(self, ports: Ports, java: Path, logs: Path) -> list[Server]:
        jars, cluster = prerequisites.jars(CHECKOUT, "broker"), cluster_id(self.home)
        suffixes = ["" if n == 1 else f"_{n}" for n in range(1, self._brokers + 1)]
        at = [(ports.get(f"kafka{s}"), ports.get(f"kafka_controller{s}")) for s in suffixes]
        told = self._advertise("kafka", at[0][0])
        brokers = [
            KafkaBroker(self.home, n, at, java, jars, self._security, told if n == 1 else None, self._lasting)
            for n in range(1, self._brokers + 1)
        ]
        for broker in brokers:
            broker.initialize(cluster)
        self._kafka = brokers[0]
        return [broker.server(logs / f"{broker.name}.log") for broker in brokers]

    def down(self) -> None:
        """End every process that this stack has started; a second Ctrl-C does not cut it short."""
        if self._lock is None:
            return
        withdraw(self.home)
        is_main = threading.current_thread() is threading.main_thread()
        before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM) if is_main}
        try:
            try:
                self.guests.close()
            finally:
                self.supervisor.stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        self._pid_file.unlink(missing_ok=True)
        self._lock.close()
        self._lock = None

    def pids(self) -> dict[str, int]:
        """{server: the id of its process}, of those that are up."""
        return self.supervisor.pids()

    def peak_memory(self) -> dict[str, int]:
        """{server: the most bytes that its processes held together}."""
        return self.supervisor.peak_memory()

    @property
    def ledger_url(self) -> str:
        """The libpq URL of the ledger's database."""
        return self._postgres.url()

    def database_url(self, database: str) -> str:
        """The libpq URL of a database of the same server."""
        return self._postgres.url(database)

    @property
    def kafka(self) -> dict[str, str]:
        """Kafka's client properties."""
        return self._kafka.properties

    @property
    def spark(self) -> str:
        """The Spark Connect URL."""
        return self._connect.url

    @property
    def spark_master(self) -> tuple[str, dict[str, str]]:
        """The standalone master's URL, and the settings that a driver needs there."""
        return self._standalone.url, self._standalone.conf

    @property
    def airflow_url(self) -> str:
        """Where Airflow's UI and API are."""
        return self._airflow.url

    def _claim(self) -> None:
        """Make this process the one that runs the servers of `home`; the kernel lets go of the claim when it ends."""
        lock = (self.home / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            process = running(self.home)
            who = f" (process {process.pid})" if process else ""
            raise StackError(f"the servers of {self.home} run already{who}; end them with `make down`") from None
        self._lock = lock
        # Those of a stack that was killed; its ports may be others' by now.
        withdraw(self.home)
        self._pid_file.write_text(json.dumps([os.getpid(), psutil.Process().create_time()]))

    def _addresses(self) -> Addresses:
        return Addresses(
            self.ledger_url if "postgres" in self.servers else None,
            self.kafka if "kafka" in self.servers else None,
            self.spark if "connect" in self.servers else None,
            self.airflow_url if "airflow" in self.servers else None,
        )

    def _connections(self) -> dict[str, str]:
        """Airflow's connections to the other servers, as its environment carries them."""
        connections = {
            "RATCHET_LEDGER": {
                "conn_type": "postgres",
                "host": HOST,
                "port": self._postgres.advertised,
                "login": "ratchet_owner",
                "password": self._postgres.password_file.read_text(),
                "schema": "ratchet",
            },
            "RATCHET_SPARK_SUBMIT": {"conn_type": "spark", "host": "local[2]", "extra": {"conf": BRIEF_DRIVER}},
        }
        if "kafka" in self.servers:
            connections["RATCHET_KAFKA"] = {"conn_type": "kafka", "extra": self.kafka}
        if "connect" in self.servers:
            at = {"host": f"sc://{HOST}", "port": self._connect_at}
            connections["RATCHET_SPARK"] = {"conn_type": "spark_connect", **at}
        if "standalone" in self.servers:
            url, conf = self.spark_master
            extra = {"deploy-mode": "client", "conf": conf}
            connections["RATCHET_SPARK_STANDALONE"] = {"conn_type": "spark", "host": url, "extra": extra}
        jars = ",".join(map(str, prerequisites.jars(CHECKOUT, "spark")))
        named = {f"AIRFLOW_CONN_{name}": json.dumps(said) for name, said in connections.items()}
        return {**named, "RATCHET_SPARK_JARS": jars}

    def _say(self, line: str) -> None:
        with (self.home / "supervisor.log").open("a") as log:
            log.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n")
        self._to_user(line)


def down(home: Path) -> str:
    """End the stack whose state is below `home`, from another process; returns a line for the user."""
    process = running(home)
    if process is None:
        return "nothing runs"
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except psutil.TimeoutExpired:
        end([process, *process.children(recursive=True)], signal.SIGTERM, 5)
    return f"ended (process {process.pid} and all it had started)"
