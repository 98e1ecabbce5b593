"""A backup of the ledger's database, and its restoration while jobs and runs of before go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.proof.simulate.actors import Actor, End
from tests.proof.simulate.database import Database, Saved
from tests.proof.simulate.seen import Seen

if TYPE_CHECKING:
    from tests.proof.simulate.schedule import Schedule
    from tests.proof.simulate.world import Step

TOLD = (
    r"^line: there is no (revision \d+ of )?transaction \d+; (the last transaction is \d+|it has no transaction yet)$",
    r"^line: .+ has no slice \d+ in epoch \d+$",
    r"its begin has taken no transaction; clear the whole run$",
    r"another try of this number has the slice now; the ledger was restored to an earlier state$",
    r"the job has read .+, and the slice is .+$",
    r"its rows are gone",
)
"""What a job or a run of before may be told besides."""


class Restores:
    """What a schedule has of them: the latest backup, which is brought back once."""

    def __init__(self, database: Database):
        self._database = database
        self._backup: tuple[Saved, Seen] | None = None
        self._before: list[Step] = []
        self.is_over = False

    @property
    def is_possible(self) -> bool:
        return self._backup is not None and not self.is_over

    def back_up(self, schedule: Schedule) -> None:
        """Keep what is committed now, in place of an older backup; but not while somebody holds a table for himself."""
        schedule.tell("a backup is taken")
        saved = self._database.back_up(schedule.world.spec)
        if saved is not None:
            self._backup = saved, schedule.look()

    def lose(self, schedule: Schedule, actor: Actor, *, later: bool) -> None:
        """What an actor does until its database transaction ends, or the one after it, is lost to all but the actor."""
        if later:
            _end_transaction(schedule, actor)
        self.back_up(schedule)
        _end_transaction(schedule, actor)
        schedule.happens("the ledger is restored", lambda: self.restore(schedule))

    def restore(self, schedule: Schedule) -> None:
        """The ledger and its sinks are as they were, and lack exactly what was committed since.

        Who is in a database transaction loses it with the old server; who is between two goes on with the new one, by
        what he knows of the old.
        """
        assert self._backup is not None
        while lost := [actor for actor in schedule.standing if not actor.is_between]:
            schedule.cut(lost[0], End.LOST)
        saved, seen = self._backup
        self._database.bring_back(saved)
        self.is_over, self._before = True, list(schedule.steps.values())
        schedule.world.forget_transactions()
        schedule.go_back(seen)

    def is_before(self, step: Step) -> bool:
        """Whether a step began before the restoration: what it says may be so of what is lost."""
        return any(step is before for before in self._before)


def _end_transaction(schedule: Schedule, actor: Actor) -> None:
    """Let an actor go on until it stands between two database transactions, or is done, or waits for a lock."""
    if actor in schedule.standing:
        schedule.go(actor, 1)
    while actor in schedule.standing and not actor.is_between:
        schedule.go(actor, 1)
