"""A disk of PostgreSQL's own, small, in memory, and full whenever a test wants it so."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from ratchet.errors import StackError

_CLONE_NEWNS = 0x00020000
_libc = ctypes.CDLL(None, use_errno=True)


class Refused(StackError):
    """The kernel does not let us mount a disk."""


class Disk:
    """A tmpfs of so many bytes at `at`, which nobody sees but this thread and what it starts from now on.

    A context manager; whatever ends the process, the mount goes with it. Raises Refused where it is not allowed.
    """

    def __init__(self, at: Path, size: int):
        self.at, self.size = at, size

    def __enter__(self) -> Disk:
        if _libc.unshare(_CLONE_NEWNS):
            why = os.strerror(ctypes.get_errno())
            raise Refused(
                f"a full disk needs a mount namespace of its own, and the kernel refuses one ({why}); run as root, "
                "or under `unshare --user --map-root-user --mount`"
            )
        # Else what is mounted here would show in the namespace that this one is a copy of.
        self._mount("--make-rprivate", "/")
        self.at.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._mount("-t", "tmpfs", "-o", f"size={self.size},mode=700", "tmpfs", str(self.at))
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.at)], capture_output=True)

    def fill(self) -> None:
        """Leave not a byte, by making the disk as small as what is on it; a ballast file would cost memory."""
        while True:
            found = os.statvfs(self.at)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            try:
                self._mount("-o", f"remount,size={used}", str(self.at))
                return
            except StackError:
                # More was written meanwhile than the new size would hold.
                if os.statvfs(self.at).f_bfree == 0:
                    return

    def clear(self) -> None:
        """Give the room back."""
        self._mount("-o", f"remount,size={self.size}", str(self.at))

    def _mount(self, *said: str) -> None:
        done = subprocess.run(["mount", *said], capture_output=True, text=True)
        if done.returncode:
            raise StackError(f"mount {' '.join(said)}: {done.stderr.strip()}")


class DiskFull:
    """PostgreSQL's disk is full for a while; in its log it says what it could not write."""

    def __init__(self, disk: Disk, log: Path, answers: Callable[[], None], seconds: float = 20):
        self._disk, self._log, self._answers, self.seconds = disk, log, answers, seconds
        self.kind = "PostgreSQL's disk full"
        self._before = 0

    @property
    def met(self) -> int:
        """How often PostgreSQL has said since the last strike that there is no room."""
        return self._log.read_bytes()[self._before :].count(os.strerror(errno.ENOSPC).encode())

    def strike(self) -> None:
        self._before = self._log.stat().st_size
        self._disk.fill()

    def heal(self) -> None:
        self._disk.clear()
        self._answers()
