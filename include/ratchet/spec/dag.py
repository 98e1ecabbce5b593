"""What a spec passes to its DAG in Airflow, by Airflow's names; what would break the protocol is refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ratchet.spec.reference import References

_ORDER = "order and admission are decided in the ledger; leave it out"
_SLOTS = "a commit that waits for its turn would keep others from it; bound the tasks by a pool, or by max_in_flight"
_DATES = "a line has no dates; pause the DAG, or set Pipeline.schedule"


class _Passed(BaseModel, frozen=True):
    """Arguments that are passed on; those that a person gives are the ones that count."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    instead: ClassVar[Mapping[str, str]]
    """Arguments of Airflow's that are not passed, and what to do instead."""

    @model_validator(mode="before")
    @classmethod
    def _are_passed(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        for name in cast("Mapping[str, object]", given):
            if name in cls.instead:
                raise ValueError(f"{name}: {cls.instead[name]}")
            if name not in cls.model_fields:
                raise ValueError(
                    f"{name!r} is not passed to Airflow; what may be given is {', '.join(cls.model_fields)}"
                )
        return cast(object, given)

    @property
    def given(self) -> dict[str, Any]:
        """What a person has given, by name."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}

    @property
    def references(self) -> dict[str, tuple[str, ...]]:
        """What those name that stand for objects of a person's own."""
        return {name: value for name, value in self.given.items() if isinstance(value, tuple)}


def _listed(given: object) -> object:
    return [given] if isinstance(given, str) else given


class TaskArguments(_Passed, frozen=True):
    """Arguments of every task of a DAG."""

    instead = {
        "depends_on_past": _ORDER,
        "wait_for_downstream": _ORDER,
        "ignore_first_depends_on_past": _ORDER,
        "wait_for_past_depends_before_skipping": _ORDER,
        "trigger_rule": "what follows what is part of the protocol; leave it out",
        "weight_rule": "what is prepared is committed before anything else begins; set priority_weight",
        "max_active_tis_per_dag": _SLOTS,
        "max_active_tis_per_dagrun": _SLOTS,
        "start_date": _DATES,
        "end_date": _DATES,
        "do_xcom_push": "begin hands the slices on by it; leave it out",
        "sla": "Airflow has deadlines in its place; set deadline beside default_args",
    }

    owner: str = "ratchet"
    retries: Annotated[int, Field(ge=0)] = 2
    retry_delay: Annotated[timedelta, Field(ge=timedelta(0))] = timedelta(seconds=5)
    retry_exponential_backoff: Annotated[float, Field(ge=0)] = 0
    max_retry_delay: Annotated[timedelta, Field(gt=timedelta(0))] | None = None
    execution_timeout: Annotated[timedelta, Field(gt=timedelta(0))] | None = None
    pool: str | None = None
    pool_slots: Annotated[int, Field(ge=1)] = 1
    priority_weight: int = 1
    queue: str | None = None
    executor: str | None = None
    executor_config: dict[str, Any] | None = None
    run_as_user: str | None = None
    email: Annotated[list[str], BeforeValidator(_listed)] | None = None
    email_on_failure: bool = True
    email_on_retry: bool = True
    on_execute_callback: References = ()
    on_failure_callback: References = ()
    on_retry_callback: References = ()
    on_skipped_callback: References = ()
    on_success_callback: References = ()


class DagArguments(_Passed, frozen=True):
    """Arguments of a DAG."""

    instead = {
        "dag_id": "it is the pipeline's name",
        "description": "set Pipeline.description",
        "doc_md": "the DAG's page shows Pipeline.description, in Markdown, before what is made of the spec",
        "tags": "set Pipeline.tags",
        "params": "they belong to the tasks of ratchet; leave it out",
        "schedule": "set Pipeline.schedule, or Pipeline.runs",
        "timetable": "set Pipeline.schedule, or Pipeline.runs",
        "catchup": "every record is taken once, whenever a run starts; leave it out",
        "start_date": _DATES,
        "end_date": _DATES,
        "max_active_runs": "set Pipeline.max_in_flight",
        "allowed_run_types": "runs of several kinds finish what is left; leave it out",
        "fail_fast": "settle has to run behind what has failed; leave it out",
        "sla_miss_callback": "Airflow has deadlines in its place; set deadline",
        "depends_on_past": _ORDER,
    }

    default_args: TaskArguments = TaskArguments()
    dag_display_name: str | None = None
    owner_links: dict[str, str] | None = None
    access_control: dict[str, Any] | None = None
    is_paused_upon_creation: bool | None = None
    rerun_with_latest_version: bool | None = None
    max_active_tasks: Annotated[int, Field(ge=1)] | None = None
    max_consecutive_failed_dag_runs: Annotated[int, Field(ge=0)] | None = None
    dagrun_timeout: Annotated[timedelta, Field(gt=timedelta(0))] | None = None
    deadline: References = ()
    on_failure_callback: References = ()
    on_success_callback: References = ()
