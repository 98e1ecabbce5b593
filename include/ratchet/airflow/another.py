"""next and more: the tasks that start one more run while records wait or work lies abandoned."""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk.exceptions import AirflowSkipException

from ratchet.airflow import connections
from ratchet.airflow.run import activity, run_of, working_on
from ratchet.airflow.started import run_id_for
from ratchet.logs import about, get_logger


class AnotherRunOperator(TriggerDagRunOperator):
    """One more run of the same DAG if the ledger wants one; else skipped, saying why.

    The run's id follows from who asks for it, so that a repeat changes nothing.
    """

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
                self.trigger_run_id = run_id_for(self.task_id, claim.txid, run)
                get_logger().info(f"starts run {self.trigger_run_id}: {wanted.message}")
                # Airflow's supervisor does it when this task ends.
                super().execute(context)
