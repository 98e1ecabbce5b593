"""The hook: what a process of the stack does that lasts passes here, is traced here, and can be killed here.

It does nothing unless RATCHET_FAULTS names a directory. Product code neither knows of it nor calls it: the lowest
functions that all of it goes through are wrapped when their modules are imported.

- psycopg: each statement, each COMMIT, ROLLBACK and savepoint, each block of a COPY, each connect;
- Spark's Python workers: the start and the end of a task that writes;
- destinations: each version of a Delta Lake table, each record and name of files, each step of a Kafka transaction;
- kafka-python: the one write to Kafka, a consumer group's offsets;
- the start and the end of each Airflow task, of the trigger's wait, of the job, and of asking for another run.

A *point* is such a step, known by its name: who passes it, the two innermost functions of ratchet on the stack, what
is done, and which time within the same operation where it is not the first. It has two sides: `before` and `after`.

    commit: commit.advance > transactions.move_head: UPDATE ratchet.heads #2

In the directory, `trace.jsonl` gets a line for each point that is passed, if the file is there. A file in
`armed/PIPELINE/` holds a point and a side: the process that comes to it takes the file's namesake in `killed/`, which
only one can, and sends itself SIGKILL.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from .naming import fingerprint, said, where

DIRECTORY = "RATCHET_FAULTS"
"""Names the directory by which the hook is steered."""


class Operation:
    """What a process is doing: who it is, for which pipeline, and how often it has passed each point."""

    def __init__(self, role: str, pipeline: str):
        self.role, self.pipeline = role, pipeline
        self.passed: Counter[str] = Counter()


_current: ContextVar[Operation | None] = ContextVar("operation", default=None)
_directory = os.environ.get(DIRECTORY, "")


def operation() -> Operation:
    """What this process is doing now; by its command line, where nothing has said so."""
    found = _current.get()
    if found is None:
        found = Operation(*_by_command_line(sys.orig_argv))
        _current.set(found)
    return found


def _by_command_line(command: list[str]) -> tuple[str, str]:
    for number, word in enumerate(command):
        if word.endswith("process_slice.py"):
            return "driver", command[number + 1]
        if word == "ratchet" and command[number - 1] == "-m" and len(command) > number + 2:
            return "command", command[number + 2]
    return "other", "-"


@contextmanager
def point(what: str, *, backend: int | None = None, statement: bytes | None = None) -> Iterator[None]:
    """A step that lasts, or that begins or ends something: it is traced, and may be where this process dies.

    A step that raises is over too, except a statement, which PostgreSQL has refused then.
    """
    if not _directory:
        yield
        return
    doing = operation()
    name = f"{doing.role}: {where()}{what}"
    doing.passed[name] += 1
    if doing.passed[name] > 1:
        name = f"{name} #{doing.passed[name]}"
    _pass(doing, name, "before", backend, statement)
    try:
        yield
    except BaseException:
        if backend is None:
            _pass(doing, name, "after")
        raise
    _pass(doing, name, "after")


def _pass(doing: Operation, name: str, side: str, backend: int | None = None, statement: bytes | None = None) -> None:
    _trace(doing, name, side, backend, statement)
    _die_if_armed(doing, name, side)


def _trace(doing: Operation, name: str, side: str, backend: int | None, statement: bytes | None) -> None:
    line = {"pid": os.getpid(), "pipeline": doing.pipeline, "point": name, "side": side}
    if backend is not None:
        line |= {"backend": backend, "statement": fingerprint(statement or b"")}
    try:
        # Only where there is a trace: a runner that wants none has made none.
        file = os.open(f"{_directory}/trace.jsonl", os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        return
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def _die_if_armed(doing: Operation, name: str, side: str) -> None:
    for ticket, armed in _armed(doing):
        if armed == (name, side):
            _die(ticket)


def _armed(doing: Operation) -> Iterator[tuple[str, tuple[str, str]]]:
    """The tickets of this pipeline, each with the name and the side of its point."""
    where = f"{_directory}/armed/{doing.pipeline}"
    try:
        tickets = os.listdir(where)
    except (FileNotFoundError, NotADirectoryError):
        return
    for ticket in tickets:
        try:
            with open(f"{where}/{ticket}") as file:
                wanted = json.load(file)
        except (FileNotFoundError, ValueError):
            continue
        yield ticket, (wanted["name"], wanted["side"])


def _die(ticket: str) -> None:
    try:
        taken = os.open(f"{_directory}/killed/{ticket}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    os.write(taken, json.dumps({"pid": os.getpid(), "at": time.time()}).encode())
    os.close(taken)
    os.kill(os.getpid(), signal.SIGKILL)


def _told(statement: Any, connection: Any) -> bytes:
    if isinstance(statement, str):
        return statement.encode()
    return statement if isinstance(statement, bytes) else statement.as_bytes(connection)


# What is wrapped, by module. Each gets the module as it has just been imported.


def _cursors(module: ModuleType) -> None:
    cursor = module.BaseCursor
    execute, copy = cursor._maybe_prepare_gen, cursor._start_copy_gen

    @functools.wraps(execute)
    def maybe_prepare(self: Any, pgq: Any, **kwargs: Any):
        what = said(pgq.query, operation().pipeline)
        with point(what, backend=self._pgconn.backend_pid, statement=pgq.query):
            return (yield from execute(self, pgq, **kwargs))

    @functools.wraps(copy)
    def start_copy(self: Any, statement: Any, params: Any = None):
        text = _told(statement, self._conn)
        with point(said(text, operation().pipeline), backend=self._pgconn.backend_pid, statement=text):
            return (yield from copy(self, statement, params))

    cursor._maybe_prepare_gen, cursor._start_copy_gen = maybe_prepare, start_copy


def _server_cursors(module: ModuleType) -> None:
    from psycopg.adapt import Transformer

    cursor = module.ServerCursorMixin
    declare = cursor._declare_gen

    @functools.wraps(declare)
    def declare_gen(self: Any, query: Any, params: Any = None, *given: Any):
        # As it does itself a moment later.
        self._tx = Transformer(self)
        text = self._convert_query(self._make_declare_statement(query), params).query
        with point(said(text, operation().pipeline), backend=self._pgconn.backend_pid, statement=text):
            return (yield from declare(self, query, params, *given))

    cursor._declare_gen = declare_gen


def _commands(module: ModuleType) -> None:
    connection = module.BaseConnection
    send = connection._exec_command

    @functools.wraps(send)
    def exec_command(self: Any, command: Any, *args: Any, **kwargs: Any):
        text = _told(command, self)
        with point(said(text, operation().pipeline), backend=self.pgconn.backend_pid, statement=text):
            return (yield from send(self, command, *args, **kwargs))

    connection._exec_command = exec_command


def _copies(module: ModuleType) -> None:
    writer = module.LibpqWriter
    _wrap(writer, "write", lambda *_: "COPY a block")
    _wrap(writer, "finish", lambda *_: "COPY ends")


def _connects(module: ModuleType) -> None:
    connect = module.Connection.connect.__func__

    @functools.wraps(connect)
    def connected(cls: Any, *args: Any, **kwargs: Any):
        with point("connect"):
            return connect(cls, *args, **kwargs)

    module.Connection.connect = classmethod(connected)


def _async_connects(module: ModuleType) -> None:
    connect = module.AsyncConnection.connect.__func__

    @functools.wraps(connect)
    async def connected(cls: Any, *args: Any, **kwargs: Any):
        with point("connect"):
            return await connect(cls, *args, **kwargs)

    module.AsyncConnection.connect = classmethod(connected)


def _pools(module: ModuleType) -> None:
    """Whoever is to be killed when it connects finds no connection that is free.

    Otherwise it would come to that point only when another thread happens to use the one that is there.
    """
    pool = module.QueuePool
    get = pool._do_get

    @functools.wraps(get)
    def do_get(self: Any):
        if _directory:
            doing = operation()
            armed = {name for _, (name, _) in _armed(doing)}
            if armed and f"{doing.role}: {where()}connect" in armed:
                self.dispose()
        return get(self)

    pool._do_get = do_get


def _tasks(module: ModuleType) -> None:
    execute = module._execute_task

    @functools.wraps(execute)
    def execute_task(context: Any, ti: Any, log: Any):
        role = "maintenance" if ti.dag_id == "maintenance" else ti.task_id
        _current.set(Operation(role, ti.dag_id))
        with point("the task"):
            return execute(context=context, ti=ti, log=log)

    module._execute_task = execute_task


def _passes(module: ModuleType) -> None:
    """What maintenance does for one of its pipelines; what it asks for all of them is no pipeline's."""
    doing: dict[str, Operation] = {}
    inner = module.Pass._for

    @contextmanager
    def tended(self: Any, spec: Any) -> Iterator[None]:
        before = _current.get()
        _current.set(doing.setdefault(spec.name, Operation("maintenance", spec.name)))
        with inner(self, spec):
            yield
        _current.set(before)

    module.Pass._for = tended
    _wrap(module, "start_run", lambda *_: "ask for a run")


