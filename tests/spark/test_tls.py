"""A PostgreSQL that takes nothing but TLS: every client reaches it with its root certificate, none with another.

The embedded PostgreSQL is built without TLS, so this needs the system's, and runs only in `make test-all`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest
import yaml

from ratchet.airflow.waiting import Awaited, Waiting
from ratchet.dev.stack import CHECKOUT
from ratchet.dev.stack.ports import HOST, Ports
from ratchet.dev.stack.postgres import _as_somebody
from ratchet.dev.stack.server import Server
from ratchet.dev.stack.supervisor import Supervisor
from ratchet.errors import LedgerUnreachable, RatchetError
from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate
from ratchet.operate.roles import grant
from ratchet.protocol.commit import Committed, commit
from ratchet.source.kafka import Kafka
from ratchet.spark.engine import connect_session
from ratchet.spark.slice import run_slice
from tests.ledger.staging import SPEC, Log, prepare, start

from .rig import SINK, Rig, content, numbered, spec_of

pytestmark = pytest.mark.all

PASSWORD = "a:b@c%d"


def binaries() -> Path:
    """The newest PostgreSQL of the system."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3]))
    if not found:
        pytest.fail("this needs a PostgreSQL with TLS: apt-get install postgresql")
    return found[-1].parent


def openssl(where: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=where, check=True, capture_output=True)


def authority(where: Path, name: str) -> None:
    """A certificate authority: `name`.crt and `name`.key."""
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    openssl(where, "req", *made, "-keyout", f"{name}.key", "-out", f"{name}.crt")


def certificate(where: Path, name: str, common_name: str, names: str) -> None:
    """A certificate that the authority `root` has signed."""
    openssl(where, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={common_name}", *("-keyout", f"{name}.key"),
            "-out", f"{name}.csr")  # fmt: skip
    (where / f"{name}.ext").write_text(f"subjectAltName={names}\n")
    openssl(where, "x509", "-req", "-in", f"{name}.csr", "-CA", "root.crt", "-CAkey", "root.key", "-CAcreateserial",
            "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.crt")  # fmt: skip


@dataclass
class Secured:
    """The server, and the directory of the certificates."""

    port: int
    files: Path

    def url(self, database: str = "tls", user: str = "owner", **extra: str) -> str:
        """`extra` are libpq's parameters; a certificate or key is named by its file."""
        said = {n: v if n == "sslmode" else str(self.files / v) for n, v in extra.items()}
        parameters = "&".join(f"{name}={quote(value, safe='')}" for name, value in said.items())
        return f"postgresql://{user}:{quote(PASSWORD, safe='')}@{HOST}:{self.port}/{database}?{parameters}"

    @property
    def good(self) -> str:
        return self.url(sslmode="verify-full", sslrootcert="root.crt")

    @property
    def bad(self) -> str:
        return self.url(sslmode="verify-full", sslrootcert="other.crt")


@pytest.fixture(scope="module")
def server(scratch: Path) -> Iterator[Secured]:
    """Set up with the SQL of the compose file; `owner` comes by password, `robot` by certificate."""
    home = scratch / "tls"
    home.mkdir()
    for name in ("root", "other"):
        authority(home, name)
    certificate(home, "server", "server", f"IP:{HOST}")
    certificate(home, "robot", "robot", "DNS:robot")
    (home / "password").write_text(PASSWORD)
    bin, data, sudo = binaries(), home / "data", _as_somebody(home)
    make = [*sudo, str(bin / "initdb"), "-D", str(data), "-U", "owner", "-A", "scram-sha-256", "-E", "UTF8"]
    subprocess.run([*make, "--pwfile", str(home / "password")], check=True, capture_output=True)
    (data / "pg_hba.conf").write_text("hostssl all robot all cert\nhostssl all all all scram-sha-256\n")
    port = Ports(home / "ports.json", lambda line: None).get("postgres")
    made = Secured(port, home)
    settings = {
        "listen_addresses": HOST,
        "port": port,
        "unix_socket_directories": "",
        "ssl": "on",
        "ssl_cert_file": home / "server.crt",
        "ssl_key_file": home / "server.key",
        "ssl_ca_file": home / "root.crt",
    }
    command = [*sudo, str(bin / "postgres"), "-D", str(data), *(f"--{n}={v}" for n, v in settings.items())]
    supervisor = Supervisor(home / "processes.json", lambda line: None)
    try:
        supervisor.start(
            [
                Server(
                    "postgres", command, home / "log", lambda: answers(made.url("postgres")), stop_signal=signal.SIGINT
                )
            ]
        )
        with psycopg.connect(made.url("postgres"), autocommit=True) as conn:
            conn.execute("create database tls")
            conn.execute("create role robot login superuser")
        yield made
    finally:
        supervisor.stop()


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture
def rig(server, spark_connect, kafka_properties) -> Iterator[Rig]:
    """Spark, Kafka and the ledger on the server, by a URL that checks its certificate and its name."""
    with (
        connect_session(spark_connect.spark, "tls", uuid4().hex) as session,
        Kafka(kafka_properties) as client,
        Ledger(server.good) as ledger,
    ):
        yield Rig(session, ledger, kafka_properties, client)


