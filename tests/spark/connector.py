"""Debezium's own connectors, in a worker of Kafka Connect, as a process that can be killed."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psycopg

from ratchet.dev.stack import CHECKOUT, Stack
from ratchet.dev.stack.ports import HOST
from ratchet.dev.stack.prerequisites import java
from ratchet.dev.stack.server import Server
from ratchet.values.endpoint import Endpoint
from tests.until import until

JARS = CHECKOUT / ".jars" / "connect"


class Connector:
    """A standalone worker that publishes the changes of tables to topics `PREFIX.SCHEMA.TABLE`, by `source`."""

    def __init__(self, home: Path, kafka: dict[str, str], source: dict[str, str], prefix: str, **settings: str):
        self._home, self._prefix = home, prefix
        self._port = _free_port()
        self._url = f"http://{HOST}:{self._port}/connectors/{prefix}/status"
        home.mkdir(parents=True)
        worker = {
            "bootstrap.servers": kafka["bootstrap.servers"],
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": str(home / "offsets"),
            "offset.flush.interval.ms": "200",
            "listeners": f"http://{HOST}:{self._port}",
        }
        connector = {
            "name": prefix,
            "topic.prefix": prefix,
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
            **source,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        files = [_written(home / "worker.properties", worker), _written(home / "connector.properties", connector)]
        command = [str(java()), "-Xmx512m", "-cp", f"{JARS}/*", "org.apache.kafka.connect.cli.ConnectStandalone"]
        self._server = Server("connect", [*command, *map(str, files)], home / "connect.log", self.is_running)

    def start(self) -> None:
        self._server.start()
        until("the connector runs", self._has_come_up, 180)

    def kill(self) -> None:
        """End the worker at once, whatever it is doing."""
        for process in self._server.family():
            process.kill()
            process.wait(30)

    def is_running(self) -> bool:
        try:
            with urlopen(self._url, timeout=5) as answer:
                status = json.load(answer)
        except (URLError, OSError):
            return False
        return bool(status["tasks"]) and all(task["state"] == "RUNNING" for task in status["tasks"])

    def _has_come_up(self) -> bool:
        assert not self._server.ended, self._server.last_lines(40)
        return self.is_running()


def of_postgres(database: str, name: str) -> dict[str, str]:
    """The settings of a connector for the database of a URL."""
    of = psycopg.conninfo.conninfo_to_dict(database)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": HOST,
        "database.port": str(of["port"]),
        "database.user": str(of["user"]),
        "database.password": str(of["password"]),
        "database.dbname": str(of["dbname"]),
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": name,
        "schema.include.list": "public",
    }


def of_mysql(port: int, password: str, database: str, kafka: dict[str, str]) -> dict[str, str]:
    """The settings of a connector for a server of MySQL, or of MariaDB, and its user `debezium`."""
    servers = kafka["bootstrap.servers"]
    return {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.hostname": HOST,
        "database.port": str(port),
        "database.user": "debezium",
        "database.password": password,
        "database.server.id": "5701",
        "database.include.list": database,
        "schema.history.internal.kafka.bootstrap.servers": servers,
        "schema.history.internal.kafka.topic": f"history-{database}",
    }


def in_avro(registry: Endpoint) -> dict[str, str]:
    """The settings by which values and keys are written in Avro, with the ids of this registry in front."""
    said = {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        ".apicurio.registry.url": registry.url.replace("/apis/ccompat/v7", "/apis/registry/v2"),
        ".apicurio.registry.auto-register": "true",
        ".apicurio.registry.find-latest": "true",
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.headers.enabled": "false",
        ".apicurio.registry.use-id": "contentId",
    }
    return {f"{part}.converter{name}": value for part in ("key", "value") for name, value in said.items()}


def logical(stack: Stack) -> None:
    """Have the stack's PostgreSQL write a log that can be decoded; it is restarted."""
    with psycopg.connect(stack.ledger_url, autocommit=True) as conn:
        if conn.execute("show wal_level").fetchone() == ("logical",):
            return
        conn.execute("alter system set wal_level = 'logical'")
    import os
    import signal

    os.kill(stack.pids()["postgres"], signal.SIGINT)
    until("PostgreSQL writes a logical log", lambda: _level(stack) == "logical", 90)


def _level(stack: Stack) -> str | None:
    try:
        with psycopg.connect(stack.ledger_url, connect_timeout=2) as conn:
            found = conn.execute("show wal_level").fetchone()
    except psycopg.OperationalError:
        return None
    return found[0] if found else None


def _written(file: Path, properties: dict[str, str]) -> Path:
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return file


def _free_port() -> int:
    with socket.socket() as held:
        held.bind((HOST, 0))
        return held.getsockname()[1]
