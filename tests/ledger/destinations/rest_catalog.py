"""Iceberg's own REST catalog on this machine, which keeps its tables in PostgreSQL; fetched by `make test-all`."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Self

import pyspark
import requests
from sqlalchemy import make_url

from ratchet.dev.stack import CHECKOUT
from ratchet.dev.stack.ports import HOST, Ports
from ratchet.dev.stack.prerequisites import java
from ratchet.dev.stack.server import Server, end

JARS = CHECKOUT / ".jars" / "iceberg"
_SERVER = "org.apache.iceberg.rest.RESTCatalogServer"


class RestCatalog:
    """A catalog whose tables are in this database, and their files below `home`; a context manager."""

    def __init__(self, home: Path, url: str):
        home.mkdir(parents=True, exist_ok=True)
        port, database = Ports(home / "ports.json", print).get("catalog"), make_url(url)
        # Hadoop has the local file system, and Spark has Hadoop.
        spark = Path(pyspark.__file__).parent / "jars"
        jars = [*JARS.glob("*.jar"), *spark.glob("hadoop-client-*.jar"), *spark.glob("log4j-*.jar")]
        command = [str(java()), "-Xmx400m", "-cp", ":".join(map(str, jars))]
        said = {
            "REST_PORT": str(port),
            "CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "URI": f"jdbc:postgresql://{database.host}:{database.port}/{database.database}",
            "JDBC_USER": database.username or "",
            "JDBC_PASSWORD": database.password or "",
            "JDBC_SCHEMA__VERSION": "V1",
            "WAREHOUSE": f"file://{home / 'warehouse'}",
        }
        env = {f"CATALOG_{name}": value for name, value in said.items()}
        self.properties = {"type": "rest", "uri": f"http://{HOST}:{port}"}
        self._server = Server("catalog", [*command, _SERVER], home / "catalog.log", self._is_ready, env)

    def __enter__(self) -> Self:
        self._server.start()
        deadline = time.monotonic() + 90
        while not self._server.ready():
            assert not self._server.ended and time.monotonic() < deadline, self._server.last_lines()
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        end(self._server.family(), signal.SIGKILL, patience=0)

    def _is_ready(self) -> bool:
        try:
            return requests.get(f"{self.properties['uri']}/v1/config", timeout=10).ok
        except requests.RequestException:
            return False
