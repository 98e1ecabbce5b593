"""Ports on the loopback: chosen once, remembered, so that a URL is the same after a restart."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

from ratchet.errors import StackError

HOST = "127.0.0.1"


class Ports:
    """The ports of one stack, by name, kept in a file.

    A port that the user fixed (RATCHET_PORT_AIRFLOW=8080) must be free; one that we chose is chosen anew, and
    said, when another program has taken it meanwhile.
    """

    def __init__(self, file: Path, say: Callable[[str], None]):
        self._file, self._say = file, say
        self._chosen: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}

    def get(self, name: str) -> int:
        """The port for `name`, free at this moment."""
        setting = f"RATCHET_PORT_{name.upper()}"
        fixed = os.environ.get(setting)
        if fixed is not None:
            if not fixed.isdecimal() or not 0 < int(fixed) < 65536:
                raise StackError(f"{setting}={fixed} is no port; give a number from 1 to 65535, or unset it")
            if not _is_free(int(fixed)):
                raise StackError(
                    f"port {fixed} is taken by another program; end that, or set {setting} to a free port, or unset it"
                )
            return int(fixed)
        port = self._chosen.get(name)
        if port is not None and not _is_free(port):
            self._say(f"port {port} of {name} is taken by another program now; choosing another")
            port = None
        if port is None:
            port = _find_free(set(self._chosen.values()))
        self._chosen[name] = port
        self._file.write_text(json.dumps(self._chosen))
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that lingers from the last run is no other program.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _find_free(taken: set[int]) -> int:
    # Below the range from which the kernel serves clients: a server that is restarted finds its port free.
    candidates = [port for port in range(15_000, _first_of_clients()) if port not in taken]
    for port in random.sample(candidates, len(candidates)):
        if _is_free(port):
            return port
    raise StackError(f"every port of {HOST} from 15000 to {_first_of_clients()} is taken; end some servers")


def _first_of_clients() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 32_768
    return first if first > 16_000 else 65_536
