"""`ratchet doctor` about Spark, and about Airflow by its API."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from ratchet import Append, Json, Pipeline, Topic, cli, command
from ratchet.dev.stack import Stack
from ratchet.operate.doctor.finding import Finding, Severity, examine
from ratchet.operate.doctor.surroundings import Api, airflow_checks
from tests.answers import answer
from tests.until import until

SERVERS = ("RATCHET_LEDGER_URL", "RATCHET_KAFKA", "RATCHET_SPARK", "RATCHET_AIRFLOW_URL")


def doctor(monkeypatch, *options: str, **given: str) -> dict[str, dict]:
    """The findings by their codes, with only these servers named."""
    for name in SERVERS:
        monkeypatch.setenv(name, given.get(name, ""))
    monkeypatch.setenv("RATCHET_PIPELINES", "tests.ledger.pipelines")
    command.variables.cache_clear()
    done = CliRunner().invoke(cli.app, ["doctor", "line", "--json", *options])
    return {each["code"]: each for each in answer("doctor", done.stdout)}


def test_a_server_that_answers_and_one_that_does_not(spark_connect, monkeypatch):
    found = doctor(monkeypatch, RATCHET_SPARK=spark_connect.spark)
    assert found["spark"]["severity"] == "ok" and "answers" in found["spark"]["what"]
    assert found["ledger"]["severity"] == found["kafka"]["severity"] == "warning"
    found = doctor(monkeypatch, "--seconds", "0.5", RATCHET_SPARK="sc://127.0.0.1:1")
    assert found["spark"]["severity"] == "fault"


@pytest.fixture(scope="module")
def airflow(scratch):
    with Stack(scratch / "doctor", {"postgres", "airflow"}) as stack:
        yield stack


def of_airflow(stack: Stack, name: str, **more: Any) -> dict[tuple[str, str | None], Finding]:
    spec = Pipeline(
        name=name,
        source=Topic("t", value=Json("a bigint")),
        sinks=[Append("rows", columns="a bigint")],
        schedule=None,
        **more,
    )
    return {(each.code, each.pipeline): each for each in examine(airflow_checks(Api(stack.airflow_url), [spec]))}


@pytest.mark.all
def test_dags_that_are_paused_or_not_there(airflow):
    with httpx.Client(base_url=f"{airflow.airflow_url}/api/v2", timeout=60) as http:
        until("Airflow has the DAGs", lambda: http.get("/dags/flights").is_success, 90)
        found = of_airflow(airflow, "flights")
        assert {each.severity for each in found.values()} == {Severity.OK}, found
        for name, about in (("flights", "flights"), ("maintenance", None)):
            http.patch(f"/dags/{name}", json={"is_paused": True}).raise_for_status()
            paused = of_airflow(airflow, "flights")["dag", about]
            assert paused.severity is Severity.WARNING and "is paused" in paused.what
            http.patch(f"/dags/{name}", json={"is_paused": False}).raise_for_status()
        missing = of_airflow(airflow, "no_such")["dag", "no_such"]
        assert missing.severity is Severity.FAULT and "nothing at /dags/no_such" in missing.what


@pytest.mark.all
def test_a_pool_that_counts_deferred_tasks_or_is_not_there(airflow):
    assert "does not count deferred" in of_airflow(airflow, "flights")["pool", "flights"].what
    with httpx.Client(base_url=f"{airflow.airflow_url}/api/v2", timeout=60) as http:
        pool = {"name": "narrow", "slots": 2, "include_deferred": True}
        http.post("/pools", json=pool).raise_for_status()
    narrow = of_airflow(airflow, "flights", airflow={"default_args": {"pool": "narrow"}})["pool", "flights"]
    assert narrow.severity is Severity.FAULT and "pool narrow counts deferred tasks" in narrow.what
    none = of_airflow(airflow, "flights", airflow={"default_args": {"pool": "none"}})["pool", "flights"]
    assert (none.severity, none.remedy) == (Severity.FAULT, "Make the pool.")


@pytest.mark.all
def test_an_airflow_that_refuses_a_user_is_said_to(airflow):
    api = Api(airflow.airflow_url, token="nonsense")
    found = {each.code: each for each in examine(airflow_checks(api, []))}
    assert found["imports"].severity is Severity.WARNING and "RATCHET_AIRFLOW_TOKEN" in str(found["imports"].remedy)
