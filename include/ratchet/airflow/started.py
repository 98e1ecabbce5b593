"""Runs that are started here: how they are, and what tells them from others."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from ratchet.ledger.work import Run

BEGIN = "begin"
"""The task that decides what its run does."""
_NOT_ENDED = [
    "null",
    *("scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule"),
]
"""The states of a task that is still to decide; `null` is how Airflow's API writes that it has none yet."""
_ABOUT_TO = ["scheduled", "queued", "running", "restarting"]
"""Those of a task that decides within moments. The others may last: a run may be for tomorrow, or its DAG paused."""


def start_run(pipeline: str, run_id: str, why: str) -> None:
    """Have Airflow's supervisor start a run at once, unless there is one of this id; its note says why."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import TriggerDagRun

    # It answers with an error, and raises none, where the run is there already.
    task_runner.SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=pipeline, run_id=run_id, note=why))


def begins_to_come(pipeline: str, *, soon: bool = False) -> int:
    """How many runs of the pipeline have a begin that has not ended: each may take what waits. With `soon`, only those
    whose begin is about to decide.
    """
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import GetTICount, TICount

    asked = GetTICount(dag_id=pipeline, task_ids=[BEGIN], states=_ABOUT_TO if soon else _NOT_ENDED)
    answer = task_runner.SUPERVISOR_COMMS.send(asked)
    # Of an answer that tells of nothing, a run too many is the harmless reading.
    return answer.count if isinstance(answer, TICount) else 0


def is_paused(pipeline: str) -> bool:
    """Whether the pipeline's DAG is paused, so that none of its runs begins."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import DagResult, GetDag

    answer = task_runner.SUPERVISOR_COMMS.send(GetDag(dag_id=pipeline))
    return isinstance(answer, DagResult) and answer.is_paused


OWN = re.compile(r"(begin|settle|maintenance)_\d+_[0-9a-f]{6}")
"""The ids of runs that are started here."""


def drains(context: Any) -> bool:
    """Whether the run was started here, and not by a schedule, an asset, a person or a DAG of theirs."""
    dag_run = context["dag_run"]
    return dag_run.run_type == "operator_triggered" and OWN.fullmatch(dag_run.run_id) is not None


def run_id_for(task_id: str, txid: int, run: Run) -> str:
    """The id of the run that this task may start: `begin_12_5f0c21`."""
    asked_by = hashlib.sha256(f"{run.run_id}#{run.clear_number}".encode()).hexdigest()[:6]
    return f"{task_id}_{txid}_{asked_by}"
