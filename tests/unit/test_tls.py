"""TLS settings of the ledger's connection reach libpq in every client, unchanged.

A listener that agrees to TLS and then says nothing is enough: libpq looks at its own files first, and its complaint
names the one that it was told of. A server that speaks TLS is in tests/spark/test_tls.py.
"""

from __future__ import annotations

import asyncio
import json
import socketserver
import subprocess
import threading
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from airflow.sdk import Connection

from ratchet import Append
from ratchet.airflow.connections import _libpq_url
from ratchet.airflow.waiting import Waiting
from ratchet.cli import app, main
from ratchet.errors import LedgerUnreachable
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import OffsetRange, SliceToken, Tag
from ratchet.sinks.writer import Into, Writer

_SSL_REQUEST = bytes.fromhex("0000000804d2162f")


class _Agrees(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while request := self.request.recv(8):
            # Encryption by Kerberos may be asked for first.
            self.request.sendall(b"S" if request == _SSL_REQUEST else b"N")
            if request == _SSL_REQUEST:
                return


@pytest.fixture(scope="module")
def port():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Agrees) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


ROWS = Append("rows", columns="a bigint")


def by_ledger(url: str) -> str:
    with pytest.raises(LedgerUnreachable) as raised, Ledger(url) as ledger, ledger.begin():
        pass
    return str(raised.value)


def by_writer(url: str) -> str:
    token = SliceToken("p", 1, 1, 0, 1)
    with (
        pytest.raises(LedgerUnreachable) as raised,
        Writer(
            Into(url, token, (OffsetRange("t", 0, 0, 1),), {"rows": ("public", "rows")}, 1), Tag(0, 0), (ROWS,)
        ) as writer,
    ):
        writer.write(ROWS, pa.table({"a": [1], "_partition": [0], "_offset": [0], "_n": [0]}))
        writer.finish()
    return str(raised.value)


def by_trigger(url: str) -> str:
    async def ledger() -> str:
        return url

    with pytest.raises(psycopg.OperationalError) as raised:
        asyncio.run(Waiting(ledger).attend())
    return str(raised.value)


def by_command(url: str, monkeypatch, capsys) -> str:
    monkeypatch.setenv("RATCHET_LEDGER_URL", url)
    with pytest.raises(SystemExit):
        main(lambda: app(["migrate"], standalone_mode=False))
    return capsys.readouterr().err


@pytest.fixture(params=["ledger", "writer", "trigger", "command"])
def complaint(request, monkeypatch, capsys):
    """What a client says of a URL, each client in turn."""
    if request.param == "command":
        return lambda url: by_command(url, monkeypatch, capsys)
    return {"ledger": by_ledger, "writer": by_writer, "trigger": by_trigger}[request.param]


@pytest.fixture
def files(tmp_path):
    """A directory whose name must be quoted in a URL, with a certificate and a key that anybody may read."""
    made = tmp_path / "a b&c%20d"
    made.mkdir()
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=client", "-days", "1"]
    subprocess.run([*command, "-keyout", "key", "-out", "crt"], cwd=made, check=True, capture_output=True)
    (made / "key").chmod(0o644)
    (made / "broken").write_text("no certificate")
    return made


@pytest.mark.parametrize(
    ("extra", "named", "said"),
    [
        ({"sslmode": "verify-full", "sslrootcert": "missing"}, "sslrootcert", "does not exist"),
        ({"sslmode": "verify-ca", "sslrootcert": "broken"}, "sslrootcert", "could not read root certificate file"),
        ({"sslmode": "require", "sslcert": "broken"}, "sslcert", "could not read certificate file"),
        ({"sslmode": "require", "sslcert": "crt", "sslkey": "key"}, "sslkey", "has group or world access"),
    ],
)
def test_what_the_connections_extra_says_of_tls_reaches_libpq(port, files, complaint, extra, named, said):
    paths = {name: value if name == "sslmode" else str(files / value) for name, value in extra.items()}
    connection = Connection(
        conn_id="ratchet_ledger",
        conn_type="postgres",
        host="127.0.0.1",
        port=port,
        login="who",
        password="p@ss",
        schema="ratchet",
        extra=json.dumps({**paths, "not_of_libpq": 1}),
    )
    url = _libpq_url(connection)
    assert urlsplit(url).port == port
    told = complaint(url)
    assert f'"{paths[named]}"' in told and said in told
    assert "p@ss" not in told and "p%40ss" not in told
