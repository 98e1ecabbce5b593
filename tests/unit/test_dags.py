"""The DAGs as Airflow parses them: no server, no connection."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRuntimeError,
    ErrorType,
    ParamValidationError,
)
from airflow.serialization.serialized_objects import DagSerialization
from structlog.testing import capture_logs

from ratchet import Accumulate, Append, Arrivals, Json, Pipeline, Topic, Upsert
from ratchet.airflow import attend, connections
from ratchet.airflow.arrivals import ArrivalsTrigger
from ratchet.airflow.connect import ConnectJob
from ratchet.airflow.factory import make_dag
from ratchet.airflow.maintenance import maintenance_dag
from ratchet.airflow.run import activity, final_errors, run_of
from ratchet.airflow.started import drains, run_id_for
from ratchet.airflow.submit import check, secrets_file
from ratchet.airflow.trigger import TurnTrigger
from ratchet.airflow.waiting import Awaited
from ratchet.dev.stack import CHECKOUT
from ratchet.errors import Fenced, LedgerUnreachable, SettingsError, TransformError
from ratchet.ledger.work import Claim, Run

ROOT = Path(__file__).parents[2]

SPEC = Pipeline(
    name="orders",
    description="What was ordered.",
    source=Topic("orders.v1", value=Json("id bigint, amount decimal(9,2)"), key="customer string"),
    transform="jobs.flights:transform",
    sinks=[
        Append("orders", columns="id bigint"),
        Accumulate("spent", key="customer string", sum="amount decimal(9,2)", count="n"),
        Upsert("last_order", key="customer string", columns="id bigint"),
    ],
    schedule="*/5 * * * *",
    max_records=1_000,
    max_in_flight=3,
    tags=["shop"],
)


@pytest.fixture(scope="module")
def dag():
    return make_dag(SPEC)


def parse(package: str, file: str, path: Path) -> subprocess.CompletedProcess:
    """Run a DAG file as Airflow does, in a process of its own, and print what it defines and imports."""
    code = (
        "import runpy, sys, json, airflow.sdk\n"
        f"found = runpy.run_path({str(ROOT / 'dags' / file)!r})\n"
        "clients = {'kafka', 'pyspark', 'psycopg'} & set(sys.modules)\n"
        "dags = sorted(n for n, v in found.items() if type(v).__name__ == 'DAG')\n"
        "print(json.dumps({'dags': dags, 'clients': sorted(clients)}))\n"
    )
    env = {**os.environ, "RATCHET_PIPELINES": package, "PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def test_each_spec_is_a_dag_and_no_client_library_is_imported(tmp_path):
    done = parse("pipelines", "pipeline_dags.py", tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    specs = {p.stem for p in (ROOT / "include" / "pipelines").glob("*.py")} - {"__init__"}
    assert set(said["dags"]) == specs and said["clients"] == []


def test_a_broken_spec_names_module_and_field_and_hides_no_other(tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    good = (ROOT / "include" / "pipelines" / "flights.py").read_text()
    (package / "good.py").write_text(good)
    (package / "bad_field.py").write_text(good.replace("max_in_flight=4", "max_in_flight=0"))
    (package / "bad_syntax.py").write_text("PIPELINE = (")
    (package / "same_table.py").write_text(good.replace('name="flights"', 'name="again"', 1))
    done = parse("mine", "pipeline_dags.py", tmp_path)
    assert json.loads(done.stdout.splitlines()[-1])["dags"] == ["flights"], done.stderr
    broken = parse("mine", "broken_specs.py", tmp_path)
    assert broken.returncode != 0
    assert "mine.bad_field: Pipeline.max_in_flight: " in broken.stderr
    assert "mine.bad_syntax: cannot be imported: SyntaxError" in broken.stderr
    assert "mine.same_table: Pipeline.sinks: table 'flights' belongs to pipeline 'flights'" in broken.stderr


def test_the_tasks_and_what_follows_what(dag):
    follows = {task.task_id: task.downstream_task_ids for task in dag.tasks}
    assert follows == {
        "begin": {"process", "settle"},
        "process": {"commit"},
        "commit": {"settle"},
        "settle": set(),
    }
    rules = {task.task_id: task.trigger_rule.value for task in dag.tasks}
    assert rules.pop("settle") == "all_done_setup_success"
    assert set(rules.values()) == {"all_success"}
    assert dag.get_task("begin").is_setup and dag.get_task("settle").is_teardown
    assert dag.get_task("settle").on_failure_fail_dagrun


def test_the_dag_is_admitted_by_the_ledger_and_not_by_airflow(dag):
    assert dag.max_active_runs == SPEC.max_in_flight + 2
    assert not dag.catchup and dag.tags == {"ratchet", "shop"} and dag.schedule == "*/5 * * * *"
    for task in dag.tasks:
        assert not task.depends_on_past and task.max_active_tis_per_dag is None and task.pool == "default_pool"


def test_the_nearer_a_run_is_to_its_end_the_sooner_it_gets_a_slot_and_maintenance_before_all(dag):
    weights = weights_of(dag)
    assert weights["begin"] < weights["process"] < weights["commit"] < weights["settle"]
    assert weights["settle"] < weights_of(maintenance_dag(2))["upkeep_0"]


def weights_of(dag: DAG) -> dict[str, int]:
    """{task: its priority}, as Airflow's scheduler reckons it from what it stores of a DAG."""
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    return {name: task.weight_rule.get_weight(SimpleNamespace(task=task)) for name, task in stored.task_dict.items()}