def test_the_ledger_sparks_workers_and_the_trigger_reach_it_and_refuse_another_root(rig, server):
    topic = rig.topic()
    rig.send(topic, *numbered(range(50)))
    spec = spec_of(topic)
    (work,) = rig.begin(spec)
    # Spark's workers
    with pytest.raises(RatchetError, match="certificate verify failed"):
        run_slice(rig.spark, spec, work, server.bad, rig.servers)
    assert rig.written(work, SINK) == []
    rig.check(spec, work, rig.run(spec, work))
    assert content(rig.written(work, SINK)) == Counter((0, value, value) for value in range(50))

    # The trigger
    async def url(which: str) -> str:
        return which

    awaited = Awaited(spec.name, rig.claim.txid, 0, rig.claim.number, 60)
    said = asyncio.run(Waiting(partial(url, server.good)).wait(awaited))
    assert said == {"why": "transaction 1 has its turn", "held": True}
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        asyncio.run(Waiting(partial(url, server.bad)).attend())
    # The ledger
    assert isinstance(commit(rig.ledger, spec, rig.claim), Committed)
    with pytest.raises(LedgerUnreachable, match="certificate verify failed"), Ledger(server.bad) as ledger:
        commit(ledger, spec, rig.claim)


def migrate_command(url: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "RATCHET_LEDGER_URL": url}
    return subprocess.run([sys.executable, "-m", "ratchet", "migrate"], env=env, capture_output=True, text=True)


def test_the_command_reaches_it_and_refuses_another_root(server):
    done = migrate_command(server.good)
    assert (done.returncode, "ledger: up to date" in done.stdout) == (0, True), done.stderr
    refused = migrate_command(server.bad)
    assert refused.returncode == 1 and "certificate verify failed" in refused.stderr


def test_a_client_certificate_takes_the_place_of_a_password(server):
    root = {"sslmode": "verify-full", "sslrootcert": "root.crt"}
    with Ledger(server.url(user="robot", sslcert="robot.crt", sslkey="robot.key", **root)) as ledger:
        with ledger.begin() as conn:
            row = conn.exec_driver_sql("select current_user, ssl from pg_stat_ssl where pid = pg_backend_pid()").one()
    assert row == ("robot", True)
    with pytest.raises(LedgerUnreachable, match="connection requires a valid client certificate"):
        with Ledger(server.url(user="robot", **root)) as ledger, ledger.begin():
            pass


def test_a_name_that_the_certificate_does_not_have_and_a_connection_in_the_clear_are_refused(server):
    with pytest.raises(psycopg.OperationalError, match='does not match host name "localhost"'):
        psycopg.connect(server.good.replace(HOST, "localhost"))
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(server.url(sslmode="disable"))


def test_the_compose_files_sql_makes_roles_that_reach_their_own_database_only(server):
    compose = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())
    (server.files / "roles.sql").write_text(compose["configs"]["roles"]["content"])
    names = ("RATCHET_OWNER", "RATCHET_PIPELINE", "RATCHET_READER", "AIRFLOW_DB")
    env = {**os.environ, **{f"{name}_PASSWORD": PASSWORD for name in names}}
    psql = [str(binaries() / "psql"), "-X", server.url("postgres"), "-f", str(server.files / "roles.sql")]
    subprocess.run(psql, env=env, check=True, capture_output=True)
    roles = ("ratchet_owner", "ratchet_pipeline", "ratchet_reader", "airflow")
    reached = {(role, db) for role in roles for db in ("ratchet", "airflow") if answers(server.url(db, role))}
    assert reached == {(role, "ratchet") for role in roles[:3]} | {("airflow", "airflow")}
    migrate(server.url("ratchet", "ratchet_owner"), [SPEC])
    with Ledger(server.url("ratchet", "ratchet_owner")) as ledger, ledger.begin() as conn:
        grant(conn, [SPEC], "ratchet_pipeline", "ratchet_reader")
    with Ledger(server.url("ratchet", "ratchet_pipeline")) as ledger:
        begun = start(ledger, SPEC, Log(), "run")
        prepare(ledger, SPEC, begun)
        assert isinstance(commit(ledger, SPEC, begun.claim), Committed)
