"""The maintenance DAG: every minute, a few tasks keep the lines of all pipelines going and clean."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from ratchet.airflow import connections, halted
from ratchet.airflow.run import START, activity, run_of, withheld
from ratchet.airflow.started import begins_to_come, is_paused, run_id_for, start_run
from ratchet.errors import BrokerUnreachable, GroupHasMembers, Locked, NotGranted, RatchetError, UnknownTopic
from ratchet.ledger.work import Run, counted, turn_of
from ratchet.logs import about, get_logger, quiet_clients
from ratchet.spec.loading import read_specs
from ratchet.spec.pipeline import Pipeline

if TYPE_CHECKING:
    from ratchet.ledger.connection import Ledger
    from ratchet.operate.attention import Standing
    from ratchet.source.kafka import Kafka

T = TypeVar("T")
PIPELINES_PER_TASK = 500
"""A task looks at so many; of one that is idle it knows so by a few queries over all of them."""
PASS_SECONDS = 240.0
"""After so long a task begins nothing more that can wait for the next minute's."""
SILENT = 3
"""After so many pipelines for which Kafka did not answer it is not asked for the others: each takes ten seconds."""
LOCK_SECONDS = 5.0
"""So long a pipeline's upkeep waits for a lock: whoever has it for longer is at work, and others wait behind."""

DESCRIPTION = """
Every minute, for each pipeline:

- epochs that are past their deadline are aborted, and claims of lost runs are ended;
- stages of finished transactions are discarded, deltas older than `keep_deltas` are compacted, and rows that are older
  than their sink keeps them are deleted;
- the consumer group `ratchet-NAME` is set to where the ledger stands, for monitoring tools;
- a compacted topic is looked at, by which is told until when its deletions can be read;
- a run is started if work lies abandoned, if records are due that a schedule or a person has asked for and no run is
  active, or if a revision is asked for.

A task works through up to 500 pipelines; what it has done for one is in its log with that one's name. What fails for
one holds up no other, and the task fails in the end and names it. Nothing is lost while it is paused: runs do the same
for themselves, only later.
"""