def test_process_tasks_alone_have_the_pool_that_the_installation_names(monkeypatch):
    monkeypatch.setenv("RATCHET_PROCESS_POOL", "slices")
    pools = {task.task_id: task.pool for task in make_dag(SPEC).tasks}
    assert pools.pop("process") == "slices"
    assert set(pools.values()) == {"default_pool"}
    monkeypatch.delenv("RATCHET_PROCESS_POOL")
    assert {task.pool for task in make_dag(SPEC).tasks} == {"default_pool"}


def test_the_page_says_what_is_read_and_written_and_how_to_clear(dag):
    for said in ("`orders.v1`", "`orders`", "`spent`", "`amount_sum`", "`last_order`", "1,000 records", "Clear the"):
        assert said in dag.doc_md, said


@pytest.mark.parametrize("value", [0, -1, 1_001, "many", None])
def test_the_form_refuses_more_than_the_spec_allows(dag, value):
    dag.params["max_records"] = 1_000
    with pytest.raises(ParamValidationError):
        dag.params["max_records"] = value
    assert dag.params.get_param("max_records").description and dag.params.get_param("reason").description


def test_a_slice_has_a_name_that_people_can_read_with_its_transaction(dag):
    mapped = dag.get_task("process")
    task = mapped.unmap({"item": {"slice": 1, "name": "orders.v1-0 [120,240)", "of": "12"}})
    template = dag.get_template_env().from_string(mapped.partial_kwargs["map_index_template"])
    assert template.render({"task": task}) == "12: orders.v1-0 [120,240)"


def test_the_dag_serializes_without_the_spec(dag):
    from airflow.serialization.serialized_objects import DagSerialization

    written = json.dumps(DagSerialization.to_dict(dag))
    assert '"pipeline": "orders"' in written and "password" not in written


def test_where_records_start_runs_the_dag_waits_for_an_asset_that_the_triggerer_watches():
    runs = Arrivals(min_records=20, max_wait=timedelta(minutes=2))
    dag = make_dag(SPEC.model_copy(update={"schedule": None, "runs": runs, "kafka": "theirs"}))
    written = DagSerialization.to_dict(dag)
    assert DagSerialization.from_dict(written).timetable.asset_condition
    assert "x-ratchet://orders/arrivals" in json.dumps(written) and "password" not in json.dumps(written)
    (asset,) = dag.schedule
    (watcher,) = asset.watchers
    path, stored = watcher.trigger.serialize()
    assert path == "ratchet.airflow.arrivals.ArrivalsTrigger" and stored == {
        "kafka": "theirs",
        "ledger": "ratchet_ledger",
        "pipeline": "orders",
        "topics": ["orders.v1"],
        "pattern": None,
        "max_in_flight": 3,
        "min_records": 20,
        "max_wait": 120.0,
        "begins_late": False,
    }
    assert ArrivalsTrigger(**stored).serialize() == (path, stored)


@pytest.mark.invariant("I9")
def test_a_triggered_run_has_an_id_that_a_repeat_gives_again_and_a_clear_does_not():
    run = Run("orders", "scheduled__2025-01-01", 0)
    assert run_id_for("begin", 12, run) == run_id_for("begin", 12, run)
    assert run_id_for("begin", 12, run).startswith("begin_12_")
    assert run_id_for("begin", 12, run) != run_id_for("begin", 12, Run(run.dag_id, run.run_id, 1))
    assert run_id_for("begin", 12, run) != run_id_for("settle", 12, run)


