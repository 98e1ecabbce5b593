"""Spark Connect behind TLS, by a token, with the certificate, nginx's settings and the connection of the compose file.

It needs Debian's nginx, and runs only in `make test-all`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from ratchet.dev.stack import CHECKOUT, prerequisites
from ratchet.dev.stack.connect import SparkConnect
from ratchet.dev.stack.ports import HOST, Ports
from ratchet.dev.stack.server import Server
from ratchet.dev.stack.supervisor import Supervisor

pytestmark = pytest.mark.all

TOKEN = "a1-" + "b" * 61
COMPOSE = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())
ASKS = """
import pandas
from ratchet.airflow.connections import spark_target
from ratchet.errors import EngineUnreachable
from ratchet.spark.engine import connect_session

target = spark_target("ratchet_spark")
print(target.in_clear)
try:
    with connect_session(target.url, "p", "code") as spark:
        # More than gRPC or a proxy would take by default in one message, and in one request.
        sent = spark.createDataFrame(pandas.DataFrame({"a": ["x" * 1000] * 20_000}))
        print(sent.selectExpr("sum(length(a)) as n").collect()[0].n)
except EngineUnreachable as error:
    print(error)
"""
"""What a process task does with its connection: whether it would warn, then how much has arrived, or what it says."""


@pytest.fixture(scope="module")
def behind_tls(scratch: Path) -> Iterator[tuple[int, Path]]:
    """(nginx's port, the certificate), with a Connect server behind it that wants a token."""
    home = scratch / "connect-tls"
    for name in ("certificate", "spark"):
        (home / name).mkdir(parents=True)
    ports = Ports(home / "ports.json", lambda line: None)
    front, back = ports.get("tls"), ports.get("connect")

    def here(said: str) -> str:
        said = said.replace("/opt/certificate", f"{home}/certificate").replace("/opt/spark", f"{home}/spark")
        said = (
            said.replace("15002", f"{HOST}:{front}").replace("15003", str(back)).replace("/tmp/nginx", f"{home}/nginx")
        )
        return said.replace("/tmp/nginx", f"{home}/nginx").replace("DNS:spark", f"DNS:spark,IP:{HOST}")

    made = COMPOSE["services"]["spark"]["command"][-1].partition("nginx -c")[0].replace("$$", "$")
    subprocess.run(["bash", "-ec", here(made)], check=True, capture_output=True)
    (home / "tls.conf").write_text(here(COMPOSE["configs"]["tls"]["content"]))
    env = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN}
    spark = SparkConnect(home, back, prerequisites.java(), prerequisites.jars(CHECKOUT, "spark"), env)
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or pytest.fail(
        "apt-get install nginx-light"
    )
    nginx = [program, "-c", str(home / "tls.conf"), "-g", "daemon off;"]
    supervisor = Supervisor(home / "processes.json", lambda line: None)
    try:
        supervisor.start(
            [spark.server(home / "log"), Server("nginx", nginx, home / "nginx.log", lambda: listens(front))]
        )
        yield front, home / "certificate" / "spark.crt"
    finally:
        supervisor.stop()


def listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def ask(behind_tls) -> Callable[..., list[str]]:
    """What a client says that has the compose file's connection with this password and root certificate."""

    def asks(token: str | None = TOKEN, root: Path | None = behind_tls[1], **extra: str) -> list[str]:
        said = COMPOSE["x-airflow"]["environment"]["AIRFLOW_CONN_RATCHET_SPARK"]
        said = json.loads(re.sub(r"\$\{SPARK_TOKEN[^}]*\}", token or "", said))
        said |= {"host": f"sc://{HOST}", "port": behind_tls[0], "extra": said["extra"] | extra}
        env = {**os.environ, "AIRFLOW_CONN_RATCHET_SPARK": json.dumps(said)}
        env |= {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(root)} if root else {}
        run = subprocess.run([sys.executable, "-c", ASKS], env=env, cwd=CHECKOUT, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return [line for line in run.stdout.splitlines() if "\x1b" not in line]

    return asks


def test_the_connection_of_the_compose_file_reaches_it_and_is_no_reason_to_warn(ask):
    assert ask()[-2:] == ["None", str(20_000_000)]


def test_who_has_another_token_is_told_that_it_is_refused(ask):
    said = ask(token="another")[-1]
    assert "Invalid authentication token; check that the server runs, and takes the connection's password" in said
    assert "another" not in said


def test_who_does_not_know_its_certificate_or_speaks_without_tls_does_not_get_through(ask):
    assert "certificate" in ask(root=None)[-1].lower()
    assert "no session of Spark Connect" in ask(token=None, use_ssl="false")[-1]
