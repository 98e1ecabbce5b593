"""All faults of servers that there are."""

from __future__ import annotations

import random
from functools import partial

from .clock import Clock
from .disk import DiskFull
from .fault import Fault
from .network import Route, Trouble, Unreachable, Way
from .servers import (
    Killed,
    Stopped,
    WorkerKilled,
    WorkerStopped,
    backends,
    spark_workers,
    supervised_tasks,
    supervisors,
    tasks,
)
from .world import SPARK_WORKERS, TASKS, World

NAMES = {
    "postgres": "PostgreSQL",
    "kafka": "Kafka",
    "connect": "Spark Connect",
    "scheduler": "scheduler",
    "triggerer": "triggerer",
    "api-server": "api-server",
    "dag-processor": "dag-processor",
}
AIRFLOW = frozenset({"scheduler", "triggerer", "api-server", "dag-processor", TASKS})
ROUTES = (
    Route("Airflow's tasks–ledger", frozenset({TASKS}), "postgres", "ratchet"),
    Route("Spark workers–ledger", frozenset({SPARK_WORKERS}), "postgres", "ratchet"),
    Route("triggerer–ledger", frozenset({"triggerer"}), "postgres", "ratchet"),
    Route("Airflow–metadata database", AIRFLOW, "postgres", "airflow"),
    Route("Spark–Kafka", frozenset({"connect", SPARK_WORKERS}), "kafka"),
    Route("Airflow's tasks–Kafka", frozenset({TASKS}), "kafka"),
    Route("Airflow's tasks–Spark Connect", frozenset({TASKS}), "connect"),
    Route("Airflow–api-server", AIRFLOW, "api-server"),
)
"""Airflow's triggerer and dag-processor ask the metadata database directly, and never the api-server."""
SECONDS = {Way.CUT: 15.0, Way.SILENT: 45.0, Way.SLOW: 20.0, Way.TORN: 15.0}
"""How long a route is in trouble; silent for longer than libpq's patience, which is 30 s."""
STEPS = {"postgres": 3600, "scheduler": 120, "triggerer": 120, "api-server": 120, "connect": 3600, "kafka": 120}
"""By how many seconds a clock is stepped. Airflow plans its next maintenance, and a task's next try, by its own
clocks: what it has planned while they were ahead waits until the machine's time has come so far. So theirs are stepped
by a little more than it takes to be taken for dead (60 s), and the others by an hour; but for Kafka's, since a Kafka
transaction that begins while it is ahead and that nobody ends is open until the machine's time has come so far."""
BEYOND_LEASES = 40.0
BEYOND_HEARTBEATS = 90.0
"""Seconds after which Airflow has surely given up a task that says nothing."""


def faults(world: World, seed: int = 0) -> list[Fault]:
    """All kinds for this stack; what one of several processes is struck follows from the seed."""
    choice = random.Random(seed)
    return [*_killed(world, choice), *_stopped(world, choice), *_surroundings(world)]


def fault(world: World, kind: str, seed: int = 0) -> Fault:
    """The fault with this name."""
    return {one.kind: one for one in faults(world, seed)}[kind]


def _killed(world: World, choice: random.Random) -> list[Fault]:
    postgres, connect = partial(world.answers, "postgres"), partial(world.answers, "connect")
    airflow = partial(world.answers, "scheduler")
    return [
        *(Killed(world, server, name) for server, name in NAMES.items()),
        WorkerKilled("PostgreSQL backend", partial(backends, world), postgres, choice),
        WorkerKilled("Spark worker", partial(spark_workers, world), connect, choice),
        WorkerKilled("task", partial(tasks, world), airflow, choice),
        WorkerKilled("supervisor of a task", partial(supervisors, world), airflow, choice),
    ]


def _stopped(world: World, choice: random.Random) -> list[Fault]:
    postgres, connect = partial(world.answers, "postgres"), partial(world.answers, "connect")
    airflow, lease, heartbeats = partial(world.answers, "scheduler"), BEYOND_LEASES, BEYOND_HEARTBEATS
    return [
        Stopped(world, "postgres", "PostgreSQL", lease, whole=True),
        Stopped(world, "kafka", "Kafka", lease),
        Stopped(world, "connect", "Spark Connect", lease),
        Stopped(world, "scheduler", "scheduler", lease),
        Stopped(world, "triggerer", "triggerer", lease, whole=True),
        Stopped(world, "api-server", "api-server", lease),
        Stopped(world, "dag-processor", "dag-processor", lease),
        WorkerStopped("PostgreSQL backend", partial(backends, world), postgres, choice, lease),
        WorkerStopped("Spark worker", partial(spark_workers, world), connect, choice, lease),
        WorkerStopped("task", partial(tasks, world), airflow, choice, lease),
        WorkerStopped("task and its supervisor", partial(supervised_tasks, world), airflow, choice, heartbeats),
    ]


def _surroundings(world: World) -> list[Fault]:
    return [
        DiskFull(world.disk, world.servers["postgres"].log, partial(world.answers, "postgres")),
        *(
            Unreachable(world.network, route, Trouble(way), seconds)
            for route in ROUTES
            for way, seconds in SECONDS.items()
        ),
        *(
            Clock(world.clocks, server, partial(world.process, server), NAMES[server], by * sign)
            for server, by in STEPS.items()
            for sign in (1, -1)
        ),
    ]
