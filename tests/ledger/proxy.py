"""A proxy between a test and PostgreSQL that loses the connection where the test wants it, by what the messages say."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from select import select

from sqlalchemy import make_url

HOST = "127.0.0.1"
DEADLINE = 60
"""Seconds after which the proxy goes on though the test has not said so, so that a failing test ends."""
_ENCRYPTED = (80877103, 80877104)
"""The codes by which a client asks for TLS or GSSAPI before it says who it is; the server answers with one byte."""
_ROUND = (b"Q", b"S")
"""The messages that ask for an answer: a simple query, and the end of an extended one."""


class Loss(StrEnum):
    """How a connection is lost at a message."""

    BEFORE = "before the server has the message"
    UNANSWERED = "after the server has done it, before any of its answer"
    HELD = "the client has lost it, the server gets the message when the test releases it"
    SILENT_BEFORE = "the message is swallowed, and nothing more comes until the test cuts"
    SILENT_AFTER = "the server has done it, its answer is swallowed, and nothing more comes until the test cuts"


@dataclass
class Plan:
    """Where the connection is lost, and what has come of it."""

    how: Loss
    at: Callable[[int, bytes], bool]
    """(number of the message since the plan was made, its text) → whether this is the one; asked once a round."""
    answer_bytes: int = 0
    """How much of the server's answer still reaches the client, where the server has answered."""
    seen: list[bytes] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    """Set by the test: release what is held, or cut what is silent."""

    @property
    def commits(self) -> int:
        """How many of the messages seen were COMMIT."""
        return sum(map(is_commit, self.seen))


def is_commit(text: bytes) -> bool:
    """Whether a message ends a database transaction for good."""
    return re.match(rb"\s*commit\b", text, re.IGNORECASE) is not None


class Proxy:
    """Listens on a free port of the loopback; `url` is the database's URL by way of it.

    A context manager. After `lose`, one message meets its loss; every other one, before and after, passes.
    """

    def __init__(self, url: str):
        to = make_url(url)
        self._server = (to.host or HOST, to.port or 5432)
        self._listening = socket.create_server((HOST, 0))
        port = self._listening.getsockname()[1]
        self.url = to.set(host=HOST, port=port).render_as_string(hide_password=False)
        self._plan = Plan(Loss.BEFORE, lambda number, text: False)
        self._refusing = False
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._start(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._plan.go_on.set()
        # A thread that waits in accept would not notice a close.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(DEADLINE)

    def lose(self, how: Loss, at: Callable[[int, bytes], bool], answer_bytes: int = 0) -> Plan:
        """Lose the connection at the next message for which `at` is true, once."""
        with self._lock:
            self._plan = Plan(how, at, answer_bytes)
            return self._plan

    def lose_commit(self, number: int, how: Loss, answer_bytes: int = 0) -> Plan:
        """Lose the connection at the COMMIT of this number, counted from 1."""
        counted = iter(range(1, 1_000_000))
        return self.lose(how, lambda _, text: is_commit(text) and next(counted) == number, answer_bytes)

    def refuse(self, whether: bool) -> None:
        """Close every new connection at once, as a server that is down does; or no longer."""
        self._refusing = whether

    def _start(self, target: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=target, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
            else:
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            messages, text = _Messages(), b""
            while True:
                ready, _, _ = select([client, server], [], [])
                if server in ready:
                    answer = server.recv(65536)
                    if not _passed_on(client, answer):
                        return
                if client in ready:
                    said = client.recv(65536)
                    if not said:
                        return
                    for kind, message in messages.read(said):
                        text = _text(kind, message) or text
                        if kind in _ROUND and (plan := self._lost_at(text)):
                            _lose(plan, client, server, message)
                            return
                        server.sendall(message)

    def _lost_at(self, text: bytes) -> Plan | None:
        with self._lock:
            plan = self._plan
            if plan.reached.is_set():
                return None
            plan.seen.append(text)
            if not plan.at(len(plan.seen), text):
                return None
            plan.reached.set()
            return plan


def _text(kind: bytes, message: bytes) -> bytes:
    """The statement in a message, if it has one; a statement that was prepared before is not said again."""
    if kind == b"Q":
        return message[5:-1]
    return message[5:].split(b"\0")[1] if kind == b"P" else b""


def _passed_on(client: socket.socket, answer: bytes) -> bool:
    try:
        client.sendall(answer)
    except OSError:
        return False
    return bool(answer)


def _lose(plan: Plan, client: socket.socket, server: socket.socket, message: bytes) -> None:
    """Lose the connection; whoever called closes what is still open."""
    match plan.how:
        case Loss.BEFORE:
            return
        case Loss.UNANSWERED:
            server.sendall(message)
            answer = _answer(server)
            client.sendall(answer[: plan.answer_bytes])
        case Loss.HELD:
            client.close()
            plan.go_on.wait(DEADLINE)
            server.sendall(message)
            _answer(server)
        case Loss.SILENT_BEFORE:
            plan.go_on.wait(DEADLINE)
        case Loss.SILENT_AFTER:
            server.sendall(message)
            _answer(server)
            plan.go_on.wait(DEADLINE)


def _answer(server: socket.socket) -> bytes:
    """All that the server says until it is ready for the next query."""
    said, at = b"", 0
    while True:
        while len(said) >= at + 5:
            kind, length = said[at : at + 1], struct.unpack_from("!i", said, at + 1)[0]
            if len(said) < at + 1 + length:
                break
            at += 1 + length
            if kind == b"Z":
                return said[:at]
        more = server.recv(65536)
        assert more, f"PostgreSQL has closed the connection after {said!r}"
        said += more


class _Messages:
    """What a client says, cut into messages: (kind, all bytes); the first ones have no kind."""

    def __init__(self) -> None:
        self._buffer, self._started = b"", False

    def read(self, said: bytes) -> list[tuple[bytes, bytes]]:
        self._buffer += said
        found = []
        while message := self._next():
            found.append(message)
        return found

    def _next(self) -> tuple[bytes, bytes] | None:
        head = 1 if self._started else 0
        if len(self._buffer) < (5 if self._started else 8):
            return None
        length = head + struct.unpack_from("!i", self._buffer, head)[0]
        if len(self._buffer) < length:
            return None
        message, self._buffer = self._buffer[:length], self._buffer[length:]
        if self._started:
            return message[:1], message
        self._started = struct.unpack_from("!i", message, 4)[0] not in _ENCRYPTED
        return b"", message