def _triggers(module: ModuleType) -> None:
    run = module.TurnTrigger.run

    @functools.wraps(run)
    async def traced(self: Any):
        _current.set(Operation("trigger", self.arguments["pipeline"]))
        with point("the wait"):
            async for event in run(self):
                with point("the event"):
                    pass
                yield event

    module.TurnTrigger.run = traced


def _waitings(module: ModuleType) -> None:
    """What is asked for all who wait counts as done for one of them: one that is to be killed at it, if any is."""
    for name in ("_listen", "_renew", "_look"):
        setattr(module.Waiting, name, _of_one(getattr(module.Waiting, name)))


def _of_one(inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    async def ask(*given: Any):
        waiting = [Operation("trigger", waiter.awaited.pipeline) for waiter in given[-1]]
        if waiting:
            _current.set(next((doing for doing in waiting if any(_armed(doing))), waiting[0]))
        return await inner(*given)

    return ask


def _writings(module: ModuleType) -> None:
    call = module.Writing.__call__

    @functools.wraps(call)
    def writing(self: Any, batches: Any):
        _current.set(Operation("spark worker", self.into.token.pipeline))
        with point("the Spark task"):
            yield from call(self, batches)

    module.Writing.__call__ = writing


def _worker_lanes(module: ModuleType) -> None:
    call = module.WorkerLane.__call__

    @functools.wraps(call)
    def working(self: Any, given: Any):
        _current.set(Operation("spark worker", self.spec.name))
        with point("the Spark task"):
            yield from call(self, given)

    module.WorkerLane.__call__ = working


def _wrap(owner: Any, name: str, what: Callable[..., str]) -> None:
    """Make every call of a function or method a point."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any):
        with point(what(*args)):
            return inner(*args, **kwargs)

    setattr(owner, name, outer)


def _lakes(module: ModuleType) -> None:
    _wrap(module, "write_deltalake", lambda *_: "WRITE a version")
    create = module.DeltaTable.create.__func__

    @functools.wraps(create)
    def created(cls: Any, *args: Any, **kwargs: Any):
        with point("CREATE a table"):
            return create(cls, *args, **kwargs)

    module.DeltaTable.create = classmethod(created)


def _trees(module: ModuleType) -> None:
    _wrap(module.Tree, "_write", lambda *_: "WRITE files")
    _wrap(module, "_rename", lambda *_: "RENAME a directory")
    _wrap(module, "_remove", lambda *_: "REMOVE what nobody sees")


def _producers(module: ModuleType) -> None:
    for name in ("__init__", "begin", "send", "put", "flush", "commit", "abort"):
        _wrap(module.TransactionalProducer, name, lambda *_, name=name: name.strip("_").upper())


_WRAPPED: dict[str, Callable[[ModuleType], None]] = {
    "psycopg._cursor_base": _cursors,
    "psycopg._server_cursor_base": _server_cursors,
    "psycopg._connection_base": _commands,
    "psycopg._copy": _copies,
    "psycopg.connection": _connects,
    "psycopg.connection_async": _async_connects,
    "sqlalchemy.pool.impl": _pools,
    "airflow.sdk.execution_time.task_runner": _tasks,
    "ratchet.airflow.another": lambda module: _wrap(module, "start_run", lambda *_: "ask for a run"),
    "ratchet.airflow.maintenance": _passes,
    "ratchet.airflow.trigger": _triggers,
    "ratchet.airflow.waiting": _waitings,
    "ratchet.spark.writing": _writings,
    "ratchet.spark.worker_lane": _worker_lanes,
    "ratchet.protocol.process": lambda module: _wrap(module, "process_slice", lambda *_: "the job"),
    "ratchet.destinations.lake": _lakes,
    "ratchet.destinations.file_log": lambda module: _wrap(module.FileLog, "add", lambda *_: "LINK a record"),
    "ratchet.destinations.file_tree": _trees,
    "ratchet.destinations.kafka_producer": _producers,
    "ratchet.source.client": lambda module: _wrap(
        module.KafkaAdminClient, "alter_group_offsets", lambda _, group, *__: "SET the offsets of a consumer group"
    ),
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are wrapped as Python would, and has them wrapped once they are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        wrap = _WRAPPED.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if wrap else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            wrap(module)

        spec.loader.exec_module = exec_module
        return spec


def watch() -> None:
    """Have this process pass points as a server of the stack or a process of one, if it is told a directory."""
    if _directory:
        sys.meta_path.insert(0, _Finder())


def install(directory: str, role: str, pipeline: str = "-") -> None:
    """Have a process that is no server of the stack pass points too, as `role`."""
    global _directory
    already, _directory = _directory, directory
    _current.set(Operation(role, pipeline))
    if already or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, wrap in _WRAPPED.items():
        if name in sys.modules:
            wrap(sys.modules[name])


def rest() -> None:
    """Pass no more points in this process: what it was to steer has ended."""
    global _directory
    _directory = ""
