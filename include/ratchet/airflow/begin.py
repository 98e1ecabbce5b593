"""begin: the task that finds this run's transaction and hands its slices to the mapped tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from ratchet.airflow import connections, halted
from ratchet.airflow.another import start_another
from ratchet.airflow.run import activity, run_of, working_on
from ratchet.airflow.started import drains
from ratchet.errors import Halted
from ratchet.logs import about, get_logger


class BeginOperator(BaseOperator):
    """Resume, adopt or allocate a transaction, else skip the run; and start another run if that leaves work for one.

    Returns all slices of its plan in slice order, `[{"slice": 0, "name": "flights-0 [120,240)", "of": "12"}, …]`, `of`
    being the transaction: Airflow maps by position. All three connections are looked up first, so that a missing one
    costs no txid.
    """

    def __init__(self, *, pipeline: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def execute(self, context: Any) -> list[dict[str, Any]]:
        from ratchet.ledger.connection import Ledger
        from ratchet.protocol.begin import begin
        from ratchet.protocol.begun import Skipped
        from ratchet.source.kafka import Kafka
        from ratchet.spark.intake import spark_instead

        log = get_logger()
        run, params = run_of(context), context["params"]
        with working_on(self.pipeline) as spec:
            in_clear = connections.spark_target(spec.spark).in_clear
            if in_clear:
                log.warning(in_clear)
            kafka = connections.kafka_properties(spec.kafka, log.info)
            instead = spark_instead(spec.source, kafka)
            if instead:
                log.info(f"Spark's Kafka source reads the records: {instead}")
            if params.get("reason"):
                log.info(f"run {run} was started because: {params['reason']}")
            with Ledger(connections.ledger_url(spec.ledger)) as ledger, Kafka(kafka) as brokers:
                offsets = partial(brokers.offsets, spec.source)
                try:
                    begun = begin(
                        ledger,
                        spec,
                        run,
                        offsets,
                        activity(context["ti"]),
                        params.get("max_records"),
                        context["dag_run"].data_interval_end,
                        drains=drains(context),
                    )
                except Halted:
                    halted.tell(ledger, spec, run.run_id)
                    raise
                is_skipped = isinstance(begun, Skipped)
                with about(spec.name if is_skipped else begun.claim):
                    log.info(begun.message)
                # Also where it is skipped: others have left it to this run.
                start_another(context, ledger, spec, offsets, 0 if is_skipped else begun.claim.txid, besides=1)
            if isinstance(begun, Skipped):
                raise AirflowSkipException(begun.message)
            claim = begun.claim
            of = f"{claim.txid}, revision {claim.revision}" if claim.revision else f"{claim.txid}"
            return [{"slice": part.number, "name": part.name, "of": of} for part in begun.slices]
