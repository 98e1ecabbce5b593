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
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from . import postgres
from .points import Operation, current, is_awaited, point, steer, steered, wrap

# What is wrapped, by module. Each gets the module as it has just been imported.


def _tasks(module: ModuleType) -> None:
    execute = module._execute_task

    @functools.wraps(execute)
    def execute_task(context: Any, ti: Any, log: Any):
        role = "maintenance" if ti.dag_id == "maintenance" else ti.task_id
        current.set(Operation(role, ti.dag_id))
        with point("the task"):
            return execute(context=context, ti=ti, log=log)

    module._execute_task = execute_task


def _passes(module: ModuleType) -> None:
    """What maintenance does for one of its pipelines; what it asks for all of them is no pipeline's."""
    doing: dict[str, Operation] = {}
    inner = module.Pass._for

    @contextmanager
    def tended(self: Any, spec: Any) -> Iterator[None]:
        before = current.get()
        current.set(doing.setdefault(spec.name, Operation("maintenance", spec.name)))
        with inner(self, spec):
            yield
        current.set(before)

    module.Pass._for = tended
    wrap(module, "start_run", lambda *_: "ask for a run")


def _triggers(module: ModuleType) -> None:
    run = module.TurnTrigger.run

    @functools.wraps(run)
    async def traced(self: Any):
        current.set(Operation("trigger", self.arguments["pipeline"]))
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
            current.set(next((doing for doing in waiting if is_awaited(doing)), waiting[0]))
        return await inner(*given)

    return ask


def _writings(module: ModuleType) -> None:
    call = module.Writing.__call__

    @functools.wraps(call)
    def writing(self: Any, batches: Any):
        current.set(Operation("spark worker", self.into.token.pipeline))
        with point("the Spark task"):
            yield from call(self, batches)

    module.Writing.__call__ = writing


def _worker_lanes(module: ModuleType) -> None:
    call = module.WorkerLane.__call__

    @functools.wraps(call)
    def working(self: Any, given: Any):
        current.set(Operation("spark worker", self.spec.name))
        with point("the Spark task"):
            yield from call(self, given)

    module.WorkerLane.__call__ = working


def _lakes(module: ModuleType) -> None:
    from deltalake.table import TableMerger

    wrap(module, "write_deltalake", lambda *_: "WRITE a version")
    wrap(TableMerger, "execute", lambda *_: "MERGE a version")
    create = module.DeltaTable.create.__func__

    @functools.wraps(create)
    def created(cls: Any, *args: Any, **kwargs: Any):
        with point("CREATE a table"):
            return create(cls, *args, **kwargs)

    module.DeltaTable.create = classmethod(created)


def _trees(module: ModuleType) -> None:
    wrap(module.Tree, "_write", lambda *_: "WRITE files")
    wrap(module, "_rename", lambda *_: "RENAME a directory")
    wrap(module, "_remove", lambda *_: "REMOVE what nobody sees")


def _producers(module: ModuleType) -> None:
    for name in ("__init__", "begin", "send", "put", "flush", "commit", "abort"):
        wrap(module.TransactionalProducer, name, lambda *_, name=name: name.strip("_").upper())


_WRAPPED: dict[str, Callable[[ModuleType], None]] = {
    **postgres.WRAPPED,
    "airflow.sdk.execution_time.task_runner": _tasks,
    "ratchet.airflow.another": lambda module: wrap(module, "start_run", lambda *_: "ask for a run"),
    "ratchet.airflow.maintenance": _passes,
    "ratchet.airflow.trigger": _triggers,
    "ratchet.airflow.waiting": _waitings,
    "ratchet.spark.writing": _writings,
    "ratchet.spark.worker_lane": _worker_lanes,
    "ratchet.protocol.process": lambda module: wrap(module, "process_slice", lambda *_: "the job"),
    "ratchet.destinations.lake": _lakes,
    "ratchet.destinations.file_log": lambda module: wrap(module.FileLog, "add", lambda *_: "LINK a record"),
    "ratchet.destinations.file_tree": _trees,
    "ratchet.destinations.kafka_producer": _producers,
    "ratchet.source.client": lambda module: wrap(
        module.KafkaAdminClient, "alter_group_offsets", lambda _, group, *__: "SET the offsets of a consumer group"
    ),
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are wrapped as Python would, and has them wrapped once they are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        wrapped = _WRAPPED.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if wrapped else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            wrapped(module)

        spec.loader.exec_module = exec_module
        return spec


def watch() -> None:
    """Have this process pass points as a server of the stack or a process of one, if it is told a directory."""
    if steered():
        sys.meta_path.insert(0, _Finder())


def install(directory: str, role: str, pipeline: str = "-") -> None:
    """Have a process that is no server of the stack pass points too, as `role`."""
    already = steer(directory)
    current.set(Operation(role, pipeline))
    if already or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, wrapped in _WRAPPED.items():
        if name in sys.modules:
            wrapped(sys.modules[name])


def rest() -> None:
    """Pass no more points in this process: what it was to steer has ended."""
    steer("")
