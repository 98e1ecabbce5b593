"""A proxy between a test and an object store that loses a request, or its answer, where the test wants it."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

DEADLINE = 60
"""Seconds after which a thread goes on though the test has not said so, so that a failing test ends."""


class Loss(StrEnum):
    """What becomes of a request."""

    BEFORE = "the connection is closed before the store has the request"
    CLOSED = "the store has done it, and the connection is closed in place of an answer"
    RESET = "the store has done it, and the connection is reset in place of an answer"
    UNAVAILABLE = "the store has done it, and something before it answers 503"
    SILENT = "the store has done it, and no answer comes"
    HELD = "the connection is reset, and the store gets the request when the test releases it"
    FORBIDDEN = "the store does not have it, and something before it answers 403"
    FULL = "the store does not have it, and something before it answers 507"


@dataclass
class Plan:
    """Which requests meet their loss, and what has come of it."""

    how: Loss
    method: str
    path: str
    times: int
    met: list[str] = field(default_factory=list)
    """The requests that met it."""
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    """Set when the store has answered a request that was held."""


class Between:
    """Listens on a free port of the loopback; a context manager. After `lose` so many requests meet their loss."""

    def __init__(self, endpoint: str):
        self._to = urlsplit(endpoint)
        self._plan: Plan | None = None
        self._lock = threading.Lock()
        self.forgets: Callable[[str], object] | None = None
        """Called with the path of an object that is put only if it is not there: so a store seems that does not ask."""
        self.seen: list[tuple[str, str, int]] = []
        """(method, path, the status that the store gave) of each request that it has got."""
        self._server = _Quiet(("127.0.0.1", 0), type("Handler", (_Handler,), {"between": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Between:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._plan:
            self._plan.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def lose(self, how: Loss, path: str, method: str = "PUT", times: int = 1) -> Plan:
        """Lose the next requests of this method whose path has this expression."""
        with self._lock:
            self._plan = Plan(how, method, path, times)
            return self._plan

    def planned(self, method: str, path: str) -> Plan | None:
        """The plan that a request meets."""
        with self._lock:
            plan = self._plan
            if plan is None or len(plan.met) == plan.times or plan.method != method or not re.search(plan.path, path):
                return None
            plan.met.append(path)
            plan.reached.set()
            return plan

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """What the store answers."""
        assert self._to.hostname
        conn = http.client.HTTPConnection(self._to.hostname, self._to.port, timeout=DEADLINE)
        try:
            if self.forgets and any(name.lower() == "if-none-match" for name in headers):
                self.forgets(path)
            conn.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                conn.putheader(name, value)
            conn.endheaders(body)
            answer = conn.getresponse()
            said = answer.status, dict(answer.getheaders()), answer.read()
        finally:
            conn.close()
        self.seen.append((method, path, said[0]))
        return said


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that are lost are what it is for."""


class _Handler(BaseHTTPRequestHandler):
    between: Between
    protocol_version = "HTTP/1.1"

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        given = self.command, self.path, dict(self.headers.items()), body
        plan = self.between.planned(self.command, self.path)
        if plan is None:
            self._answer(*self.between.forward(*given))
            return
        if plan.how in (Loss.CLOSED, Loss.RESET, Loss.UNAVAILABLE, Loss.SILENT):
            self.between.forward(*given)
        match plan.how:
            case Loss.UNAVAILABLE:
                self._answer(503, {}, b"<Error><Code>ServiceUnavailable</Code></Error>")
            case Loss.FORBIDDEN:
                self._answer(403, {}, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
            case Loss.FULL:
                self._answer(507, {}, b"<Error><Code>StorageFull</Code><Message>The store is full</Message></Error>")
            case Loss.SILENT:
                plan.go_on.wait(DEADLINE)
                self.close_connection = True
            case Loss.HELD:
                self._reset()
                plan.go_on.wait(DEADLINE)
                self.between.forward(*given)
                plan.done.set()
            case Loss.RESET:
                self._reset()
            case Loss.BEFORE | Loss.CLOSED:
                self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        # What HEAD is told of is the length of what it is not sent.
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # The files that the handler reads and writes hold it open too.
        self.rfile.close()
        self.wfile.close()
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