def maintenance_dag(pipelines: int) -> DAG:
    """A task for each 500 pipelines. Nothing is read or connected to here."""
    with DAG(
        "maintenance",
        description="Keeps every pipeline's line going and clean",
        schedule="* * * * *",
        start_date=START,
        catchup=False,
        max_active_runs=1,
        # Else one whose task is never started, for whatever reason, would be the last.
        dagrun_timeout=timedelta(minutes=15),
        tags=["ratchet"],
        doc_md=DESCRIPTION,
        default_args={
            "owner": "ratchet",
            # The next minute is the next try.
            "execution_timeout": timedelta(minutes=10),
            # Before the tasks of runs, which may wait for what it frees.
            "priority_weight": 100,
        },
    ) as dag:
        parts = max(1, -(-pipelines // PIPELINES_PER_TASK))
        for part in range(parts):
            UpkeepOperator(task_id=f"upkeep_{part}", part=part, parts=parts)
    return dag


class UpkeepOperator(BaseOperator):
    """Do the upkeep of each `parts`-th pipeline from `part` on, and start runs that are due."""

    def __init__(self, *, part: int, parts: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.part, self.parts = part, parts

    def execute(self, context: Any) -> None:
        quiet_clients()
        specs, faults = read_specs()
        for fault in faults:
            get_logger().warning(f"no upkeep for a spec that cannot be read: {fault}")
        mine = sorted(specs.values(), key=lambda spec: spec.name)[self.part :: self.parts]
        upkeep = Pass(context)
        for connection, of in groupby(sorted(mine, key=lambda spec: spec.ledger), key=lambda spec: spec.ledger):
            upkeep.run(connection, list(of))
        get_logger().info(
            f"looked at {counted(len(mine), 'pipeline')}: {upkeep.needy} needed something, "
            f"{counted(upkeep.started, 'run')} started"
        )
        if upkeep.failed:
            said = "; ".join(f"{name}: {why.removeprefix(f'{name}: ')}" for name, why in sorted(upkeep.failed.items()))
            of = counted(len(mine), "pipeline")
            raise AirflowFailException(f"the upkeep of {len(upkeep.failed)} of {of} failed: {said}")


class Pass:
    """One minute's upkeep of many pipelines: what fails for one is kept in `failed`, and holds up no other."""

    def __init__(self, context: Any):
        self._context, self._ti = context, context["ti"]
        self._is_active = activity(self._ti)
        self._until = monotonic() + PASS_SECONDS
        self._wanted: dict[str, str] = {}
        """Why a run should be started, of the pipelines of which one should."""
        self._halted: set[str] = set()
        self.failed: dict[str, str] = {}
        self.needy = self.started = 0

    def run(self, connection: str, specs: list[Pipeline]) -> None:
        """The pipelines whose ledger an Airflow connection names.

        What frees or starts work comes first for all of them, then what only cleans up.
        """
        from ratchet.ledger.connection import Ledger
        from ratchet.operate import attention

        with self._for_all(specs), Ledger(connections.ledger_url(connection), lock_seconds=LOCK_SECONDS) as ledger:
            with ledger.begin() as conn:
                # By itself: it locks the lines, as a commit does.
                attention.been_here(conn, [spec.name for spec in specs])
            with ledger.begin() as conn:
                needy = attention.in_need(conn, specs)
            self.needy += len(needy)
            # Where the time is over before all are done, they are not always the same.
            some = random.sample([spec for spec in specs if spec.name in needy], k=len(needy))
            for spec in some:
                with self._for(spec):
                    self._upkeep(ledger, spec)
            with ledger.begin() as conn:
                standings = attention.standings(conn, [spec.name for spec in specs])
            # What lies abandoned does not wait for Kafka.
            self._start_wanted(specs, standings)
            for kafka, of in groupby(sorted(specs, key=lambda spec: spec.kafka), key=lambda spec: spec.kafka):
                self._kafka(ledger, kafka, list(of), standings)
            self._start_wanted(specs, standings)
            # Whom they tell may take long to answer.
            for spec in [spec for spec in some if spec.name in self._halted]:
                if monotonic() < self._until:
                    with self._for(spec):
                        halted.tell(ledger, spec, "maintenance")
            for spec in some:
                with self._for(spec):
                    self._clean(ledger, spec)

    def _start_wanted(self, specs: list[Pipeline], standings: dict[str, Standing]) -> None:
        for spec in specs:
            why = self._wanted.pop(spec.name, None)
            if why is not None:
                with self._for(spec):
                    standing = standings.get(spec.name)
                    self._start(spec, turn_of(standing.line.head if standing else 0), why)

    def _upkeep(self, ledger: Ledger, spec: Pipeline) -> None:
        from ratchet.operate.upkeep import upkeep
        from ratchet.protocol import halts
        from ratchet.protocol.another import abandoned_work, asked_revision
        from ratchet.protocol.halt import why_halted

        if monotonic() > self._until:
            get_logger().info("the time is over; the next minute goes on")
            return
        for line in upkeep(ledger, spec, self._is_active, connections.opener(spec)):
            get_logger().info(line)
        with ledger.begin() as conn:
            halt = halts.halt(conn, spec.name)
        if halt:
            get_logger().warning(why_halted(halt))
            self._halted.add(spec.name)
        wanted = abandoned_work(ledger, spec, self._is_active) or asked_revision(ledger, spec)
        if wanted:
            self._wanted[spec.name] = wanted.message

    def _kafka(self, ledger: Ledger, connection: str, specs: list[Pipeline], standings: dict[str, Standing]) -> None:
        """Mirror the offsets, and look where records wait that no run takes: Kafka is asked for all, then for some."""
        from ratchet.operate.attention import may_have_records, may_want_records
        from ratchet.source.kafka import Kafka

        at = {spec.name: standings.get(spec.name) for spec in specs}
        looking = [s for s in specs if s.name not in self._wanted and may_want_records(s, at[s.name])]
        shown = {name: standing.reached for name, standing in at.items() if standing and standing.reached}
        compacted = [spec for spec in specs if spec.source.compacted and at[spec.name]]
        if not looking and not shown and not compacted:
            return
        with self._for_all(specs), Kafka(connections.kafka_properties(connection)) as brokers:
            topics = {name: standing.line.topics for name, standing in standings.items()}
            asked = {name for spec in looking for name in topics[spec.name].names}
            stable = _unless_told_apart(lambda: brokers.stable_of(asked))
            groups = [f"ratchet-{spec.name}" for spec in specs if spec.name in shown]
            mirrored = _unless_told_apart(lambda: brokers.mirrored_of(groups))
            steps: list[tuple[Pipeline, Callable[[], None]]] = [
                (spec, partial(self._mirror, ledger, spec, brokers))
                for spec in specs
                if spec.name in shown
                and (
                    not _shows(mirrored.get(f"ratchet-{spec.name}", {}), topics[spec.name].places(shown[spec.name]))
                    or standings[spec.name].is_between
                )
            ]
            for spec in looking:
                standing, of = standings[spec.name], topics[spec.name]
                names = [each.name for each in of if not each.left]
                ends = {of.partition(name, p): at for name in names for p, at in stable.get(name, {}).items()}
                if not stable.keys() >= {*names} or may_have_records(standing, ends):
                    is_new = not standing.line.last_txid
                    steps.append((spec, partial(self._records, ledger, spec, brokers, is_new=is_new)))
            steps += [(spec, partial(self._look, ledger, spec, brokers)) for spec in compacted]
            silent = 0
            for spec, step in steps:
                if monotonic() > self._until:
                    get_logger().info("the time is over; the next minute asks Kafka again")
                    return
                with self._for(spec):
                    if silent >= SILENT:
                        raise BrokerUnreachable(f"{spec.name}: Kafka did not answer for {silent} others; not asked")
                    try:
                        step()
                    except BrokerUnreachable:
                        silent += 1
                        raise

    def _mirror(self, ledger: Ledger, spec: Pipeline, brokers: Kafka) -> None:
        from ratchet.operate.upkeep import mirror

        try:
            mirrored = mirror(ledger, spec, brokers)
        except (GroupHasMembers, NotGranted) as error:
            # What monitoring tools see is no reason to leave records waiting.
            get_logger().warning(f"{error}")
            return
        if mirrored:
            get_logger().info(mirrored)

    def _look(self, ledger: Ledger, spec: Pipeline, brokers: Kafka) -> None:
        """Look at a compacted topic whose line may be quiet, by which is told that no deletion is missed."""
        from ratchet.protocol.tombstones import attend

        attend(ledger, spec, partial(brokers.offsets, spec.source))

    def _records(self, ledger: Ledger, spec: Pipeline, brokers: Kafka, *, is_new: bool) -> None:
        """Look how many records wait, if no run is active that would take them."""
        from ratchet.protocol.another import waiting_records

        if self._ti.get_dr_count(dag_id=spec.name, states=["running"]):
            return
        try:
            waiting = waiting_records(ledger, spec, partial(brokers.offsets, spec.source))
        except UnknownTopic as error:
            # Of a line that has not begun the topic may come with its first records.
            if not is_new:
                raise
            get_logger().warning(f"{error}")
            return
        if waiting:
            self._wanted[spec.name] = waiting.message

    def _start(self, spec: Pipeline, turn: int, why: str) -> None:
        if begins_to_come(spec.name, soon=True):
            get_logger().info(f"no run is due, as one is about to begin: {why}")
            return
        by = run_of(self._context)
        if begins_to_come(spec.name):
            if is_paused(spec.name):
                get_logger().info(f"no run is due, as one is there and its DAG is paused: {why}")
                return
            # One that is queued may be for tomorrow. By an id of its own, since more would only pile up behind it.
            by = Run(spec.name, "instead of others")
        run_id = run_id_for("maintenance", turn, by)
        get_logger().info(f"starts run {run_id}: {why}")
        start_run(spec.name, run_id, why)
        self.started += 1

    def _clean(self, ledger: Ledger, spec: Pipeline) -> None:
        from ratchet.operate.upkeep import clean

        if monotonic() < self._until:
            for line in clean(ledger, spec):
                get_logger().info(line)

    @contextmanager
    def _for(self, spec: Pipeline) -> Iterator[None]:
        """What is done for one pipeline: its lines name it, and an error ends this alone."""
        with about(spec.name):
            try:
                with withheld(spec):
                    yield
            except Exception as error:
                self._fail(spec, error)

    @contextmanager
    def _for_all(self, specs: list[Pipeline]) -> Iterator[None]:
        """What is asked for many pipelines at once."""
        try:
            yield
        except Exception as error:
            for spec in specs:
                self._fail(spec, error)

    def _fail(self, spec: Pipeline, error: Exception) -> None:
        if isinstance(error, Locked):
            get_logger().info("somebody is at work on this line and has it locked; the next minute goes on")
        elif isinstance(error, RatchetError):
            get_logger().error(f"{error}")
            self.failed.setdefault(spec.name, f"{error}")
        else:
            get_logger().exception(f"{type(error).__name__}: {error}")
            self.failed.setdefault(spec.name, f"{type(error).__name__}: {error}")


def _shows(mirrored: Mapping[tuple[str, int], int], reached: Mapping[tuple[str, int], int]) -> bool:
    """Whether a consumer group has the offsets that the ledger has reached."""
    return {place: mirrored.get(place) for place in reached} == reached


def _unless_told_apart(ask: Callable[[], dict[str, T]]) -> dict[str, T]:
    """What Kafka says of many; nothing where it refuses because of one of them, so that each is asked for by itself."""
    try:
        return ask()
    except RatchetError as error:
        get_logger().info(f"asked for each by itself: {error}")
        return {}
