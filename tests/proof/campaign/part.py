"""One part of a campaign: the stack, its load, what happens to it, and whether all is as it should be in the end."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from unittest.mock import patch

import psutil

from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.operate.verify import verify
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.acceptance.runs import MAINTENANCE
from tests.acceptance.transforms import HOLDS
from tests.proof.faults.fault import Fault
from tests.proof.faults.kinds import STEPS, faults
from tests.proof.faults.network import Unreachable
from tests.proof.faults.servers import WorkerKilled, WorkerStopped
from tests.proof.faults.shaken import answers
from tests.proof.faults.world import World
from tests.proof.parts import Part, commit
from tests.proof.points import inject
from tests.proof.points.inject.ratchet_points import points
from tests.proof.witness.comparison import Testimony, examine
from tests.proof.witness.console import Unread
from tests.until import until

from .commits import Commits
from .deployed import DIRECTORY
from .line import GIVEN_UP, PIPELINES, CampaignLine
from .people import People
from .producers import PARTITIONS, SENT, Producers, create_topics
from .readers import Readers
from .record import STRUCK, Comparison, FaultRecord, Machine, PartRecord, Readings
from .restore import Committed, LedgerRestored
from .sent import SentLine
from .steps import Steps, killed_at_steps
from .strikes import Hand

LINES = {**PARTITIONS, **SENT}
"""{pipeline: the partitions of its topic}."""
READERS = 8
LEARN_SECONDS = 60
"""So long processes are watched before any is killed at a step."""
STRIKE_SECONDS = 34 * 60
"""So long there are faults, at most."""
PRODUCE_SECONDS = 28 * 60
"""In which so many records as are asked for would be committed if nothing happened."""
STARVED_SECONDS = 240
"""When a pipeline has not committed for so long, nobody strikes until it has: faults shall meet all kinds of work."""
DRAIN_SECONDS = 1080
"""Within which all must be committed when the faults are over."""
DISK_MB = 6_000
SLOTS = 4
"""So many tasks Airflow runs at once: with more of them two processors are shared out so thinly that heartbeats are
late and a driver that is submitted takes minutes."""


class Campaign:
    """One part: at least so many faults, while at least so many records are committed by producers."""

    def __init__(self, home: Path, part: Part, faults: int, records: int, say: Callable[[str], None]):
        self._home, self._part, self._wanted, self._records, self._say = home, part, faults, records, say
        self._began, self._started = datetime.now(UTC), time.monotonic()
        self._is_over = threading.Event()
        self._seed = part.seed * 1000 + part.number
        self._told: list[FaultRecord] = []
        self._lock = threading.Lock()

    def clock(self) -> float:
        """Seconds since the part began."""
        return round(time.monotonic() - self._started, 2)

    def run(self) -> PartRecord:
        """The record of the part, whatever came of it. Raises what has ended a hand, a person or a reader."""
        steps, deployed = Steps(self._home / "faults"), self._home / "deployed"
        deployed.mkdir(parents=True)
        env = {
            "PYTHONPATH": str(Path(inject.__file__).parent),
            points.DIRECTORY: str(steps.armoury.directory),
            DIRECTORY: str(deployed),
            "AIRFLOW__CORE__PARALLELISM": str(SLOTS),
        }
        with (
            patch.dict(os.environ, {HOLDS: str(self._home.resolve() / "holds")}),
            World(self._home, PIPELINES, env=env, disk_mb=DISK_MB, say=lambda line: None) as world,
            ExitStack() as open_,
        ):
            stack = world.stack
            create_topics(stack.kafka, LINES)
            sent = open_.enter_context(SentLine(world, deployed))
            lines = [open_.enter_context(CampaignLine(name, stack, world.holds, deployed)) for name in PARTITIONS]
            lines.append(sent)
            for line in lines:
                line.ready()
            lines[0].find_dag(MAINTENANCE)
            commits = open_.enter_context(Commits(stack.ledger_url, self.clock))
            people = People(lines, random.Random(f"people {self._seed}"), self._is_over, self.clock)
            specs = [line.widest() for line in lines]
            readers = open_.enter_context(Readers(stack.ledger_url, stack.kafka, specs, READERS, self._seed))
            with Producers(stack.kafka, self._seed, self._rates()) as producers:
                for line in lines:
                    # Of a line that has never run, maintenance knows nothing.
                    line.trigger()

                def restored(lost: Committed) -> None:
                    readers.restored(lost)
                    for line in lines:
                        line.restored()

                restore = LedgerRestored(stack, restored)
                self._strike(world, steps, restore, commits, people, producers)
            self._say(f"{self._struck()} faults are over; what is left is committed")
            left = self._drain(world, lines)
            return self._record(world, lines, sent, commits, producers, readers, people, left)

    def _rates(self) -> dict[str, float]:
        """Records a second for each pipeline, a third of them aborted: enough within PRODUCE_SECONDS."""
        return dict.fromkeys(LINES, self._records / len(LINES) / PRODUCE_SECONDS * 1.6)

    def _strike(
        self,
        world: World,
        steps: Steps,
        restore: LedgerRestored,
        commits: Commits,
        people: People,
        producers: Producers,
    ) -> None:
        """Faults by three hands at once, until there were enough, or it has taken too long."""
        until("every pipeline commits", lambda: {c.pipeline for c in commits.seen} == set(LINES), 600)
        self._is_over.wait(LEARN_SECONDS)
        steps.learn()
        hands = self._hands(world, steps, restore, commits)
        threads = [hand.start() for hand in hands] + [people.start()]
        try:
            self._watch(commits, people, producers)
        finally:
            # Whatever has ended it: what is struck has to be healed.
            self._is_over.set()
            for thread in threads:
                thread.join()
        for one in (*hands, people):
            if one.error is not None:
                raise one.error

    def _watch(self, commits: Commits, people: People, producers: Producers) -> None:
        """Return when there were enough faults and records, it has taken too long, or somebody could not go on."""
        deadline, told = time.monotonic() + STRIKE_SECONDS, 0.0
        while time.monotonic() < deadline and not self._is_over.is_set():
            if producers.committed >= self._records:
                if self._struck() >= self._wanted:
                    break
                # More than are asked for would only keep the processors from what is to be struck.
                producers.slow_down()
            if time.monotonic() - told > 30:
                told = time.monotonic()
                self._say(
                    f"{self._struck()} faults, {producers.committed:,} records "
                    f"committed by producers, {len(commits.seen)} transactions, {len(people.done)} operations"
                )
            self._is_over.wait(1)

    def _hands(self, world: World, steps: Steps, restore: LedgerRestored, commits: Commits) -> list[Hand]:
        """Three: for processes of tasks and workers, for connections and what they lead to, for servers."""
        choice = random.Random(self._seed)
        every = faults(world, self._seed)
        workers = [f for f in every if isinstance(f, WorkerKilled)]
        stopped = [f for f in every if isinstance(f, WorkerStopped)]
        connections = [f for f in every if isinstance(f, Unreachable)]
        rest = [f for f in every if not isinstance(f, WorkerKilled | WorkerStopped | Unreachable)]
        quick: list[Fault] = [*workers, *workers, *killed_at_steps(steps, choice)]
        given = {"quick": (quick, (0.5, 4.0)), "connections": ([*connections, restore], (2.0, 10.0))}
        given["servers"] = ([*rest, *stopped], (5.0, 20.0))
        return [
            Hand(
                name,
                kinds,
                pause,
                random.Random(f"{name} {self._seed}"),
                self._is_over,
                self.clock,
                lambda: any(self.clock() - at > STARVED_SECONDS for at in commits.last().values()),
                self._tell,
            )
            for name, (kinds, pause) in given.items()
        ]

    def _tell(self, fault: FaultRecord) -> None:
        with self._lock:
            self._told.append(fault)

    def _struck(self) -> int:
        """How many faults have struck and are healed."""
        with self._lock:
            return sum(fault.what_happened == STRUCK for fault in self._told)

    def _drain(self, world: World, lines: list[CampaignLine]) -> list[str]:
        """Wait until all is committed and nothing runs any more; what is left then, or did not come to its end."""
        left: list[str] = []

        def await_(what: str, look: Callable[[], object], seconds: float) -> None:
            try:
                until(what, answers(look), max(1, seconds))
            except AssertionError as error:
                left.append(str(error))

        def await_each(what: str, look: Callable[[CampaignLine], object], seconds: float) -> None:
            deadline = time.monotonic() + seconds
            for line in lines:
                await_(f"{line.name}: {what}", partial(look, line), deadline - time.monotonic())

        def await_none(what: str, look: Callable[[], list[str]], seconds: float) -> None:
            found: list[str] = []

            def is_none() -> bool:
                found[:] = look()
                return not found

            await_(f"no {what} is left", is_none, seconds)
            left.extend(f"{what} {one}" for one in found)

        # Some Kafka transactions were left to the broker, which aborts them when their time is over.
        await_each("every record is committed or aborted", CampaignLine.is_decided, STEPS["kafka"] + 60)
        await_each(
            "all that is committed in Kafka is in the sinks",
            lambda line: not (line.finish_deploying() or line.retry_halted() or line.attach()) and line.is_drained(),
            DRAIN_SECONDS,
        )
        await_each("no run is active", lambda line: not line.active(), 300)
        await_none("stage", lambda: [stage for line in lines for stage in line.leftovers()], 300)
        await_none("claim", lambda: [claim for line in lines for claim in line.open_claims()], 120)
        # Maintenance may be at work, and a server may just have started something.
        await_none("session", lines[0].in_the_midst, 120)
        await_none("process", lambda: [f"{p.pid}: {' '.join(p.cmdline())[:80]}" for p in world.strays()], 120)
        return left

    def _record(self, world, lines, sent, commits, producers, readers, people, left) -> PartRecord:
        stack = world.stack
        specs, compared = [line.deployed() for line in lines], []
        for line in lines:
            spec = line.widest()
            self._say(f"{spec.name}: the sinks are held against the topic")
            try:
                compared.append(_told(examine(spec, stack.kafka, stack.ledger_url, plains=line.plains())))
            except Unread as unread:
                # All else that an hour has shown is told.
                left.append(f"nothing is known of {spec.name}'s sinks: {unread}")
        struck = [
            replace(f, recovered_after=commits.recovered(f)) if f.what_happened == STRUCK else f
            for f in sorted(self._told, key=lambda f: f.struck_at)
        ]
        with Ledger(stack.ledger_url) as ledger:
            with ledger.snapshot() as conn:
                chain = [f"{spec.name}: {fault}" for spec in specs for fault in history.verify(conn, spec.name)]
            found = [
                f"{spec.name}: {fault}" for spec in specs for check in verify(ledger, spec) for fault in check.faults
            ]
        self._say(f"{sent.name}: the destinations are held against the sinks")
        found += sent.counted()
        # Of what is voided the witness asks nothing, and here only people void anything.
        found += [f"{line.name}: {said}" for line in lines for said in line.voided() if not said.endswith(GIVEN_UP)]
        return PartRecord(
            commit=commit(),
            seed=self._part.seed,
            part=str(self._part),
            began=self._began,
            ended=datetime.now(UTC),
            machine=Machine(os.cpu_count() or 0, psutil.virtual_memory().total),
            readings=Readings(READERS, readers.snapshots, readers.torn, readers.offsets),
            pipelines=[line.told(producers) for line in lines],
            faults=struck,
            commits=commits.seen,
            operations=people.done,
            comparison=compared,
            sent=sent.sent(),
            left=left,
            history=chain,
            verify=found,
        )


def _told(said: Testimony) -> Comparison:
    """What the witness says, as the report has it."""
    examples = [*said.lost.first, *said.doubled.first, *said.foreign.first, *said.different.first]
    dead = said.rows.get(DEAD_LETTERS, 0)
    totals = (said.lost.total, said.doubled.total, said.foreign.total, said.different.total)
    read = said.records + said.voided
    return Comparison(said.pipeline, read, sum(said.rows.values()) - dead, dead, *totals, examples)
