"""next and more: the tasks that start one more run while records wait or work lies abandoned."""

from __future__ import annotations

import hashlib
import re
from functools import partial
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk.exceptions import AirflowSkipException

from ratchet.airflow import connections
from ratchet.airflow.run import activity, run_of, working_on
from ratchet.ledger.work import Run
from ratchet.logs import about, get_logger


class RunOperator(TriggerDagRunOperator):
    """Triggers a run of a pipeline's DAG, whose id follows from who asks for it, so that a repeat changes nothing."""

    def __init__(self, *, pipeline: str, **kwargs: Any):
        super().__init__(
            trigger_dag_id=pipeline,
            # Without a logical date Airflow takes the present time, and two such runs can collide.
            logical_date=None,
            skip_when_already_exists=True,
            deferrable=False,
            **kwargs,
        )
        self.pipeline = pipeline

    def start(self, context: Any, name: str, txid: int, why: str) -> None:
        """Trigger run `NAME_TXID_…`; Airflow's supervisor does it when this task ends."""
        self.trigger_run_id = run_id_for(name, txid, run_of(context))
        get_logger().info(f"starts run {self.trigger_run_id}: {why}")
        super().execute(context)


class AnotherRunOperator(RunOperator):
    """One more run of the same DAG if the ledger wants one; else skipped, saying why."""

    def execute(self, context: Any) -> None:
        from ratchet.ledger.connection import Ledger
        from ratchet.protocol import claims
        from ratchet.protocol.another import wants_another_run
        from ratchet.source.kafka import Kafka

        run = run_of(context)
        with working_on(self.pipeline) as spec:
            kafka = connections.kafka_properties(spec.kafka)
            with Ledger(connections.ledger_url(spec.ledger)) as ledger, Kafka(kafka) as brokers:
                claim = claims.claim_of(ledger, run)
                wanted = wants_another_run(
                    ledger,
                    spec,
                    partial(brokers.offsets, spec.source.name),
                    activity(context["ti"]),
                )
            with about(claim):
                if wanted is None:
                    said = f"no other run is started: nothing is due, or {spec.max_in_flight} are in flight"
                    get_logger().info(said)
                    raise AirflowSkipException(said)
                self.start(context, self.task_id, claim.txid, wanted.message)


OWN = re.compile(r"(next|more|maintenance)_\d+_[0-9a-f]{6}")
"""The ids of runs that are started here."""


def drains(context: Any) -> bool:
    """Whether the run was started here, and not by a schedule, an asset, a person or a DAG of theirs."""
    dag_run = context["dag_run"]
    return dag_run.run_type == "operator_triggered" and OWN.fullmatch(dag_run.run_id) is not None


def run_id_for(task_id: str, txid: int, run: Run) -> str:
    """The id of the run that this task may start: `next_12_5f0c21`."""
    asked_by = hashlib.sha256(f"{run.run_id}#{run.clear_number}".encode()).hexdigest()[:6]
    return f"{task_id}_{txid}_{asked_by}"
