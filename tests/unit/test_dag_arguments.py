"""What a spec passes to its DAG: Airflow gets it as it is given, and what would break the protocol is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference
from airflow.serialization.serialized_objects import DagSerialization

from ratchet import Append, Halt, Json, Pipeline, Topic
from ratchet.airflow.factory import DEFAULT_POOL, PROCESS_POOL, make_dag
from ratchet.cli import validate
from ratchet.errors import SpecError
from ratchet.spec.dag import DagArguments, TaskArguments

from .test_docs import ROOT, blocks

HERE = __name__
LATE = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(hours=1), AsyncCallback(f"{HERE}.tell"))


async def tell(**_) -> None:
    """What a deadline calls."""


def page(context) -> None:
    """What a failure calls."""


def spec_of(**given) -> Pipeline:
    return Pipeline(
        name="orders", source=Topic("orders", value=Json("a int")), sinks=[Append("rows", columns="a int")], **given
    )


def test_airflow_is_given_what_the_spec_says():
    tasks = {
        "owner": "payments",
        "retries": 5,
        "retry_delay": timedelta(minutes=1),
        "pool": "narrow",
        "queue": "large",
        "priority_weight": 7,
        "execution_timeout": timedelta(hours=2),
        "on_failure_callback": f"{HERE}:page",
    }
    spec = spec_of(
        airflow={
            "default_args": tasks,
            "deadline": f"{HERE}:LATE",
            "on_failure_callback": [f"{HERE}:page"],
            "max_consecutive_failed_dag_runs": 9,
            "dag_display_name": "Orders",
            "owner_links": {"payments": "mailto:payments@example.org"},
            "access_control": {"Op": {"DAGs": ["can_read"]}},
        }
    )
    dag = make_dag(spec)
    assert (dag.max_consecutive_failed_dag_runs, dag.dag_display_name) == (9, "Orders")
    assert dag.deadline == [LATE] and dag.on_failure_callback == [page]
    assert dag.owner_links == {"payments": "mailto:payments@example.org"} and "Op" in dag.access_control
    for task in dag.tasks:
        of = task.partial_kwargs if task.task_id == "process" else vars(task) | {"owner": task.owner}
        assert {name: of[name] for name in tasks if name != "on_failure_callback"} == {
            name: value for name, value in tasks.items() if name != "on_failure_callback"
        }, task.task_id
        assert list(of["on_failure_callback"]) == [page]
        assert str(getattr(task.weight_rule, "value", task.weight_rule)).endswith("upstream")
    back = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert back.max_active_runs == spec.max_in_flight + 2 and not back.catchup


def test_the_example_of_the_docs_is_what_airflow_takes(monkeypatch, tmp_path):
    found = [(file, text) for _, file, text in blocks(ROOT / "docs" / "operations.md")]
    (tmp_path / "alerts.py").write_text(dict(found)["alerts.py"])
    monkeypatch.syspath_prepend(tmp_path)
    (example,) = [text for _, text in found if text.startswith("airflow = {")]
    said: dict = {"timedelta": timedelta}
    exec(example, said)
    dag = make_dag(spec_of(airflow=said["airflow"]))
    assert len(dag.deadline) == 1 and dag.get_task("begin").retries == 5
    DagSerialization.to_dict(dag)


def test_the_example_of_a_notice_has_the_halt_in_its_templates():
    said: dict = {}
    (example,) = [text for _, file, text in blocks(ROOT / "docs" / "operations.md") if file == "halts.py"]
    exec(example, said)
    halt = Halt("orders", 7, datetime(2026, 1, 1, tzinfo=UTC), 3, "column b is gone", "RAT-501", "orders", "first")
    said["mail"].render_template_fields({"halt": halt})
    assert said["mail"].subject == "orders is halted at transaction 7 (RAT-501)"
    assert "<p>correct the cause and retry: the next run processes it anew</p>" in said["mail"].html_content
    assert "since 2026-01-01" in said["mail"].html_content and "column b is gone" in said["mail"].html_content
    said["page"](halt)


def test_without_a_word_tasks_are_tried_twice_more_in_the_pool_for_processing(monkeypatch):
    monkeypatch.setenv(PROCESS_POOL, "spark")
    dag = make_dag(spec_of())
    pools = {task.task_id: task.pool for task in dag.tasks}
    assert pools.pop("process") == "spark" and set(pools.values()) == {DEFAULT_POOL}
    assert {task.retries for task in dag.tasks} == {2} and {task.owner for task in dag.tasks} == {"ratchet"}
    mine = make_dag(spec_of(airflow={"default_args": {"pool": "narrow"}}))
    assert {task.pool for task in mine.tasks} == {"narrow"}


def test_what_airflow_is_given_changes_no_data():
    spec = spec_of(airflow={"default_args": {"retries": 0}, "max_active_tasks": 3}, on_halt="alerts:page")
    assert spec.plan_hash == spec_of().plan_hash
    # Spark carries the spec to its workers.
    assert pickle.loads(pickle.dumps(spec)) == spec


REFUSED = [({name: 1}, f"airflow: {name}: {said}") for name, said in DagArguments.instead.items()] + [
    ({"default_args": {name: 1}}, f"airflow.default_args: {name}: {said}")
    for name, said in TaskArguments.instead.items()
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_what_would_break_the_protocol_is_refused_with_what_to_do_instead(given, said):
    with pytest.raises(SpecError) as error:
        spec_of(airflow=given)
    assert str(error.value) == f"Pipeline.{said}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"retries": 3}, "Pipeline.airflow: 'retries' is not passed to Airflow; what may be given is default_args, "),
        ({"default_args": {"tries": 3}}, "Pipeline.airflow.default_args: 'tries' is not passed to Airflow; "),
        ({"default_args": {"retries": -1}}, "Pipeline.airflow.default_args.retries: Input should be greater than"),
        ({"default_args": {"on_failure_callback": page}}, "on_failure_callback: it is a function; name it by text"),
        ({"deadline": LATE}, "Pipeline.airflow.deadline: it is a DeadlineAlert; name it by text, as in "),
        ({"deadline": "late"}, "Pipeline.airflow.deadline: 'late' is not \"module:name\""),
        ([], "Pipeline.airflow: Input should be a valid dictionary"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(given, said):
    with pytest.raises(SpecError) as error:
        spec_of(airflow=given)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"airflow": {"deadline": f"{HERE}:page"}}, f"airflow.deadline: '{HERE}:page' is a function, not a Deadline"),
        (
            {"airflow": {"default_args": {"on_retry_callback": f"{HERE}:HERE"}}},
            f"airflow.default_args.on_retry_callback: '{HERE}:HERE' is a str, which cannot be called",
        ),
        ({"airflow": {"on_success_callback": "nowhere:x"}}, "airflow.on_success_callback: 'nowhere:x' cannot be "),
    ],
)
def test_what_is_named_must_be_what_airflow_takes(given, said):
    with pytest.raises(SpecError) as error:
        make_dag(spec_of(**given))
    assert str(error.value).startswith(f"Pipeline.{said}")


def test_a_name_that_cannot_be_imported_is_found_and_hides_no_other_pipeline(tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    spec = (
        "from ratchet import Append, Json, Pipeline, Topic\n"
        "PIPELINE = Pipeline(name={0!r}, source=Topic('t', value=Json('a int')), "
        "sinks=[Append('{0}_rows', columns='a int')]{1})\n"
    )
    others = {"good": "", "late": ", airflow={'deadline': 'nowhere:late'}", "silent": ", on_halt='nowhere:page'"}
    for name, more in others.items():
        (package / f"{name}.py").write_text(spec.format(name, more))
    code = (
        "import os, runpy, sys\n"
        "os.environ['RATCHET_PIPELINES'] = 'mine'\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"found = runpy.run_path({str(ROOT / 'dags' / 'pipeline_dags.py')!r})\n"
        "print(sorted(n for n, v in found.items() if type(v).__name__ == 'DAG'))\n"
        f"runpy.run_path({str(ROOT / 'dags' / 'broken_specs.py')!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "['good']", done.stderr
    assert "late: Pipeline.airflow.deadline: 'nowhere:late' cannot be imported: ModuleNotFoundError" in done.stderr
    assert "silent: Pipeline.on_halt: 'nowhere:page' cannot be imported: ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("reference", [f"{HERE}:page", "nowhere:page"])
def test_validate_imports_what_a_spec_names(monkeypatch, reference):
    spec = spec_of(airflow={"default_args": {"on_retry_callback": reference}})
    monkeypatch.setattr("ratchet.spec.loading.load_pipelines", lambda: {"orders": spec})
    said = "airflow.default_args.on_retry_callback: 'nowhere:page' cannot be imported"
    with pytest.raises(SpecError, match=said) if reference.startswith("nowhere") else nullcontext():
        validate()
