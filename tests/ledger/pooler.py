"""A PgBouncer in transaction mode before the ledger's database, which the test starts, kills and starts again."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from ratchet.dev.stack.ports import HOST, Ports
from ratchet.dev.stack.postgres import _as_somebody
from ratchet.dev.stack.server import Server, end
from tests.until import until

SETTINGS = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {home}/users
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
query_wait_timeout = 60
"""


class Pooler:
    """Gives `sessions` of PostgreSQL to all its clients; `url` is the database's URL by way of it.

    A context manager. What is not set here is as PgBouncer has it, or as stricter poolers do.
    """

    def __init__(self, home: Path, url: str, sessions: int):
        self._home, to = home, make_url(url)
        home.mkdir()
        port = Ports(home / "ports.json", lambda line: None).get("pooler")
        self.url = to.set(host=HOST, port=port).render_as_string(hide_password=False)
        (home / "users").write_text(f'"{to.username}" "{to.password}"\n')
        (home / "settings").write_text(
            SETTINGS.format(host=to.host, port=to.port, listen_port=port, home=home, sessions=sessions)
        )

    def __enter__(self) -> Pooler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        # It refuses to run as root.
        command = [*_as_somebody(self._home), binary(), str(self._home / "settings")]
        self._server = Server("pooler", command, self._home / "log", self._answers)
        self._server.start()
        until("the pooler answers", lambda: self._answers() or self._server.ended, 30)
        assert not self._server.ended, self._server.last_lines()

    def kill(self) -> None:
        """End it as a crash does."""
        end(self._server.family(), signal.SIGKILL, 5)

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=2) as conn:
                conn.execute("select")
        except psycopg.OperationalError:
            return False
        return True


def binary() -> str:
    """The system's PgBouncer."""
    found = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if found is None:
        pytest.fail("this needs a pooler: apt-get install pgbouncer")
    return found
