"""The schedules as hypothesis draws and shrinks them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ratchet.ledger.states import State
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import Committed, Waits
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.simulate.actors import End
from tests.proof.simulate.code import VERSIONS
from tests.proof.simulate.openings import Opening
from tests.proof.simulate.schedule import Schedule, Theatre
from tests.proof.simulate.shapes import KEEP_DELTAS, LEASE_SECONDS, SHAPES, SIZES
from tests.proof.simulate.world import AirflowRun, Step, World

STEPS = st.sampled_from([1000, 1, 2, 3, 5, 8, 13, 21, 34, 1000, 1000])
_SELDOM = ["cut", "beside", "clear", "release", "late", "lost"]
KINDS = st.sampled_from(["task"] * 5 + ["go"] * 4 + ["outside"] * 2 + ["topics"] * 2 + _SELDOM)
PICK = st.integers(0, 999)
"""Which of the things that are possible, modulo their number."""
SHAPE = st.sampled_from([*SHAPES, next(iter(SHAPES))])
SIZE = st.sampled_from([next(iter(SIZES)), *SIZES])
OPENINGS = [Opening.NOTHING, Opening.A_RUN, Opening.TWO_RUNS, Opening.HISTORY]
ABREAST = st.sampled_from([0, 2, 3])
MOVES = ("retry", "abort", "void", "replay", "release", "take back", "pause-at", "resume")
"""What a person may do to a transaction."""
MAX_RUNS = 4
"""So many runs are active at most."""


class Machine(RuleBasedStateMachine):
    """Tasks begin, go on by some statements, are cut off, and are begun again, while the world changes around them."""

    theatre: Theatre

    def __init__(self) -> None:
        super().__init__()
        self.schedule: Schedule
        self._failed = True

    @property
    def world(self) -> World:
        return self.schedule.world

    @initialize(
        shape=SHAPE,
        size=SIZE,
        opening=st.sampled_from(OPENINGS),
        abreast=ABREAST,
        first=st.integers(1, 12),
        second=st.integers(0, 6),
        empty=st.sampled_from([False, False, True]),
        by=st.sampled_from(["earliest", "latest", "offsets"]),
        changes=st.sampled_from([False, True]),
        backed_up=st.booleans(),
    )
    def begins(
        self,
        shape: str,
        size: str,
        opening: Opening,
        abreast: int,
        first: int,
        second: int,
        empty: bool,
        by: str,
        changes: bool,
        backed_up: bool,
    ) -> None:
        """Some runs that nothing disturbed; then records come, and perhaps some runs come as far as their commit."""
        self.schedule = Schedule(self.theatre, shape, note)
        self.schedule.open(opening, size)
        a_third = max(1, SIZES[size].come // 3)
        logs = self.world.logs
        logs.come(0, first * a_third)
        logs.come(max(logs.stable), second * a_third, empty=empty)
        if opening is Opening.NOTHING and not abreast:
            self.schedule.may_begin(by)
        self.schedule.come_abreast(abreast)
        if len(SHAPES[shape].specs) > 1:
            if changes:
                self.schedule.migrate()
                self.world.spec_number = self.world.migrated
        elif backed_up:
            self.schedule.restores.back_up(self.schedule)
        if changes and (topics := self._topics()):
            self.schedule.happens(*topics[0])
        self._failed = False

    @rule(kind=KINDS, pick=PICK, steps=STEPS, end=st.sampled_from(End))
    def happens(self, kind: str, pick: int, steps: int, end: End) -> None:
        """One thing: of the kind that is said, if anything of it is possible."""
        self._failed = True
        schedule = self.schedule
        if kind == "late" and (late := self._late()):
            schedule.come_late(_one(late, pick)())
        elif kind == "lost" and schedule.standing and schedule.restores.is_possible:
            schedule.restores.lose(schedule, _one(schedule.standing, pick), later=steps % 2 == 1)
        elif kind == "outside":
            schedule.happens(*_one(self._changes(), pick))
        elif kind == "topics" and (topics := self._topics()) and not self._gone():
            schedule.happens(*_one(topics, pick))
        elif schedule.is_all_over() and (records := self._records()):
            schedule.happens(*_one(records, pick))
        elif schedule.standing and (kind in ("go", "cut") or not schedule.idle):
            actor = _one(schedule.standing, pick)
            if kind == "cut":
                schedule.cut(actor, end if actor.is_in_commit() or end is not End.UNHEARD else End.KILLED)
            else:
                schedule.go(actor, steps)
        else:
            those = {"beside": self._beside, "clear": self._clears, "release": self._releases, "topics": self._gone}
            steps_ = those.get(kind, self._tasks)() or self._tasks()
            schedule.start(schedule.idle[0], _one(steps_, pick)(), steps)
        self._failed = False

    def teardown(self) -> None:
        if self._failed:
            self.schedule.abandon()
        else:
            self.schedule.finish()

    def _beside(self) -> list[Callable[[], Step]]:
        """Maintenance, or a person."""
        world, line = self.world, range(1, self.theatre.watch.last.last_txid + 1)
        moves = [partial(world.operate, what, txid) for what in MOVES for txid in line]
        return [*[world.maintain] * (1 + len(line)), *moves]

    def _late(self) -> list[Callable[[], Step]]:
        """Steps of runs that have been overtaken, at a moment at which nobody holds a lock."""
        return [] if self.schedule.standing else self.world.late(self.theatre.watch.last)

    def _clears(self) -> list[Callable[[], Step]]:
        """A run that was cleared, or what was voided is to be done anew."""
        seen = self.theatre.watch.last
        voided = [txid for txid, row in seen.newest().items() if row.state == State.VOIDED and txid <= seen.head]
        clears = [partial(self.world.clear, of) for of in self.world.runs if of.slices]
        return [*clears, *(partial(self.world.operate, "replay", txid) for txid in voided)]

    def _releases(self) -> list[Callable[[], Step]]:
        """Dead letters are to be released."""
        given_up = {txid for *_, txid, _ in self.theatre.watch.last.contents.get(DEAD_LETTERS, [])}
        return [partial(self.world.operate, "release", txid) for txid in sorted(given_up)]

    def _tasks(self) -> list[Callable[[], Step]]:
        world = self.world
        found: list[Callable[[], Step]] = []
        active = [of for of in world.runs if of.is_active]
        # Those that wait for another come last, the newest first: hypothesis draws what is in front more often.
        for of in sorted(reversed(active), key=lambda of: isinstance(of.outcome, Waits)):
            found += self._tasks_of(of)
        if (paused := self.theatre.watch.last.paused_behind) is not None:
            # Or nothing more would happen in it.
            found += [partial(world.operate, "resume", paused)] * 2
        found += self._gone() * 4
        if (halted := self.theatre.watch.last.halted()) is not None:
            found += [partial(world.operate, what, halted) for what in ("retry", "void")] * 4
        elif len(active) < MAX_RUNS or not found:
            # While there are records for it, or the transactions of a line would seldom meet.
            found += [lambda: world.begin(world.new_run())] * (1 if self.schedule.is_all_taken() else 4)
        return found

    def _tasks_of(self, of: AirflowRun) -> list[Callable[[], Step]]:
        """What Airflow may start of a run: the next task, or one that runs already or has run, whose try it lost."""
        world = self.world
        if of.begun is None:
            return [partial(world.begin, of)]
        if not isinstance(of.begun, Begun):
            return []
        left = [n for n in of.slices if n not in of.done]
        slices = [partial(world.process, of, n) for n in left or of.slices]
        if of.has_failed:
            follows = [partial(world.settle, of, succeeded=False)] * 4
            found = [*slices, partial(world.commit, of)]
        elif left:
            follows = [*slices, *slices]
            found = [partial(world.refuse, of, left[0]), partial(world.fail, of, left[-1])]
            found += [partial(world.settle, of, succeeded=False)]
        elif not isinstance(of.outcome, Committed):
            # One that waits is asked seldom.
            follows = [partial(world.commit, of)] * (1 if of.outcome else 4)
            found = [*slices, partial(world.settle, of, succeeded=True)]
        else:
            follows = [partial(world.settle, of, succeeded=True)] * 4
            found = [*slices, partial(world.commit, of)]
        # What a run does when nothing goes wrong comes more often, or schedules would not get far.
        twice = [partial(world.process, of, n, attempts=2) for n in left]
        return [*follows, *follows, *twice, *found, partial(world.renew, of), partial(world.begin, of)]

    def _changes(self) -> list[tuple[str, Callable[[], None]]]:
        world = self.world
        found: list[tuple[str, Callable[[], None]]] = []
        for of in world.runs:
            if of.is_active:
                found.append((f"Airflow has {of.run} no more", lambda of=of: _end(of)))
        for seconds in (LEASE_SECONDS + 1, 1300, int(KEEP_DELTAS.total_seconds()) + 1):
            found.append((f"{seconds} s pass", lambda s=seconds: self.schedule.pass_time(s)))
        for version in VERSIONS:
            if version != world.version:
                found.append((f"the code is {version} from here on", lambda v=version: _deploy(world, v)))
        if self.schedule.restores.is_possible:
            found += [("the ledger is restored", partial(self.schedule.restores.restore, self.schedule))] * 3
        return found + self._specs() + self._topics() + self._records()

    def _gone(self) -> list[Callable[[], Step]]:
        """Topics of the line that the spec does not name are left."""
        seen, world = self.theatre.watch.last, self.world
        return [world.leave] if {*seen.names} - seen.left - {*world.logs.named} else []

    def _topics(self) -> list[tuple[str, Callable[[], None]]]:
        """A topic is put to the spec, or taken from it, as long as it names one."""
        logs = self.world.logs
        comes = [(f"topic {t} comes", partial(logs.name, t)) for t in logs.topics if t not in logs.named]
        goes = [(f"topic {t} goes", partial(logs.unname, t)) for t in logs.named if len(logs.named) > 1]
        return comes * 2 + goes

    def _specs(self) -> list[tuple[str, Callable[[], None]]]:
        """The tables are migrated, and the spec of before, this one or the next is deployed, in any order."""
        world, last = self.world, len(SHAPES[self.world.shape].specs) - 1
        migrates = [("a person changes the tables", self.schedule.migrate)] if world.migrated < last else []
        others = [n for n in range(min(world.migrated + 1, last) + 1) if n != world.spec_number]
        return migrates * 3 + [(f"spec {n} is deployed", partial(_deploy_spec, world, n)) for n in others] * 2

    def _records(self) -> list[tuple[str, Callable[[], None]]]:
        logs, size = self.world.logs, SIZES[self.world.size]
        if sum(logs.stable.values()) >= size.most:
            return []
        come = [(f"{size.come} records come to partition {p}", partial(logs.come, p, size.come)) for p in logs.stable]
        # As many that nobody sees: what a producer has aborted, and the markers of transactions.
        none = f"{size.come} offsets without a record come to partition 0"
        return [*come, (none, partial(logs.come, 0, size.come, empty=True))]


def _one(of: list[Any], pick: int) -> Any:
    return of[pick % len(of)]


def _end(of: AirflowRun) -> None:
    of.is_active = False


def _deploy_spec(world, number: int) -> None:
    world.spec_number = number


def _deploy(world, version: str) -> None:
    world.version = version
