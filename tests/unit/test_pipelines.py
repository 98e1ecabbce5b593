"""The spec: what is wrong is said with the field's name, and nothing but the spec is imported."""

import subprocess
import sys

import pytest

from ratchet.errors import SpecError
from ratchet.pipeline import Accumulate, Append, Json, Pipeline, Topic, Upsert
from ratchet.specs import load_pipeline, load_pipelines

VALUE = Json("id bigint, name string, amount decimal(12,2)")


def pipeline(**changes) -> Pipeline:
    """A valid spec, with these fields changed."""
    good = {
        "name": "orders",
        "source": Topic("orders", value=VALUE),
        "transform": "jobs.flights:transform",
        "sinks": [Append("orders", columns="id bigint, name string")],
    }
    return Pipeline(**good | changes)


def test_a_valid_spec_needs_only_four_fields():
    spec = pipeline()
    assert spec.sink("orders").table == ("public", "orders")
    assert spec.schedule is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "Orders"}, "Pipeline.name"),
        ({"name": "o; drop table x"}, "Pipeline.name"),
        ({"transform": "jobs.flights"}, "Pipeline.transform"),
        ({"sinks": []}, "Pipeline.sinks"),
        ({"max_records": 0}, "Pipeline.max_records"),
        ({"max_in_flight": 0}, "Pipeline.max_in_flight"),
        ({"slice_records": 1, "max_records": 10_000}, "slice_records"),
        ({"lease_seconds": 1}, "Pipeline.lease_seconds"),
        ({"shedule": "@daily"}, "Pipeline.shedule"),
        ({"source": None}, "Pipeline.source"),
    ],
)
def test_an_error_names_the_field(changes, field):
    with pytest.raises(SpecError, match=field.replace(".", r"\.")):
        pipeline(**changes)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Topic("no spaces", value=VALUE), "Topic.name"),
        (lambda: Topic("t", value=VALUE, key="a int, b int"), "Topic.key"),
        (lambda: Topic("t", value=VALUE, key="name string"), "declared in value too"),
        (lambda: Topic("t", value=VALUE, tombstones="delete"), "needs key"),
        (lambda: Topic("t", value=VALUE, tombstones="ignore"), "Topic.tombstones"),
        (lambda: Json("id bigint, id int"), "'id' is declared twice"),
        (lambda: Json("id serial"), "unknown type 'serial'"),
        (lambda: Json("id decimal(40,2)"), "unknown type"),
        (lambda: Json("_offset bigint"), "not a legal column name"),
        (lambda: Append("t", columns="id int,"), "an empty column"),
        (lambda: Append("t"), "Append.columns"),
        (lambda: Append("T", columns="id int"), "not a legal table name"),
        (lambda: Append("a.b.c", columns="id int"), "not a legal table name"),
        (lambda: Append('x"; drop table y; --', columns="id int"), "not a legal table name"),
        (lambda: Append("t", columns='id int, "x" int'), "not a legal column name"),
        (lambda: Append("t" * 57, columns="id int"), "56 characters"),
        (lambda: Accumulate("t", key="k string", sum="x double"), "cast it in the transform"),
        (lambda: Accumulate("t", key="k float", count="n"), "not exact"),
        (lambda: Accumulate("t", key="k string", sum="x string"), "integers or decimals"),
        (lambda: Accumulate("t", key="k string"), "at least one of"),
        (lambda: Accumulate("t", key="k string", count="N"), "count: 'N'"),
        (lambda: Accumulate("t", key="x_sum int", sum="x int"), "two columns have one name"),
        (lambda: Upsert("t", key="k int", columns="k int, v int"), "is in key too"),
        (lambda: Upsert("t", key="k int", columns="v int", order="at"), "order: 'at'"),
        (lambda: Append("t", "id int"), "positional"),
    ],
)
def test_an_illegal_part_is_refused_with_the_reason(make, said):
    with pytest.raises(SpecError, match=said):
        make()


def test_an_unknown_kind_of_sink_is_refused():
    with pytest.raises(SpecError, match=r"Pipeline\.sinks\.0.*'append', 'accumulate', 'upsert'"):
        pipeline(sinks=[{"kind": "mirror", "name": "orders"}])


@pytest.mark.parametrize("name", ["ratchet.orders", "ratchet_stage.orders", "pg_catalog.orders", "dead_letters"])
def test_a_sink_cannot_take_a_name_that_is_kept(name):
    with pytest.raises(SpecError, match="keeps for itself"):
        pipeline(sinks=[Append(name, columns="id int")])


def test_two_sinks_cannot_share_a_table():
    with pytest.raises(SpecError, match="declared twice"):
        pipeline(sinks=[Append("orders", columns="id int"), Append("public.orders", columns="id int")])


def test_an_upsert_without_order_needs_the_kafka_key():
    sinks = [Upsert("latest", key="id bigint", columns="name string")]
    with pytest.raises(SpecError, match="must be the Kafka key"):
        pipeline(sinks=sinks)
    keyed = Topic("orders", value=Json("name string"), key="id bigint")
    assert pipeline(source=keyed, sinks=sinks).sink("latest").order is None


def test_a_transform_that_cannot_be_imported_is_named():
    with pytest.raises(SpecError, match="jobs.absent:transform"):
        pipeline(transform="jobs.absent:transform").load_transform()
    with pytest.raises(SpecError, match="jobs.absent"):
        _ = pipeline(transform="jobs.absent:transform").code_hash


def test_an_upsert_with_an_order_takes_no_tombstones():
    topic = Topic("t", key="k string", value=Json("at int"), tombstones="delete")
    with pytest.raises(SpecError, match="tombstones have no order"):
        pipeline(source=topic, sinks=[Upsert("rows", key="k string", columns="at int", order="at")])


def test_limits_and_schedules_are_no_part_of_the_plan_hash():
    assert pipeline(schedule="@daily", max_records=10).plan_hash == pipeline().plan_hash
    assert pipeline(sinks=[Append("orders", columns="id bigint")]).plan_hash != pipeline().plan_hash


def test_an_unknown_pipeline_is_refused_with_the_known_ones():
    with pytest.raises(SpecError, match="aircraft, flights"):
        load_pipeline("flight")


def test_the_examples_are_valid():
    specs = load_pipelines()
    assert {"aircraft", "flights"} <= specs.keys()
    for spec in specs.values():
        assert spec.description
        assert len(spec.code_hash) == 16


def test_specs_are_read_without_airflow_spark_kafka_or_postgresql():
    program = (
        "import sys; from ratchet.specs import load_pipelines; load_pipelines();"
        "print(*sorted({n.partition('.')[0] for n in sys.modules} & "
        "{'airflow', 'pyspark', 'kafka', 'psycopg', 'psycopg2', 'sqlalchemy', 'pandas', 'pyarrow'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
