"""Connections that are cut, silent, slow or torn: that they are so, and that this costs time and nothing else."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import psycopg
import pytest
from sqlalchemy import make_url

from ratchet.dev.stack import Stack
from ratchet.dev.stack.ports import HOST
from tests.until import until

from .callers import callers
from .conftest import Endure
from .kinds import ROUTES, fault
from .network import Network, Route, Trouble, Way

MINE = Route("mine", frozenset({"me"}), "echo")


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(lambda pid: "me" if pid == os.getpid() else "another") as made:
        yield made


@pytest.fixture
def port(network: Network) -> Iterator[int]:
    """Where a server answers, by way of a proxy, with what it is told."""
    listening = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                one, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(one,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield network.before("echo", listening.getsockname()[1])
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def echo(one: socket.socket) -> None:
    with one:
        try:
            while said := one.recv(65536):
                one.sendall(said)
        except OSError:
            return


def connect(port: int, patience: float = 10) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=patience)


def answer(one: socket.socket, said: bytes) -> bytes:
    """What the server says to it; less where the connection ends before."""
    threading.Thread(target=one.sendall, args=(said,), daemon=True).start()
    heard = b""
    while len(heard) < len(said) and (more := one.recv(65536)):
        heard += more
    return heard


def test_everything_passes_while_nothing_is_wrong(port):
    said = os.urandom(5_000_000)
    with connect(port) as one:
        assert answer(one, said) == said
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b""


def test_a_connection_is_that_of_the_process_that_opened_it_and_of_no_child_that_inherits_it():
    program = f"""
import os, socket, sys, time
one = socket.create_connection(("{HOST}", int(sys.argv[1])))
os.set_inheritable(one.fileno(), True)
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print(one.getsockname()[1], flush=True)
time.sleep(60)
"""
    with socket.create_server((HOST, 0)) as listening:
        to = listening.getsockname()[1]
        opener = subprocess.Popen([sys.executable, "-c", program, str(to)], stdout=subprocess.PIPE, text=True)
        try:
            assert opener.stdout is not None
            port = int(opener.stdout.readline())
            accepted, _ = listening.accept()
            with accepted:
                assert callers({port}, to, str) == {port: str(opener.pid)}
                assert callers({port}, to + 1, str) == {}
        finally:
            for process in [*psutil.Process(opener.pid).children(), opener]:
                process.kill()
            opener.wait()


def test_the_end_of_a_server_is_passed_on(network):
    with socket.create_server((HOST, 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(ConnectionResetError), connect(network.before("gone", port)) as one:
        one.recv(1)


def test_a_route_that_is_cut_is_reset_and_stays_so_until_it_is_healed(network, port):
    with connect(port) as before:
        assert answer(before, b"hello") == b"hello"
        network.strike(MINE, Trouble(Way.CUT))
        with pytest.raises(ConnectionResetError):
            before.recv(1)
    with pytest.raises(ConnectionError), connect(port) as new:
        answer(new, b"hello")
    network.heal(MINE)
    network.heal(MINE)
    with connect(port) as after:
        assert answer(after, b"hello") == b"hello"


def test_other_callers_and_other_routes_are_left_alone(network, port):
    with connect(port) as one:
        network.strike(Route("another's", frozenset({"another"}), "echo"), Trouble(Way.CUT))
        assert answer(one, b"hello") == b"hello"
        with connect(port) as new:
            assert answer(new, b"hello") == b"hello"


def test_on_a_silent_route_nothing_is_even_acknowledged_and_what_was_said_comes_late(network, port):
    with connect(port) as patient, connect(port) as impatient:
        for one in (patient, impatient):
            assert answer(one, b"hello") == b"hello"
        network.strike(MINE, Trouble(Way.SILENT))
        impatient.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)
        for one in (patient, impatient):
            one.sendall(b"late")
        with pytest.raises(OSError) as raised:
            impatient.recv(4)
        assert raised.value.errno == errno.ETIMEDOUT
        patient.settimeout(0.1)
        with pytest.raises(TimeoutError):
            patient.recv(4)
        with connect(port, 0.5) as new:
            new.sendall(b"new")
            with pytest.raises(TimeoutError):
                new.recv(3)
        network.heal(MINE)
        patient.settimeout(20)
        assert patient.recv(4) == b"late"
    # Those that have given up are found out, and nothing of them stays.
    until("no connection is left", lambda: not network.proxies["echo"].links, 30)


def test_on_a_slow_route_every_answer_is_late(network, port):
    with connect(port) as one:
        network.strike(MINE, Trouble(Way.SLOW, seconds=0.3))
        began = time.monotonic()
        assert answer(one, b"hello") == b"hello"
        assert time.monotonic() - began >= 0.6
        network.heal(MINE)


def test_a_torn_connection_ends_in_the_midst_of_what_it_carries(network, port):
    network.strike(MINE, Trouble(Way.TORN, octets=(1000, 700)))
    for left in (400, 100, 400):
        with connect(port) as one, pytest.raises(ConnectionResetError):
            one.sendall(b"x" * 600)
            heard = b""
            while len(heard) < 600:
                more = one.recv(600 - len(heard))
                assert more and len(heard) + len(more) <= left, "600 octets went, so many are left for the answer"
                heard += more


def test_a_route_may_be_that_to_one_database(network, postgres: Stack):
    through = make_url(postgres.ledger_url)
    port = network.before("postgres", through.port)
    ledger = f"postgresql://{through.username}:{through.password}@{HOST}:{port}/ratchet"
    other = f"postgresql://{through.username}:{through.password}@{HOST}:{port}/postgres"
    with psycopg.connect(ledger) as conn, psycopg.connect(other) as spared:
        network.strike(Route("ledger", frozenset({"me"}), "postgres", "ratchet"), Trouble(Way.CUT))
        with pytest.raises(psycopg.OperationalError):
            conn.execute("select 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(ledger)
        assert spared.execute("select 1").fetchone() == (1,)


@pytest.mark.all
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_broken_connection_costs_time_and_nothing_else(world, endure: Endure, route: Route, way: Way):
    endure(fault(world, f"connection {route.name} {way}"))
