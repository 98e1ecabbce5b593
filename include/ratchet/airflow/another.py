"""Another run: begin and settle start one while work is left that no run is about to take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError

from ratchet.airflow.run import activity, run_of
from ratchet.airflow.started import begins_to_come, run_id_for, start_run
from ratchet.errors import RatchetError
from ratchet.logs import get_logger

if TYPE_CHECKING:
    from ratchet.ledger.connection import Ledger
    from ratchet.protocol.begin import KafkaOffsets
    from ratchet.spec.pipeline import Pipeline


def start_another(
    context: Any, ledger: Ledger, spec: Pipeline, kafka_offsets: KafkaOffsets, txid: int, *, besides: int = 0
) -> None:
    """Start one more run of the same DAG if the ledger wants one, and no run is about to begin that would do it.

    Where records start runs, these are the triggerer's to look for. `besides` is how many of the begins that have not
    ended are the caller's own. The run's id follows from the task, `txid` and the run, so that a repeat changes
    nothing. What fails here is said and fails no task: the maintenance starts the run.
    """
    from ratchet.protocol.another import wants_another_run

    log, ti = get_logger(), context["ti"]
    try:
        wanted = wants_another_run(ledger, spec, None if spec.runs else kafka_offsets, activity(ti))
        if wanted is None:
            return
        coming = begins_to_come(spec.name) - besides
        if coming > 0:
            log.info(f"starts no run, as {coming} are about to begin: {wanted.message}")
            return
        run_id = run_id_for(ti.task_id, txid, run_of(context))
        log.info(f"starts run {run_id}: {wanted.message}")
        start_run(spec.name, run_id, wanted.message)
    except (RatchetError, AirflowRuntimeError) as error:
        log.warning(f"whether another run is wanted was not to be learned; the maintenance looks again: {error}")
