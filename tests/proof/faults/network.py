"""The loopback between the servers: proxies that lose, hold up or tear the connections of one caller to one server.

A proxy stands before each server, and every process comes by it. Who a caller is, is looked up by its socket, and only
while something is wrong with the proxy's server.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle

from ratchet.dev.stack.ports import HOST

from .callers import callers

_CHUNK = 65536
_ENCRYPTED = (80877103, 80877104)
"""The codes by which a client of PostgreSQL asks for TLS or GSSAPI before it says which database it wants."""
_ATTACH_FILTER, _DETACH_FILTER = 26, 27


class Way(StrEnum):
    """What is wrong with a route."""

    CUT = "cut"
    """Every connection is reset, and every new one."""
    SILENT = "silent"
    """The kernel drops what arrives, acknowledgements too, as where a cable is out."""
    SLOW = "slow"
    """Every chunk is late."""
    TORN = "torn"
    """Every connection is reset in the midst of what it carries."""


@dataclass(frozen=True)
class Route:
    """Connections of some processes to a server; of PostgreSQL's, those to one database."""

    name: str
    callers: frozenset[str]
    server: str
    database: str = ""


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a route: `seconds` each chunk is late, or `octets` after which connections are torn in turn.

    The first is torn at its first words, which many a connection does not get beyond: a task that looks up the end of a
    topic exchanges less than 3000 octets with Kafka.
    """

    way: Way
    seconds: float = 0.3
    octets: tuple[int, ...] = (300, 1000, 3000)


class Link:
    """One connection through a proxy: a client's end and a server's end."""

    def __init__(self, client: socket.socket, database: str):
        self.client, self.database = client, database
        self.server: socket.socket | None = None
        self.caller = ""
        self.trouble: Trouble | None = None
        self.unhurt: Route | None = None
        """The route whose trouble it is in, and has not felt so far."""
        self.left = 0
        """So many octets it carries before it is torn."""

    def ends(self) -> list[socket.socket]:
        return [end for end in (self.client, self.server) if end is not None and end.fileno() >= 0]

    def meet(self, trouble: Trouble | None) -> None:
        """Trouble begins for this connection, or, with None, is over."""
        was, self.trouble = self.trouble, trouble
        if trouble is not None and trouble.way == Way.CUT:
            self.reset()
        elif trouble is not None and trouble.way == Way.SILENT:
            for end in self.ends():
                _drop(end)
        elif was is not None and was.way == Way.SILENT:
            for end in self.ends():
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)

    def reset(self) -> None:
        """Both ends learn at once that the connection is gone."""
        for end in self.ends():
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Wakes whoever waits for it; the reset goes out with the close.
                end.shutdown(socket.SHUT_RD)


class Proxy:
    """Stands before the server `name`, at `port`; runs on the loop of its network."""

    def __init__(self, name: str, server_port: int, who: Callable[[int], str]):
        self.name, self._to, self._who = name, (HOST, server_port), who
        self.listening = socket.create_server((HOST, 0), backlog=512)
        self.listening.setblocking(False)
        self.port: int = self.listening.getsockname()[1]
        self.links: set[Link] = set()
        self.troubles: dict[Route, Trouble] = {}
        self.met: Counter[Route] = Counter()
        self._octets: dict[Route, Iterator[int]] = {}

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task] = set()
        while True:
            client, _ = await loop.sock_accept(self.listening)
            task = loop.create_task(self._serve(client))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def strike(self, route: Route, trouble: Trouble) -> None:
        """From now on this is wrong with the route."""
        self.troubles[route], self._octets[route] = trouble, cycle(trouble.octets)
        await self._name([link for link in self.links if not link.caller])
        for link in self.links:
            if self._is_of(link, route):
                self._meet(link, route, trouble)

    async def heal(self, route: Route) -> None:
        """Nothing is wrong with the route any more."""
        if self.troubles.pop(route, None) is not None:
            for link in self.links:
                if self._is_of(link, route):
                    link.meet(None)

    async def _serve(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        _prepare(client)
        link = Link(client, "")
        try:
            said = await self._greeted(link) if self.name == "postgres" else b""
            self.links.add(link)
            if self.troubles:
                await self._name([link])
                for route, trouble in self._of(link):
                    self._meet(link, route, trouble)
                    if trouble.way == Way.CUT:
                        raise ConnectionResetError
            link.server = socket.socket()
            _prepare(link.server)
            await loop.sock_connect(link.server, self._to)
            if link.trouble is not None and link.trouble.way == Way.SILENT:
                _drop(link.server)
            await loop.sock_sendall(link.server, said)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(link, client, link.server))
                both.create_task(self._pump(link, link.server, client))
        except* OSError:
            # One end has reset the connection, or there is no server; the other end is to learn it.
            link.reset()
        finally:
            self.links.discard(link)
            for end in link.ends():
                end.close()

    async def _greeted(self, link: Link) -> bytes:
        """What a client of PostgreSQL says first, which names the database; TLS is declined."""
        loop = asyncio.get_running_loop()
        while True:
            said = b""
            while len(said) < 8 or len(said) < struct.unpack("!i", said[:4])[0]:
                more = await loop.sock_recv(link.client, _CHUNK)
                if not more:
                    raise ConnectionResetError
                said += more
            if struct.unpack("!i", said[4:8])[0] not in _ENCRYPTED:
                words = said[8:].split(b"\0")
                named = dict(zip(words[::2], words[1::2], strict=False))
                link.database = named.get(b"database", b"").decode()
                return said
            await loop.sock_sendall(link.client, b"N")

    async def _pump(self, link: Link, source: socket.socket, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await loop.sock_recv(source, _CHUNK)
            trouble = link.trouble
            if trouble is not None and trouble.way == Way.CUT:
                raise ConnectionResetError
            if not data:
                with suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)
                return
            if trouble is not None and trouble.way == Way.SLOW:
                self._hurt(link)
                await asyncio.sleep(trouble.seconds)
            if trouble is not None and trouble.way == Way.TORN:
                left, link.left = link.left, max(link.left - len(data), 0)
                if len(data) > left:
                    self._hurt(link)
                    await loop.sock_sendall(sink, data[:left])
                    raise ConnectionResetError
            await loop.sock_sendall(sink, data)

    def _meet(self, link: Link, route: Route, trouble: Trouble) -> None:
        link.meet(trouble)
        link.left, link.unhurt = next(self._octets[route]), route
        if trouble.way in (Way.CUT, Way.SILENT):
            self._hurt(link)

    def _hurt(self, link: Link) -> None:
        """Something has become of a connection: it counts, once."""
        if link.unhurt is not None:
            self.met[link.unhurt] += 1
            link.unhurt = None

    async def _name(self, links: list[Link]) -> None:
        ports = {}
        for link in links:
            with suppress(OSError):
                ports[link.client.getpeername()[1]] = link
        found = await asyncio.to_thread(callers, set(ports), self.port, self._who) if ports else {}
        for port, link in ports.items():
            link.caller = found.get(port, "")

    def _is_of(self, link: Link, route: Route) -> bool:
        return link.caller in route.callers and route.database in ("", link.database)

    def _of(self, link: Link) -> list[tuple[Route, Trouble]]:
        return [(route, trouble) for route, trouble in self.troubles.items() if self._is_of(link, route)]


class Network:
    """The proxies of one stack, on a thread of their own; a context manager.

    `who` tells the name of a process by its id.
    """

    def __init__(self, who: Callable[[int], str]):
        self._who = who
        self.proxies: dict[str, Proxy] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="network")

    def __enter__(self) -> Network:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def before(self, name: str, port: int) -> int:
        """Stand before a server; the port at which others are to reach it."""
        proxy = self.proxies[name] = Proxy(name, port, self._who)
        asyncio.run_coroutine_threadsafe(proxy.serve(), self._loop)
        return proxy.port

    def strike(self, route: Route, trouble: Trouble) -> None:
        self._call(self.proxies[route.server].strike(route, trouble))

    def heal(self, route: Route) -> None:
        self._call(self.proxies[route.server].heal(route))

    def met(self, route: Route) -> int:
        """How many connections have ever been cut or silent on this route, late with something, or torn."""
        return self.proxies[route.server].met[route]

    def _call(self, what: Coroutine) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _end(self) -> None:
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for proxy in self.proxies.values():
            proxy.listening.close()


def _prepare(end: socket.socket) -> None:
    end.setblocking(False)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A client that has given up while nothing passed is found out when things pass again.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    # Whoever drops packets must not give up before it is told to pass them again.
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 100)


def _drop(end: socket.socket) -> None:
    """Have the kernel drop every segment that arrives for this socket, before it is acknowledged."""
    # One instruction of the kernel's packet filter: return 0, of which nothing is kept.
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(instruction)))


class Unreachable:
    """Something is wrong with a route for a while."""

    def __init__(self, network: Network, route: Route, trouble: Trouble, seconds: float):
        self._network, self._route, self._trouble, self.seconds = network, route, trouble, seconds
        self.kind = f"connection {route.name} {trouble.way}"
        self._before = 0

    @property
    def met(self) -> int:
        """To how many connections the last strike has done something until now; 0 where nobody has called."""
        return self._network.met(self._route) - self._before

    def strike(self) -> None:
        self._before = self._network.met(self._route)
        self._network.strike(self._route, self._trouble)

    def heal(self) -> None:
        self._network.heal(self._route)