@pytest.mark.parametrize(
    ("run_type", "run_id", "started_here"),
    [
        ("operator_triggered", run_id_for("begin", 12, Run("dag", "a")), True),
        ("operator_triggered", run_id_for("maintenance", 1, Run("dag", "a")), True),
        ("operator_triggered", "by_a_dag_of_theirs", False),
        ("manual", "settle_12_5f0c21", False),
        ("scheduled", "scheduled__2026-01-01T00:00:00+00:00", False),
        ("asset_triggered", "asset__1", False),
        ("backfill", "backfill__1", False),
    ],
)
def test_a_run_drains_what_is_due_only_where_it_was_started_here(run_type, run_id, started_here):
    assert drains({"dag_run": SimpleNamespace(run_type=run_type, run_id=run_id)}) is started_here


def test_a_run_is_named_by_its_clear_number_too():
    dag_run = SimpleNamespace(dag_id="orders", run_id="r", clear_number=2)
    assert run_of({"dag_run": dag_run}) == Run("orders", "r", 2)


@pytest.mark.parametrize(
    "answer, active",
    [
        ("queued", True),
        ("running", True),
        ("success", False),
        ("failed", False),
        ({"status_code": 404, "detail": {"detail": {"reason": "not_found"}}}, False),
        ({"status_code": 404, "detail": None}, True),
        ({"status_code": 500, "detail": {"detail": "boom"}}, True),
        (None, True),
    ],
)
def test_only_a_clear_no_makes_a_run_inactive(answer, active):
    class TaskInstance:
        @staticmethod
        def get_dagrun_state(dag_id, run_id):
            if isinstance(answer, str):
                return answer
            raise AirflowRuntimeError(SimpleNamespace(error=ErrorType.API_SERVER_ERROR, detail=answer))

    assert activity(TaskInstance())("orders", "r") is active


def test_airflow_tries_again_only_what_trying_again_can_mend():
    with pytest.raises(AirflowFailException, match="newer"), final_errors():
        raise Fenced()
    with pytest.raises(LedgerUnreachable), final_errors():
        raise LedgerUnreachable()


def test_a_tasks_log_has_the_lines_of_a_persons_own_that_led_to_an_error():
    wrong = TransformError("p: jobs.orders:transform raised KeyError: 'GBP' (jobs/orders.py, line 7)")
    wrong.add_note('in your code:\n  File "jobs/orders.py", line 17, in transform')
    with capture_logs() as logs, pytest.raises(AirflowFailException) as ended, final_errors():
        raise wrong
    assert str(ended.value) == f"{wrong} (RAT-501)"
    assert [line["event"].splitlines() for line in logs] == [
        [f"{wrong} (RAT-501)", "in your code:", '  File "jobs/orders.py", line 17, in transform']
    ]


def test_a_driver_that_could_not_be_told_the_secrets_is_refused_before_it_starts():
    def target(url, **extra):
        return connections.SparkTarget("c", connect=False, url=url, extra=extra)

    for good in (
        target("local[2]"),
        target("yarn", **{"deploy-mode": "cluster"}),
        target("k8s://https://h", **{"deploy-mode": "cluster", "secrets-file": "/run/secrets/ratchet.json"}),
    ):
        check(good)
    with pytest.raises(SettingsError, match="secrets-file"):
        check(target("k8s://https://h", **{"deploy-mode": "cluster"}))


def test_the_secrets_file_is_its_users_alone_and_does_not_stay():
    with secrets_file({"ledger_url": "x"}) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads(path.read_text()) == {"ledger_url": "x"}
    assert not path.exists()


def test_the_trigger_can_be_made_anew_from_what_airflow_stores():
    arguments = dict(
        connection="ratchet_ledger", pipeline="orders", txid=3, revision=0, claim=2, epoch=1, lease_seconds=60
    )
    path, stored = TurnTrigger(**arguments).serialize()
    assert path == "ratchet.airflow.trigger.TurnTrigger" and stored == arguments
    assert TurnTrigger(**stored).serialize() == (path, stored)


