"""I6: what stands still until others have done its work, and then goes on, changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import psutil
import pytest

from tests.until import until

from .servers import Found, WorkerStopped, in_spark, is_up, spark_workers, supervised_tasks, tasks
from .shaken import COMMITTED_WITHIN, Shaken, answers
from .world import World

pytestmark = [pytest.mark.all, pytest.mark.timeout(1500)]


def nothing() -> None:
    """No server has to answer."""


def all_held(world: World, tasks_of: Callable[[World], list[list[psutil.Process]]]) -> Found:
    """Who they are, once every slice of the three transactions is processed and waits in Spark."""

    def held() -> list[list[psutil.Process]]:
        return [group for group in tasks_of(world) if in_spark(world, group)]

    until("six slices are processed", lambda: len(held()) == 6, 120)
    return held


def wakes_up_late(shaken: Shaken, zombie: WorkerStopped, stopped: list[psutil.Process]) -> None:
    """Let others do all the work, wake it up, and see that it ends and has changed nothing."""
    shaken.all_committed()
    shaken.is_done()
    before = shaken.recorded()
    zombie.heal()
    until("the zombies have ended", lambda: not any(map(is_up, stopped)), 120)
    # Maintenance does its round once more, in case they have left something to do.
    shaken.maintain()
    assert shaken.recorded() == before
    shaken.at_rest()
    shaken.is_exact()


def test_a_task_that_wakes_up_when_its_work_is_committed_changes_nothing(world: World, shaken: Shaken):
    """It and its supervisor stand still; Airflow gives them up for dead, and the run's next try does the work."""
    shaken.in_the_midst()
    zombie = WorkerStopped("", all_held(world, supervised_tasks), nothing, random.Random(1), 0)
    zombie.strike()
    stopped = list(zombie.stopped)
    try:
        shaken.let_go()
        wakes_up_late(shaken, zombie, [stopped[1]])
    finally:
        zombie.heal()


def test_all_tasks_that_wake_up_when_their_work_is_committed_change_nothing(world: World, shaken: Shaken):
    """As of a machine that is suspended: every task that processes, and every supervisor of one."""
    shaken.in_the_midst()
    held = all_held(world, supervised_tasks)

    def everyone() -> list[list[psutil.Process]]:
        return [[process for group in held() for process in group]]

    zombie = WorkerStopped("", everyone, nothing, random.Random(1), 0)
    zombie.strike()
    stopped = list(zombie.stopped)
    try:
        shaken.let_go()
        wakes_up_late(shaken, zombie, stopped[1::2])
    finally:
        zombie.heal()


def test_a_task_that_wakes_up_without_its_supervisor_is_stopped_by_the_ledger_alone(world: World, shaken: Shaken):
    """Nobody is there to end it when it goes on: it gets as far as its next word to the ledger, and ends itself."""
    shaken.in_the_midst()
    zombie = WorkerStopped("", all_held(world, tasks), nothing, random.Random(1), 0)
    zombie.strike()
    stopped = list(zombie.stopped)
    try:
        stopped[0].parent().kill()
        shaken.let_go()
        wakes_up_late(shaken, zombie, stopped)
    finally:
        zombie.heal()


def test_a_spark_worker_that_never_goes_on_is_given_up_at_the_deadline(world: World, shaken: Shaken):
    shaken.in_the_midst()
    zombie = WorkerStopped("", partial(spark_workers, world), nothing, random.Random(1), 0)
    zombie.strike()
    stopped = list(zombie.stopped)
    try:
        shaken.let_go()
        late = until("one slice alone has not voted", answers(lambda: late_one(shaken)), COMMITTED_WITHIN)
        shaken.pass_deadline(late)
        wakes_up_late(shaken, zombie, stopped)
    finally:
        zombie.heal()


def late_one(shaken: Shaken) -> int:
    """The txid of the only slice that has not voted, 0 if there are more or none."""
    late = shaken.not_voted()
    return late[0] if len(late) == 1 else 0
