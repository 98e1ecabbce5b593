"""Spark's Python workers, forked from one process that has loaded their libraries: they start at once and share memory.

A server uses them with `spark.python.daemon.module=ratchet.spark.workers`. A worker that serves several sessions must
not work with code that has changed meanwhile, so before each task it looks whether a file that it has loaded has
changed, and if so becomes a new interpreter, which keeps the process and its connection to Spark.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from pyspark import daemon

LIBRARIES = ("pandas", "ratchet.spark.frame_lane", "ratchet.spark.worker_lane", "ratchet.source.columnar")
"""What nearly every task imports, with all that these import."""
_OWN = ("ratchet.", "jobs.", "pipelines.")
"""Packages whose code may change while a server runs, wherever they are installed."""

Main = Callable[[BinaryIO, BinaryIO], None]


def main(arguments: list[str]) -> None:
    """`MODULE`: be the daemon whose workers run `MODULE`. `MODULE FD NS`: go on as a worker on the open socket `FD`.

    `NS` is when the interpreter was replaced: code that changes from then on is not what it will have loaded.
    """
    module, *replaced = arguments
    began = int(replaced[1]) if replaced else _now() - _age()
    for library in LIBRARIES:
        importlib.import_module(library)
    worker = importlib.import_module(module)
    worker.main = Fresh(module, worker.main, began, is_new=not replaced)
    # What the collector never visits stays shared between the forks.
    gc.freeze()
    if replaced:
        _go_on(socket.socket(fileno=int(replaced[0])))
    else:
        daemon.manager()


class Fresh:
    """A worker's main function that first sees to it that the code which it has loaded is what is on the disk."""

    def __init__(self, module: str, worker_main: Main, began: int, *, is_new: bool):
        self._module, self._main, self._began = module, worker_main, began
        self._is_new, self._has_worked = is_new, False

    def __call__(self, infile: BinaryIO, outfile: BinaryIO) -> None:
        """Run one task; nothing has been read of it when the interpreter is replaced."""
        if not self._is_new:
            # Spark keeps a worker idle between tasks, and in that time code changes. A new one is given a task at once.
            select.select([infile], [], [])
        self._is_new = False
        if changed_since(self._began):
            connection = infile.fileno()
            os.set_inheritable(connection, True)
            command = ["-m", "ratchet.spark.workers", self._module, str(connection), str(_now())]
            os.execv(sys.executable, [sys.executable, *command])
        self._main(infile, outfile)
        if not self._has_worked:
            self._has_worked = True
            # Spark collects garbage after every task, which took longer than a tenth of one for what tasks import.
            gc.collect()
            gc.freeze()


def changed_since(moment: int) -> bool:
    """Whether the file of a module that is loaded was changed or removed since `moment`, in ns of the disk's clock."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or (file.startswith(_INSTALLED) and not f"{name}.".startswith(_OWN)):
            continue
        try:
            # The time of the change of the inode: a file that replaces another may keep an older time of its content.
            if os.stat(file).st_ctime_ns >= moment:
                return True
        except OSError:
            if Path(file).parent.is_dir():
                return True
    return False


def _now() -> int:
    """The time as the disk stamps files, which may be behind the system's by a tick."""
    with tempfile.TemporaryFile() as file:
        return os.fstat(file.fileno()).st_ctime_ns


def _age() -> int:
    """How many ns this process is old, rounded up to the kernel's tick."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - (ticks - 1) * 10**9 // os.sysconf("SC_CLK_TCK")


def _installed() -> tuple[str, ...]:
    return tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


_INSTALLED = _installed()


def _go_on(connection: socket.socket) -> None:
    """Serve tasks as a worker that the daemon has forked does, until Spark closes the connection."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    reuse: Any = os.environ.get("SPARK_REUSE_WORKER")
    while True:
        code = daemon.worker(connection, True)
        if code or not reuse:
            while connection.recv(1024):
                pass
            return
        gc.collect()


if __name__ == "__main__":
    main(sys.argv[1:])