@pytest.mark.parametrize(
    "row, fires, held",
    [
        (("PREPARED", True, False), False, None),
        (("PREPARED", True, True), True, True),
        (("PREPARED", False, False), True, False),
        (("COMMITTED", True, False), True, True),
        (("ABORTED", True, False), True, True),
        ((None, None, None), True, False),
    ],
)
def test_the_trigger_fires_on_its_turn_and_on_any_end(row, fires, held):
    event = Awaited("orders", 3, 0, 1, 60).event(row)
    assert bool(event) is fires and (event is None or event["held"] is held)


class HeldJob:
    """A job that works until it is stopped or released."""

    def __init__(self):
        self.stopped, self.go_on = False, threading.Event()

    def run(self) -> str:
        assert self.go_on.wait(30)
        if self.stopped:
            raise RuntimeError("interrupted")
        return "voted"

    def stop(self) -> None:
        self.stopped = True
        self.go_on.set()


CLAIM = Claim("orders", 3, 1, 2)


def test_the_lease_is_renewed_while_a_job_works(monkeypatch):
    job, renewed = HeldJob(), []

    def renew(ledger, claim, seconds):
        renewed.append(claim)
        if len(renewed) == 2:
            raise LedgerUnreachable()
        if len(renewed) == 3:
            job.go_on.set()

    monkeypatch.setattr(attend.leases, "renew", renew)
    assert attend.attend(job, None, CLAIM, lease_seconds=0.06) == "voted"
    assert renewed[:3] == [CLAIM] * 3 and not job.stopped


def test_a_job_is_stopped_when_its_claim_is_lost(monkeypatch):
    def renew(ledger, claim, seconds):
        raise Fenced()

    job = HeldJob()
    monkeypatch.setattr(attend.leases, "renew", renew)
    with pytest.raises(Fenced):
        attend.attend(job, None, CLAIM, lease_seconds=0.06)
    assert job.stopped


def test_what_a_job_raises_is_raised_also_when_it_is_a_timeout(monkeypatch):
    class Late(HeldJob):
        def run(self) -> str:
            raise TimeoutError("the job's own")

    with pytest.raises(TimeoutError, match="the job's own"):
        attend.attend(Late(), None, CLAIM, lease_seconds=60)


def test_killing_the_task_interrupts_the_operations_by_their_tag(dag):
    job, tags = ConnectJob.__new__(ConnectJob), []
    job.tag, job._left = "ratchet-orders-3-1-0-1", threading.Event()

    def interrupt(tag: str) -> None:
        tags.append(tag)
        job._left.set()

    job._session = SimpleNamespace(interruptTag=interrupt)
    task = dag.get_task("process").unmap({"item": {"slice": 0, "name": "orders.v1-0 [0,1)"}})
    task.on_kill()
    task._job = job
    task.on_kill()
    assert tags == ["ratchet-orders-3-1-0-1"]


PARSED = """
import runpy, sys
found = runpy.run_path(sys.argv[1])
print(*(name for name, value in found.items() if type(value).__name__ == "DAG"))
print(*sorted(name for name in sys.modules if name.startswith("pipelines.")))
print(*sorted(name for name in sys.modules if name in ("kafka", "pyspark", "psycopg", "pandas")))
"""


@pytest.mark.parametrize(
    ("file", "wanted", "dags", "specs"),
    [
        ("pipeline_dags.py", None, {"aircraft", "flights"}, ["pipelines.aircraft", "pipelines.flights"]),
        ("pipeline_dags.py", "flights", {"flights"}, ["pipelines.flights"]),
        ("maintenance.py", None, {"dag"}, []),
        ("maintenance.py", "maintenance", {"dag"}, []),
    ],
)
def test_a_file_that_is_parsed_for_one_dag_reads_and_builds_no_other(file, wanted, dags, specs):
    env = dict(os.environ) | ({"_AIRFLOW_PARSING_CONTEXT_DAG_ID": wanted} if wanted else {})
    command = [sys.executable, "-c", PARSED, str(CHECKOUT / "dags" / file)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    built, read, libraries = done.stdout.splitlines()[-3:]
    assert (set(built.split()) - {"found"}, read.split(), libraries) == (dags, specs, "")


def test_maintenance_has_a_task_for_each_five_hundred_pipelines():
    for pipelines, tasks in ((0, 1), (1, 1), (500, 1), (501, 2), (1_000, 2), (1_001, 3)):
        assert len(maintenance_dag(pipelines).tasks) == tasks
