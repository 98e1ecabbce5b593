"""Apicurio's registry on this machine, which answers over Confluent's interface; fetched by `make test-all`."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any, Self

import requests

from ratchet.dev.stack import CHECKOUT
from ratchet.dev.stack.ports import HOST, Ports
from ratchet.dev.stack.prerequisites import java
from ratchet.dev.stack.server import Server, end
from ratchet.values.endpoint import Endpoint

RUNNER = CHECKOUT / ".jars" / "registry" / "apicurio-registry-app-2.6.13.Final-runner.jar"


class Apicurio:
    """A registry whose schemas outlast it, below `home`; a context manager. `settings` are Quarkus' own."""

    def __init__(self, home: Path, **settings: str):
        home.mkdir(parents=True, exist_ok=True)
        ports = Ports(home / "ports.json", print)
        self._port, management = ports.get("registry"), ports.get("management")
        given = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": self._port,
            "quarkus.management.host": HOST,
            "quarkus.management.port": management,
            "quarkus.datasource.jdbc.url": f"jdbc:h2:file:{home}/schemas",
            "quarkus.datasource.jdbc.initial-size": 1,
            "quarkus.datasource.jdbc.min-size": 1,
            **settings,
        }
        options = [f"-D{name}={value}" for name, value in given.items()]
        command = [str(java()), "-Xmx400m", *options, "-jar", str(RUNNER)]
        self._server = Server("registry", command, home / "registry.log", self._is_ready)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers as Confluent's does."""
        return Endpoint(f"http://{HOST}:{self._port}/apis/ccompat/v7")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._server.start()
        deadline = time.monotonic() + 150
        while not self._server.ready():
            assert not self._server.ended and time.monotonic() < deadline, self._server.last_lines()
            time.sleep(0.2)

    def kill(self) -> None:
        """End it as a crash would."""
        end(self._server.family(), signal.SIGKILL, patience=0)

    def register(self, subject: str, schema: object, kind: str = "AVRO", references: tuple[dict, ...] = ()) -> int:
        """The id under which a schema, JSON or the text of another kind, is known from now on."""
        sent = schema if isinstance(schema, str) else json.dumps(schema)
        said: dict[str, Any] = {"schema": sent, "schemaType": kind, "references": list(references)}
        answer = requests.post(f"{self.endpoint.url}/subjects/{subject}/versions", json=said, timeout=30)
        assert answer.ok, answer.text
        return int(answer.json()["id"])

    def keep_to(self, compatibility: str, subject: str) -> None:
        """Take only schemas of a subject that go with earlier ones, as `"FULL"`."""
        said = {"compatibility": compatibility}
        answer = requests.put(f"{self.endpoint.url}/config/{subject}", json=said, timeout=30)
        assert answer.ok, answer.text

    def _is_ready(self) -> bool:
        try:
            return requests.get(f"{self.endpoint.url}/subjects", timeout=2).ok
        except requests.RequestException:
            return False
