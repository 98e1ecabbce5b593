"""The DAG run as a task sees it: which Run it is, which other runs live, and how its errors end it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError

from ratchet.errors import WORTH_ANOTHER_TRY, RatchetError
from ratchet.ledger.work import Run
from ratchet.logs import about, get_logger, quiet_clients
from ratchet.spec.loading import load_pipeline
from ratchet.values.withheld import kept_out

if TYPE_CHECKING:
    from ratchet.protocol.claims import IsActive
    from ratchet.spec.pipeline import Pipeline

START = datetime(2025, 1, 1, tzinfo=UTC)
"""Where a DAG starts: fixed, as Airflow asks for a date; with catchup off it means nothing."""
_ENDED = ("success", "failed")


def run_of(context: Any) -> Run:
    """The DAG run and clear number that this task belongs to."""
    dag_run = context["dag_run"]
    return Run(dag_run.dag_id, dag_run.run_id, dag_run.clear_number or 0)


def activity(task_instance: Any) -> IsActive:
    """A function that asks Airflow whether a run is queued or running; only a clear no counts as no."""

    def is_active(dag_id: str, run_id: str) -> bool:
        try:
            state = task_instance.get_dagrun_state(dag_id=dag_id, run_id=run_id)
        except AirflowRuntimeError as error:
            if _says_deleted(error):
                return False
            get_logger().warning(f"run {run_id} counts as active: Airflow does not say what became of it")
            return True
        return str(getattr(state, "value", state)) not in _ENDED

    return is_active


def _says_deleted(error: AirflowRuntimeError) -> bool:
    detail = error.error.detail or {}
    return detail.get("status_code") == 404 and "not_found" in str(detail.get("detail"))


@contextmanager
def working_on(pipeline: str) -> Iterator[Pipeline]:
    """The frame of every task, with the pipeline's spec: its lines name the pipeline, clients are quiet, and errors end
    it as they should, without values of records where the spec keeps them out.
    """
    quiet_clients()
    with about(pipeline), final_errors():
        spec = load_pipeline(pipeline)
        with withheld(spec):
            yield spec


def withheld(spec: Pipeline) -> AbstractContextManager[None]:
    """The edge that values of records do not pass with an error, where the spec keeps them out."""
    # Airflow's own say nothing of records.
    return kept_out(spec.private, AirflowException, AirflowRuntimeError)


@contextmanager
def final_errors() -> Iterator[None]:
    """End the task without further tries for every error that trying again cannot mend."""
    try:
        yield
    except WORTH_ANOTHER_TRY as error:
        get_logger().warning(f"{error} ({error.code})")
        raise
    except RatchetError as error:
        said = f"{error} ({error.code})"
        # The lines of a person's own code that led to it.
        get_logger().error("\n".join([said, *getattr(error, "__notes__", ())]))
        raise AirflowFailException(said) from None
