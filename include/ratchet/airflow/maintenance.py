"""The maintenance DAG: every minute, one task a pipeline keeps its line going and clean."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG

from ratchet.airflow import connections
from ratchet.airflow.another import RunOperator
from ratchet.airflow.factory import START
from ratchet.airflow.run import activity, working_on
from ratchet.errors import GroupHasMembers, NotGranted, UnknownTopic
from ratchet.ledger.work import turn_of
from ratchet.logs import get_logger
from ratchet.spec.pipeline import Pipeline

if TYPE_CHECKING:
    from ratchet.ledger.connection import Ledger
    from ratchet.protocol.another import WaitingRecords

DESCRIPTION = """
Every minute, for each pipeline:

- epochs that are past their deadline are aborted, and claims of lost runs are ended;
- stages of finished transactions are discarded, deltas older than `keep_deltas` are compacted, and rows that are older
  than their sink keeps them are deleted;
- the consumer group `ratchet-NAME` is set to where the ledger stands, for monitoring tools;
- a run is started if work lies abandoned, if records are due and no run is active, or if a revision is asked for.

Nothing is lost while it is paused: runs do the same for themselves, only later.
"""


def maintenance_dag(specs: Iterable[Pipeline]) -> DAG:
    """One task for each pipeline. Nothing is read or connected to here."""
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
        for spec in specs:
            UpkeepOperator(task_id=spec.name, pipeline=spec.name)
    return dag


class UpkeepOperator(RunOperator):
    """Do a pipeline's upkeep, and trigger a run of it if one is due; the task's log says each thing that was done."""

    def execute(self, context: Any) -> None:
        from ratchet.ledger.connection import Ledger
        from ratchet.operate.status import status
        from ratchet.operate.upkeep import upkeep
        from ratchet.protocol.another import abandoned_work, asked_revision

        log, ti = get_logger(), context["ti"]
        with working_on(self.pipeline) as spec:
            is_active = activity(ti)
            with Ledger(connections.ledger_url(spec.ledger)) as ledger:
                for line in upkeep(ledger, spec, is_active):
                    log.info(line)
                standing = status(ledger, spec.name)
                if standing.halt:
                    log.warning(standing.halt)
                wanted = abandoned_work(ledger, spec, is_active)
                # One that is queued will do it; also where the DAG is paused, and more would only pile up.
                wanted = wanted or self._records(ledger, spec, ti, is_new=not standing.last_txid)
                wanted = wanted or asked_revision(ledger, spec)
                if ti.get_dr_count(dag_id=spec.name, states=["queued"]):
                    wanted = None
            if wanted is None:
                log.info("no run is due")
                return
            self.start(context, "maintenance", turn_of(standing.head), wanted.message)

    def _records(self, ledger: Ledger, spec: Pipeline, ti: Any, *, is_new: bool) -> WaitingRecords | None:
        """Mirror the offsets, and look how many records wait if no run is active that would take them."""
        from ratchet.operate.upkeep import mirror
        from ratchet.protocol.another import waiting_records
        from ratchet.source.kafka import Kafka

        with Kafka(connections.kafka_properties(spec.kafka)) as brokers:
            try:
                mirrored = mirror(ledger, spec, brokers)
            except (GroupHasMembers, NotGranted) as error:
                # What monitoring tools see is no reason to leave records waiting.
                get_logger().warning(f"{error}")
                mirrored = None
            if mirrored:
                get_logger().info(mirrored)
            if ti.get_dr_count(dag_id=spec.name, states=["running"]):
                return None
            try:
                return waiting_records(ledger, spec, partial(brokers.offsets, spec.source.name))
            except UnknownTopic as error:
                # Of a line that has not begun the topic may come with its first records.
                if not is_new:
                    raise
                get_logger().warning(f"{error}")
                return None
