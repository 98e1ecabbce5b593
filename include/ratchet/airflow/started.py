"""Runs that are started here: how they are, and what tells them from others."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from ratchet.ledger.work import Run


def start_run(pipeline: str, run_id: str) -> None:
    """Have Airflow's supervisor start a run at once, unless there is one of this id: a task's end starts only one."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import TriggerDagRun

    # It answers with an error, and raises none, where the run is there already.
    task_runner.SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=pipeline, run_id=run_id))


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
