"""Whose the other end of a connection is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil


def callers(ports: set[int], to: int, who: Callable[[int], str]) -> dict[int, str]:
    """{local TCP port of a connection to port `to`: what `who` says of the process that opened it}, if it is open."""
    wanted = _inodes(ports, to)
    holders: dict[int, list[int]] = {}
    for pid in psutil.pids():
        for inode in _sockets(pid):
            if inode in wanted:
                holders.setdefault(wanted[inode], []).append(pid)
    return {port: who(_oldest(pids)) for port, pids in holders.items()}


def _inodes(ports: set[int], to: int) -> dict[str, int]:
    """{the kernel's name of a socket: its port}."""
    found = {}
    # asyncpg and grpc may come by IPv6's way to an IPv4 address.
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            said = line.split()
            port, remote = (int(said[column].rpartition(":")[2], 16) for column in (1, 2))
            if port in ports and remote == to:
                found[f"socket:[{said[9]}]"] = port
    return found


def _sockets(pid: int) -> list[str]:
    found = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except FileNotFoundError:
                continue
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return found


def _oldest(pids: list[int]) -> int:
    """A child inherits its parent's sockets; who opened one is the eldest that has it."""
    started = {}
    for pid in pids:
        try:
            started[pid] = psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            continue
    return min(started, key=started.__getitem__, default=pids[0])
