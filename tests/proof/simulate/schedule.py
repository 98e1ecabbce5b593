"""One schedule: actors take the steps of tasks, interleaved and cut off as the test says, while a reader looks on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ratchet.errors import Halted, LedgerUnreachable, Locked, OutcomeUnknown, RatchetError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.work import Claim, SliceWork
from ratchet.operate import locks
from ratchet.operate.actions import void
from ratchet.operate.migrate import migrate
from ratchet.operate.outcome import Move, Outcome
from ratchet.operate.pauses import resume
from ratchet.operate.verify import recompute, verify
from ratchet.protocol import compact as compaction
from ratchet.protocol.another import wants_another_run
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skip, Skipped
from ratchet.protocol.commit import Committed, Waits
from tests.proof.simulate import logs, restores, sending
from tests.proof.simulate.actors import COMMIT, FOREVER, Actor, End, Killed, Troupe
from tests.proof.simulate.code import make_of, spec_of
from tests.proof.simulate.database import Database
from tests.proof.simulate.logs import Logs, of_line, place_in
from tests.proof.simulate.maintenance import maintain
from tests.proof.simulate.openings import Opening, Openings
from tests.proof.simulate.restores import Restores
from tests.proof.simulate.seen import Seen
from tests.proof.simulate.shapes import KEEP_DELTAS, LEASE_SECONDS, SHAPES
from tests.proof.simulate.watch import TOLD, Watch
from tests.proof.simulate.work import recomputed
from tests.proof.simulate.world import AirflowRun, Step, World

ROUNDS = 40
"""After so many further runs all must be done."""
AT_ONCE = {"max_records": 1000, "slice_records": 1000}
"""A run that nothing disturbs takes all that is there, in one slice: the end of a schedule is not what is looked at."""
NEIGHBOURS = ("aside", "zenith")
"""Other lines in the same ledger; their names come before and after this line's."""
COMMITS, GROUPS, WAITS = "commits amid all that", "of several transactions at once", "commits that waited their turn"
COUNTED = {End.KILLED: "killed", End.LOST: "connections cut", End.UNHEARD: "cut between a COMMIT and its answer"}


class Theatre:
    """What schedules one after another share: the database, the actors and the reader."""

    def __init__(self, url: str, actors: int = 3):
        # The process does nothing else. Nobody waits for who stands; a compaction has several steps, to be cut between.
        locks.WAIT_SECONDS, locks.TRIES, compaction.STEP_RECORDS = 0.002, 1, 4
        self.url = url
        self.database = Database(url)
        self.troupe = Troupe(url, actors)
        self.watch = Watch(url)
        self.ledger = Ledger(url)
        self.migrated: set[str] = set()
        """The shapes whose tables are migrated further than at the beginning."""
        self.openings = Openings(self.database)
        self.counted: Counter[str] = Counter()
        """What all schedules together had."""
        self.neighbours = self._neighbours()
        """What the ledger says of other lines, and has to say whatever this one does."""

    def reset(self) -> None:
        """Forget the schedule before, and what it has migrated."""
        for shape in self.migrated:
            self.database.unmigrate(shape)
        self.migrated.clear()
        self.database.reset()

    def _neighbours(self) -> dict[str, list[str]]:
        Schedule(self, "plain", lambda said: None).come_halfway()
        for name in NEIGHBOURS:
            self.database.add_neighbour(name, is_halted=name == NEIGHBOURS[0])
        self.counted.clear()
        return self.database.neighbours()


