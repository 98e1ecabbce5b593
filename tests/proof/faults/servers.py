"""Processes that are killed, or stopped and waked up later: servers, and what works for them."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import suppress

import psutil
import psycopg

from tests.until import until

from .fault import NotNow
from .world import World

Found = Callable[[], list[list[psutil.Process]]]
"""Whom a fault could strike now: groups of processes, of which it strikes one group."""


class Killed:
    """A server is killed, PostgreSQL with all its children, and started again by the stack's supervisor."""

    seconds = 0.0

    def __init__(self, world: World, server: str, name: str):
        self._world, self._server, self.kind = world, server, f"{name} killed"

    def strike(self) -> None:
        process, started = self._world.process(self._server), self._world.servers[self._server].process
        children = process.children(recursive=True) if self._server == "postgres" else []
        _send([process, *children], signal.SIGKILL)
        # Of a JVM the first thread is dead before the last one, and until then its port still takes connections.
        until("the server has ended", lambda: started is None or started.poll() is not None, 30)

    def heal(self) -> None:
        self._world.answers(self._server)


class Stopped:
    """A server's own processes stand still for longer than a lease, keep all that they hold, and then go on."""

    def __init__(self, world: World, server: str, name: str, seconds: float, whole: bool = False):
        """`whole`: with its children."""
        self._world, self._server, self._whole, self.seconds = world, server, whole, seconds
        self.kind = f"{name} stopped for {seconds:g} s"
        self._stopped: list[psutil.Process] = []

    def strike(self) -> None:
        process = self._world.process(self._server)
        self._stopped = [process]
        _stop(self._stopped)
        if self._whole:
            # It starts none any more.
            self._stopped += process.children(recursive=True)
            _stop(self._stopped)

    def heal(self) -> None:
        _send(self._stopped, signal.SIGCONT)
        self._stopped = []
        self._world.answers(self._server)


class WorkerKilled:
    """One of the processes that `found` gives is killed, with those that belong to it."""

    seconds = 0.0

    def __init__(self, name: str, found: Found, answers: Callable[[], None], choice: random.Random):
        self.kind, self._found, self._answers, self._choice = f"{name} killed", found, answers, choice

    def strike(self) -> None:
        killed = _choose(self._found, self._choice)
        _send(killed, signal.SIGKILL)
        until("what was killed has ended", lambda: not any(map(is_up, killed)), 10)

    def heal(self) -> None:
        self._answers()


class WorkerStopped:
    """One of the processes that `found` gives stands still, with those that belong to it, and then goes on."""

    def __init__(self, name: str, found: Found, answers: Callable[[], None], choice: random.Random, seconds: float):
        self._found, self._answers, self._choice, self.seconds = found, answers, choice, seconds
        self.kind = f"{name} stopped for {seconds:g} s"
        self.stopped: list[psutil.Process] = []

    def strike(self) -> None:
        self.stopped = _choose(self._found, self._choice)
        _stop(self.stopped)
        if not all(map(is_up, self.stopped)):
            # One has ended before it was stopped, and the others would hold up nothing.
            self._go_on()
            raise NotNow

    def heal(self) -> None:
        self._go_on()
        self._answers()

    def _go_on(self) -> None:
        _send(self.stopped, signal.SIGCONT)
        self.stopped = []


def tasks(world: World) -> list[list[psutil.Process]]:
    """The processes of Airflow's tasks that run now: code of ours, each started by a supervisor of its own."""
    return [[worker] for _, *workers in supervised_tasks(world) for worker in workers]


def supervised_tasks(world: World) -> list[list[psutil.Process]]:
    """Each running task with its supervisor, which tells Airflow that it lives.

    While a test holds what goes on in Spark, those that wait for it, if any do.
    """
    groups = [[parent, *children] for parent in _supervisors(world) if (children := _children(parent))]
    return [group for group in groups if _is_held(world) and in_spark(world, group)] or groups


def in_spark(world: World, group: list[psutil.Process]) -> bool:
    """Whether the task of a group is connected to Spark Connect: as long as Spark is held, it does not end."""
    with suppress(psutil.NoSuchProcess):
        port = world.network.proxies["connect"].port
        return any(to.raddr and to.raddr.port == port for to in group[-1].net_connections("tcp"))
    return False


def supervisors(world: World) -> list[list[psutil.Process]]:
    """The supervisors of running tasks, alone."""
    return [[supervisor] for supervisor, *_ in supervised_tasks(world)]


def spark_workers(world: World) -> list[list[psutil.Process]]:
    """Spark's Python workers, the children of its daemons; those that a test holds, if any."""
    daemons = [p for p in _children(world.process("connect")) if "ratchet.spark.workers" in " ".join(_command(p))]
    workers = [worker for daemon in daemons for worker in _children(daemon)]
    held = {int(file.suffix[1:]) for file in world.holds.glob("*.waiting.*")} if _is_held(world) else set()
    return [[worker] for worker in workers if worker.pid in held] or [[worker] for worker in workers]


def backends(world: World) -> list[list[psutil.Process]]:
    """PostgreSQL's processes that serve ratchet's sessions; those in the midst of a database transaction, if any."""
    try:
        with psycopg.connect(world.stack.ledger_url, connect_timeout=5) as conn:
            rows = conn.execute(
                "select pid, xact_start is not null from pg_stat_activity where application_name like 'ratchet%'"
            ).fetchall()
    except psycopg.OperationalError:
        return []
    chosen = [pid for pid, busy in rows if busy] or [pid for pid, _ in rows]
    # PostgreSQL has a namespace for users and none for processes: its numbers are the machine's.
    return [[psutil.Process(pid)] for pid in chosen if psutil.pid_exists(pid)]


def _is_held(world: World) -> bool:
    """Whether a test has Spark's tasks wait."""
    return any(world.holds.glob("*.wait"))


def _supervisors(world: World) -> list[psutil.Process]:
    return [p for p in _children(world.process("scheduler")) if "LocalExecutor" in " ".join(_command(p))]


def _choose(found: Found, choice: random.Random) -> list[psutil.Process]:
    groups = found()
    if not groups:
        raise NotNow
    return choice.choice(groups)


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children()
    return []


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return process.cmdline()
    return []


def _stop(processes: list[psutil.Process]) -> None:
    _send(processes, signal.SIGSTOP)
    until(
        "every process stands still or has ended",
        lambda: not any(is_up(process) and _status(process) != psutil.STATUS_STOPPED for process in processes),
        10,
    )


def _send(processes: list[psutil.Process], what: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(what)


def is_up(process: psutil.Process) -> bool:
    """Whether it has not ended; a zombie has."""
    return _status(process) not in ("", psutil.STATUS_ZOMBIE)


def _status(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return process.status() if process.is_running() else ""
    return ""
