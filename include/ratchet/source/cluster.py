"""The brokers as one: asked for the leaders of partitions, and for connections to them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.source.wire import Address, Connection, Layout, Lost


class Cluster:
    """Finds a broker that answers; `settings` are keyword arguments of kafka-python's clients.

    Every method raises SettingsError when a broker is not trusted or refuses the login.
    """

    def __init__(self, settings: Mapping[str, Any]):
        self._settings = settings
        self._first = [_address(server) for server in settings["bootstrap_servers"]]
        self._brokers: dict[int, Address] = {}
        self._asked: Connection | None = None

    @property
    def servers(self) -> str:
        """The bootstrap servers, as people write them."""
        return ",".join(self._settings["bootstrap_servers"])

    def layout(self, topics: Sequence[str]) -> Layout:
        """Leaders and topic ids of these topics, from the first broker that answers. Raises Lost if none does."""
        try:
            if self._asked is not None:
                return self._remember(self._asked.layout(topics))
        except Lost:
            self.close()
        # Any of the brokers may have died: the ones that are known from before may be there still.
        addresses = list({*self._first, *self._brokers.values()})
        random.shuffle(addresses)
        failures: list[str] = []
        for address in addresses:
            try:
                self._asked = Connection(address, self._settings)
                return self._remember(self._asked.layout(topics))
            except Lost as error:
                self.close()
                failures.append(str(error))
        raise Lost("; ".join(failures))

    def connect(self, node: int) -> Connection:
        """A new connection to a broker of the last layout. Raises Lost."""
        if node not in self._brokers:
            raise Lost(f"no broker {node} is known")
        return Connection(self._brokers[node], self._settings)

    def close(self) -> None:
        """Let go of the connection that is asked for layouts."""
        if self._asked is not None:
            self._asked.close()
            self._asked = None

    def _remember(self, layout: Layout) -> Layout:
        self._brokers = layout.brokers
        return layout


def _address(server: str) -> Address:
    """Of `host:port`, `[IPv6]:port`, and both behind `PROTOCOL://`; the port is 9092 where there is none."""
    named = server.rpartition("://")[2].strip()
    host, colon, port = named.rpartition(":")
    if not colon or "]" in port:
        host, port = named, "9092"
    return Address(host.strip("[]"), int(port))