class Schedule:
    """One schedule, from an empty ledger to the end; `tell` is given its story, a line a happening."""

    def __init__(self, theatre: Theatre, shape: str, tell: Callable[[str], None]):
        self._theatre, self._troupe, self.tell = theatre, theatre.troupe, tell
        self.abandon()
        theatre.reset()
        if SHAPES[shape].is_sent:
            theatre.database.register(shape)
        of = SHAPES[shape]
        self.world = World(shape, Logs.of(of.specs[0].source, of.topics, of.partitions))
        theatre.watch.forget(of.sinks(0), lambda line, ranges: self.world.logs.records(line, ranges))
        self.steps: dict[Actor, Step] = {}
        self.restores = Restores(theatre.database)
        self._count("schedules")

    def open(self, opening: Opening, size: str) -> None:
        """Let what comes before be over, which nothing has disturbed: it happens once, and is then brought back.

        From then on records come as the size says.
        """
        self.tell(f"a pipeline with {self.world.shape}")
        self._theatre.openings.open(self, opening)
        self.world.size = size
        self._count(f"shapes: {self.world.shape}")
        self._count(f"sizes: {size}")
        self._count(f"begin after: {opening}")

    def may_begin(self, by: str) -> None:
        """The line may begin from here on, by this rule."""
        self.tell(f"it begins by {by}")
        self.world.logs.begins(by)
        self._count(f"begins by: {by}")

    def come_halfway(self) -> None:
        """Two whole runs, and one of which a slice has voted and another has not."""
        world = self.world
        for _ in range(2):
            world.logs.come(1, 4)
            self.run_alone()
        world.logs.come(1, 6)
        of = self.begin_alone()
        self.alone(world.process(of, of.slices[0]))

    def come_abreast(self, runs: int) -> None:
        """So many runs begin, for each of which records come, as far as there may be.

        All have voted but for a slice of the first; the others wait for that.
        """
        of_kafka = self.world.logs
        for number in range(min(runs, self.world.spec.max_in_flight)):
            topic = of_kafka.named[number % len(of_kafka.named)]
            of_kafka.come(of_kafka.places(topic)[0], min(3, self.world.spec.max_records))
            of = self.begin_alone()
            for part in of.slices if number else of.slices[:-1]:
                self.alone(self.world.process(of, part))
                of.done.add(part)
            if number:
                said = self.alone(self.world.commit(of))
                # A gate may have said no.
                of.outcome, of.has_failed = said and said[1], said is None

    def begin_alone(self) -> AirflowRun:
        """A new run that has begun."""
        world = self.world
        of = world.new_run()
        self.tell(f"{of.run}: has begun")
        of.begun = begin(self._theatre.ledger, world.spec, of.run, world.offsets, world.is_active)
        self.look()
        return of

    @property
    def ledger(self) -> Ledger:
        """That of whoever is no actor."""
        return self._theatre.ledger

    @property
    def idle(self) -> list[Actor]:
        return self._troupe.idle()

    @property
    def standing(self) -> list[Actor]:
        return self._troupe.standing()

    def start(self, actor: Actor, step: Step, steps: int) -> None:
        """Give an actor something to do, and let it go on until its statement number `steps`."""
        self.steps[actor] = step
        self._count("steps of tasks, of maintenance and of people")
        self.tell(f"{actor.name}: {step.doing}")
        actor.start(step.doing, step.job, steps)
        self._settle()

    def go(self, actor: Actor, steps: int) -> None:
        """Let an actor pass so many statements."""
        self.tell(f"{actor.name}: {actor.doing}: goes on with: {_short(actor.at)}")
        actor.go(steps)
        self._settle()

    def cut(self, actor: Actor, end: End) -> None:
        """End what an actor does, at the statement before which it stands."""
        self._count(COUNTED[end])
        self.tell(f"{actor.name}: {actor.doing}: {end} at: {_short(actor.at)}")
        actor.go(0 if end is End.KILLED else FOREVER, end)
        self._settle()

    def come_late(self, step: Step) -> None:
        """A step whose claim is not the current one, alone and whole: it changes nothing (I6)."""
        self._count("late steps")
        self.tell(f"late: {step.doing}")
        before = self._theatre.database.dump()
        self.alone(step)
        after = self._theatre.database.dump()
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        assert not changed, f"{step.doing} came late, and has changed {', '.join(sorted(changed))}"

    def happens(self, what: str, do: Callable[[], None]) -> None:
        """Something outside changes."""
        self._count("changes of the world")
        self.tell(what)
        do()

    def migrate(self) -> None:
        """A person migrates to the next spec; where somebody stands who has locked a table, that comes to nothing."""
        theatre, world = self._theatre, self.world
        number = world.migrated + 1
        self._count("migrations")
        self.tell(f"migrate to spec {number}")
        try:
            theatre.migrated.add(world.shape)
            migrate(theatre.url, [spec_of(world.shape, number, world.version, world.size)])
        except Locked as error:
            self._count("migrations that met a lock")
            self.tell(_line(error))
            return
        world.migrated = number
        theatre.watch.show(SHAPES[world.shape].sinks(number))
        self.look()

    def go_back(self, seen: Seen) -> None:
        """The ledger was restored to what was seen then."""
        self._count("restores")
        self._theatre.watch.go_back(seen)
        now = self.look()
        assert (now.head, now.contents) == (seen.head, seen.contents), f"{seen} was restored, and is {now}"

    def pass_time(self, seconds: int) -> None:
        self._theatre.database.pass_time(seconds)

    def abandon(self) -> None:
        """Let all actors die: the schedule has failed."""
        self._troupe.settle()
        while self.standing:
            self.standing[0].go(0, End.KILLED)
            self._troupe.settle()
        self._troupe.release()

    def finish(self) -> None:
        """Faults are over: all that still goes on ends, and runs that are triggered finish the rest (I10)."""
        self.tell("the faults are over")
        while self.standing:
            self.standing[0].go(FOREVER)
            self._settle()
        for run in self.world.runs:
            run.is_active = False
        self.pass_time(LEASE_SECONDS + 1)
        self.world.version, self.world.spec_number = "two", self.world.migrated
        self._decide_on_topics()
        for _ in range(ROUNDS):
            # Maintenance goes on all the time; it moves the head over a void whose process has died.
            maintain(self._theatre.ledger, self.world.spec, self.world.is_active)
            self._theatre.watch.look()
            wanted = wants_another_run(self._theatre.ledger, self.world.spec, self.world.offsets, self.world.is_active)
            assert bool(wanted) == self._is_work_left(), f"another run is wanted: {wanted}"
            if not wanted and self._theatre.watch.last.paused_behind is not None:
                self.tell("a person lets the line go on")
                resume(self._theatre.ledger, self.world.spec, "a person said so", "a person")
                continue
            if self.is_all_over():
                break
            self.run_alone()
        else:
            raise AssertionError(f"after {ROUNDS} more runs there is still work: {self._theatre.watch.look()}")
        self._nothing_is_left()
        self._count("finished")
        self._count("transactions", self._theatre.watch.last.last_txid)
        self._count("releases", sum(row.releases is not None for row in self._theatre.watch.last.transactions.values()))
        self._count("revisions", len(self._theatre.watch.last.transactions) - self._theatre.watch.last.last_txid)

    def _decide_on_topics(self) -> None:
        """A person puts back what the line cannot do without, leaves what else the spec does not name, and in every
        other schedule puts all of it back then.
        """
        seen, world = self.look(), self.world
        if seen.names and not {*seen.names} & {*world.logs.named}:
            world.logs.name(seen.names[0])
        if {*seen.names} - seen.left - {*world.logs.named}:
            self.alone(world.leave())
        if len(world.runs) % 2:
            for topic in sorted({*seen.names} - {*world.logs.named}):
                world.logs.name(topic)

    def _count(self, what: str, number: int = 1) -> None:
        self._theatre.counted[what] += number

    def _settle(self) -> None:
        """Wait until all stand still, look after every COMMIT, and hear who has ended."""
        self._troupe.settle(self.look)
        self._count("moments at which somebody waited for a lock", bool(self._troupe.waiting))
        for actor in self._troupe.idle():
            step = self.steps.pop(actor, None)
            if step is not None:
                self._hear(actor, step)

    def look(self) -> Seen:
        """What a reader sees now, which is held against the reference."""
        before, seen = self._theatre.watch.last, self._theatre.watch.look()
        self._count("snapshots")
        self._count("topics joined", len(seen.joined - before.joined))
        self._count("topics left", len(seen.left - before.left))
        self._count("topics came back", len((before.left - seen.left) & {*seen.names}))
        return seen

    def _hear(self, actor: Actor, step: Step) -> None:
        said = actor.said
        if isinstance(said, Killed):
            return
        self.tell(f"{actor.name}: {step.doing}: said: {_line(said)}")
        if isinstance(said, LedgerUnreachable):
            # I12: what may have taken effect is told from what has not.
            assert isinstance(said, OutcomeUnknown) == (actor.lost_at == COMMIT), (
                f"lost at {actor.lost_at}, said {said}"
            )
        if isinstance(said, RatchetError):
            known = (*TOLD, *logs.TOLD, *sending.TOLD, *(restores.TOLD if self.restores.is_over else ()))
            is_known = isinstance(said, LedgerUnreachable) or any(re.search(each, str(said)) for each in known)
            assert is_known, f"{step.doing} was told what nobody should be: {_line(said)}"
            untrue = None if self.restores.is_before(step) else step.untrue(said, self._theatre.watch.last)
            assert untrue is None, f"{step.doing} was told {_line(said)}, but {untrue}"
            step.failed(said)
            return
        if isinstance(said, Exception):
            raise AssertionError(f"{step.doing} ended with an error that tells a user nothing: {said!r}") from said
        # I12: what is told is so.
        is_before = self.restores.is_before(step)
        unkept = None if is_before else step.unkept(said, self._theatre.watch.last)
        assert unkept is None, f"{step.doing} said {_line(said)}, but {unkept}"
        self._count_commit(said)
        step.then(said)
        if is_before:
            self.world.forget_transactions()

    def _count_commit(self, said: Any) -> None:
        """What a schedule is for: commits that took effect, of one or several transactions, or waited for another."""
        match said:
            case (Claim(), Committed(txids=txids)) if txids:
                self._count(COMMITS)
                self._count(GROUPS, len(txids) > 1)
            case (Claim(), Waits()):
                self._count(WAITS)
            case Outcome(move=Move.PAUSE_AT):
                self._count("pauses")
            case Skipped(reason=Skip.PAUSED):
                self._count("begins that met a pause")

    def run_alone(self) -> None:
        """A whole run, which nothing disturbs."""
        ledger, world = self._theatre.ledger, self.world
        spec = world.spec.model_copy(update=AT_ONCE)
        of = world.new_run()
        self.tell(f"{of.run}: a whole run ({world.version})")
        try:
            of.begun = begin(ledger, spec, of.run, world.offsets, world.is_active)
        except Halted as error:
            of.is_active = False
            self.tell(f"{of.run}: {_line(error)}")
            void(ledger, spec, self._theatre.watch.look().halted(), "a person said so", "a person")
            return
        self.do_alone(of)

    def do_alone(self, of: AirflowRun) -> None:
        """All tasks of a run after its begin."""
        for number in of.slices:
            self.alone(self.world.process(of, number))
            of.done.add(number)
        if of.slices:
            self.alone(self.world.commit(of))
            self.alone(self.world.settle(of, succeeded=True))
        of.is_active = False
        self.look()

    def alone(self, step: Step) -> Any:
        """A step that nothing disturbs; None where it was told an error."""
        try:
            return step.job(self._theatre.ledger)
        except RatchetError as error:
            self.tell(f"{step.doing}: said: {_line(error)}")
            return None

    def is_all_over(self) -> bool:
        """Whether all that is in the log is committed or voided, and no revision is half done or asked for."""
        seen = self._theatre.watch.last
        return self.is_all_taken() and not seen.replays and all(map(_is_over, seen.newest().values()))

    def _is_work_left(self) -> bool:
        """Whether a run would find something to do that nobody does: what waits behind a halt or a pause is left."""
        seen = self._theatre.watch.look()
        halted, paused = seen.halted(), seen.paused_behind
        reach = min(FOREVER if halted is None else halted - 1, FOREVER if paused is None else paused)
        unfinished = [row for row in seen.newest().values() if not _is_over(row)]
        is_due = seen.replays and not seen.revisions_going_on()
        is_room = halted is None and seen.last_txid < reach and not self.is_all_taken()
        return bool(is_due) or is_room or any(row.revision or row.txid <= reach for row in unfinished)

    def is_all_taken(self) -> bool:
        """Whether a transaction has taken all that is in the log."""
        seen = self._theatre.watch.last
        reached = {place_in(seen.names, p): at for p, at in seen.reached.items()}
        return all(reached.get(place, 0) == at for place, at in self.world.logs.wanted.items())

    def _nothing_is_left(self) -> None:
        """Of the work that is done there is nothing but its result, and the ledger says the same of that."""
        ledger = self._theatre.ledger
        self.pass_time(int(KEEP_DELTAS.total_seconds()) + 1)
        maintain(ledger, self.world.spec, self.world.is_active)
        seen = self._theatre.watch.look()
        assert self.is_all_over() and seen.head == seen.last_txid
        starts = {place_in(seen.names, p): at for p, at in seen.starts.items()}
        has_begun = self.world.logs.has_begun(self.world.spec.source, starts, seen.joined)
        assert has_begun, f"by begin={self.world.logs.rule} it has begun at {starts}, and {seen.joined} have joined"
        assert self._theatre.database.left() == []
        assert self._theatre.database.ended() <= self.world.settled, "a run has ended that nobody has settled"
        assert self._theatre.database.unmerged(self.world.spec) == []
        assert self._theatre.database.neighbours() == self._theatre.neighbours, "another line is not what it was"
        spec, done = self.world.spec, set()
        make = make_of(spec, self.world.version)

        def run(works: Sequence[SliceWork]) -> dict[str, tuple[int, int]]:
            for work in works:
                assert work.token not in done, f"{work.token} is recomputed twice"
                done.add(work.token)
            return recomputed(spec, self.world.logs.records_of(works), of_line(make, seen.names))

        again = recompute(ledger, spec, run)
        assert [fault for check in [*verify(ledger, spec), again] for fault in check.faults] == []


def _is_over(row: Any) -> bool:
    """Committed, voided, or a revision that was given up."""
    return row.state in (State.COMMITTED, State.VOIDED) or (row.revision > 0 and row.halted_at is not None)


def _short(statement: str) -> str:
    return statement if len(statement) <= 90 else f"{statement[:87]}..."


def _line(said: Any) -> str:
    if isinstance(said, tuple):
        return _line(said[-1])
    if isinstance(said, Exception):
        return f"{type(said).__name__}: {said}"
    return getattr(said, "message", str(said))
