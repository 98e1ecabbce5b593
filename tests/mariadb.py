"""A server of MariaDB that writes a binary log by rows; it needs Debian's mariadb-server."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from ratchet.dev.stack.ports import HOST
from ratchet.dev.stack.server import Server
from tests.until import until

PASSWORD = "changes"


class MariaDB:
    """A server below `home`, with a user `debezium` who may follow its log; a context manager."""

    def __init__(self, home: Path):
        self._home = home
        self._socket = f"/tmp/{home.name}.sock"
        with socket.socket() as held:
            held.bind((HOST, 0))
            self.port: int = held.getsockname()[1]
        command = [
            shutil.which("mariadbd", path="/usr/sbin:/usr/bin") or "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={home / 'data'}",
            f"--socket={self._socket}",
            f"--port={self.port}",
            f"--bind-address={HOST}",
            "--log-bin=changes-bin",
            "--binlog-format=ROW",
            "--server-id=1",
            "--version=5.7.19-MariaDB-log",
        ]
        self._server = Server("mariadb", command, home / "mariadb.log", self._answers)

    def __enter__(self) -> Self:
        self._home.mkdir(parents=True)
        made = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={self._home / 'data'}"]
        how = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run([*made, *how], check=True, capture_output=True)
        self._server.start()
        until("MariaDB answers", self._has_come_up, 60)
        self.run("create user debezium@'%' identified by 'changes'; grant all on *.* to debezium@'%'")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._server.family():
            process.kill()
            process.wait(30)

    def run(self, statements: str, **numbers: float) -> list[list[str]]:
        """The rows that statements give, as texts; `numbers` are their variables, `@name`."""
        command = ["mariadb", "--no-defaults", f"--socket={self._socket}", "--batch", "--skip-column-names"]
        given = "".join(f"set @{name} = {number}; " for name, number in numbers.items())
        done = subprocess.run([*command, "-e", given + statements], check=True, capture_output=True, text=True)
        return [line.split("\t") for line in done.stdout.splitlines()]

    def _answers(self) -> bool:
        try:
            return self.run("select 1") == [["1"]]
        except subprocess.CalledProcessError:
            return False

    def _has_come_up(self) -> bool:
        assert not self._server.ended, self._server.last_lines(40)
        return self._answers()
