"""What is over when a schedule begins: runs that nothing has disturbed."""

from __future__ import annotations

from copy import deepcopy
from enum import StrEnum
from typing import TYPE_CHECKING

from ratchet.operate.actions import void
from ratchet.protocol.begin import begin
from tests.proof.simulate.database import Database, Saved
from tests.proof.simulate.maintenance import maintain
from tests.proof.simulate.shapes import KEEP, KEEP_DELTAS
from tests.proof.simulate.world import World

if TYPE_CHECKING:
    from tests.proof.simulate.schedule import Schedule


class Opening(StrEnum):
    """What is over when a schedule begins."""

    NOTHING = "nothing"
    A_RUN = "a run"
    TWO_RUNS = "two runs"
    HISTORY = "a history"


OPENING_RUNS = {Opening.NOTHING: 0, Opening.A_RUN: 1, Opening.TWO_RUNS: 2}


class Openings:
    """Each one happens once for each shape, and is then brought back."""

    def __init__(self, database: Database):
        self._database = database
        self._kept: dict[tuple[str, Opening], tuple[Saved, World]] = {}

    def open(self, schedule: Schedule, opening: Opening) -> None:
        """Let it be over, in a schedule that has just begun."""
        of = schedule.world.shape, opening
        if of in self._kept:
            saved, world = self._kept[of]
            schedule.tell(f"{opening} before")
            self._database.restore(saved)
            schedule.world = deepcopy(world)
            schedule.look()
            return
        if opening is Opening.HISTORY:
            _have_a_history(schedule)
        else:
            _run(schedule, OPENING_RUNS[opening])
        saved = self._database.save(f"after_{len(self._kept)}", schedule.world.spec)
        self._kept[of] = saved, deepcopy(schedule.world)


def _run(schedule: Schedule, times: int) -> None:
    for _ in range(times):
        schedule.world.logs.come(0, 2)
        schedule.run_alone()


def _have_a_history(schedule: Schedule) -> None:
    """Transactions that are committed, voided, merged and expired; then some that have expired and are not merged, and
    younger ones, of which one is revised.
    """
    world, ledger = schedule.world, schedule.ledger
    _run(schedule, 2)
    world.logs.come(0, 2)
    of = schedule.begin_alone()
    void(ledger, world.spec, of.begun.claim.txid, "a person said so", "a person")
    schedule.alone(world.settle(of, succeeded=False))
    of.is_active = False
    for age in (KEEP_DELTAS, KEEP):
        schedule.pass_time(int(age.total_seconds()) + 1)
        maintain(ledger, world.spec, world.is_active)
        _run(schedule, 2)
    of = world.runs[-1]
    world.cleared.append(of.clear())
    schedule.tell(f"{of.run}: is cleared")
    of.begun = begin(ledger, world.spec, of.run, world.offsets, world.is_active)
    schedule.do_alone(of)
    seen = schedule.look()
    assert (seen.head, len(seen.transactions)) == (7, 8), seen
