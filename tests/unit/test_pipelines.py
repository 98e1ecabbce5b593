"""The spec: what is wrong is said with the field's name, and nothing but the spec is imported."""

import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from ratchet import (
    Accumulate,
    Append,
    Arrivals,
    Avro,
    Bytes,
    Debezium,
    DeltaLake,
    Files,
    Json,
    KafkaTopic,
    MaxChange,
    MaxDeadLetters,
    MessagePack,
    Pipeline,
    Table,
    Text,
    Topic,
    Upsert,
)
from ratchet.errors import SpecError
from ratchet.spec.loading import load_pipeline, load_pipelines, read_specs

AHEAD = timezone(timedelta(hours=14))
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


DATED = {"plan": "interval", "schedule": "@daily"}


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
        ({"name": "orders\n"}, "Pipeline.name"),
        ({"transform": "jobs.flights:transform\n"}, "Pipeline.transform"),
        ({"description": 5}, "Pipeline.description"),
        ({"timeout_seconds": 0}, "Pipeline.timeout_seconds"),
        ({"max_failures": 0}, "Pipeline.max_failures"),
        ({"keep_deltas": timedelta(days=-1)}, "Pipeline.keep_deltas"),
        ({"plan": "hourly"}, "Pipeline.plan"),
        ({"plan": "interval"}, 'plan: "interval" needs a schedule'),
        ({**DATED, "max_future": timedelta(0)}, "Pipeline.max_future: Input should be greater than 0"),
        ({**DATED, "max_future": timedelta.max}, "Pipeline.max_future: Input should be less than or equal to 365000"),
        ({"foreign_keys_within": timedelta(0)}, "Pipeline.foreign_keys_within: Input should be greater than 0"),
        ({"foreign_keys_within": timedelta.max}, "Pipeline.foreign_keys_within: Input should be less than or equal"),
        ({"max_future": timedelta(days=2)}, 'max_future: only plan="interval" goes by the times of records'),
        ({"schedule": "@daily", "runs": Arrivals()}, "runs: either a schedule decides when runs start, or records do"),
        ({"runs": "records"}, "Pipeline.runs"),
        ({"runs": Arrivals(min_records=1_000_001)}, "runs: min_records is more than max_records"),
        ({"name": "maintenance"}, "maintenance is the name of a DAG"),
        ({"gates": [MaxChange("ordres", 2)]}, "gates: MaxChange names 'ordres'"),
        ({"gates": [MaxDeadLetters(0.1), MaxDeadLetters(0.1)]}, "gates: two gates have one name"),
        ({"schedule": 5}, "Pipeline.schedule"),
        ({"slice_records": 0}, "Pipeline.slice_records"),
        ({"max_in_flight": 33}, "Pipeline.max_in_flight"),
        ({"private": "partly"}, "Pipeline.private"),
        ({"kafka": None}, "Pipeline.kafka"),
        ({"spark": None}, "Pipeline.spark"),
        ({"ledger": None}, "Pipeline.ledger"),
        ({"tags": "nightly"}, "Pipeline.tags"),
        ({"on_halt": "alerts.page"}, "Pipeline.on_halt: 'alerts.page' is not \"module:name\""),
        ({"on_halt": ["alerts:page", print]}, "Pipeline.on_halt: it is a builtin_function_or_method; name it by text"),
    ],
)
def test_an_error_names_the_field(changes, field):
    with pytest.raises(SpecError, match=field.replace(".", r"\.")):
        pipeline(**changes)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Topic("no spaces", value=VALUE), "Topic.name"),
        (lambda: Topic("t\n", value=VALUE), "Topic.name"),
        (lambda: Topic(["t", "no spaces"], value=VALUE), "Topic.name: 'no spaces' is no name of a topic"),
        (lambda: Topic(["t", "u", "t"], value=VALUE), "Topic.name: 't' is named twice"),
        (lambda: Topic([], value=VALUE), "Topic.name: the list is empty; name a topic, or give a pattern"),
        (lambda: Topic(5, value=VALUE), "Topic.name: it is a int; give the name of a topic, or a list of names"),
        (lambda: Topic([f"t{n}" for n in range(2001)], value=VALUE), "Topic.name: 2,001 topics are too many"),
        (lambda: Topic(value=VALUE), "give either the name of a topic, or a list of names, or pattern"),
        (
            lambda: Topic("t", pattern="t.*", value=VALUE),
            "give either the name of a topic, or a list of names, or pattern",
        ),
        (lambda: Topic(pattern="t(", value=VALUE), r"Topic.pattern: 't\(' is no regular expression: missing \)"),
        (lambda: Topic(pattern="", value=VALUE), "Topic.pattern: it is empty; give a regular expression"),
        (lambda: Topic("t", join="newest", value=VALUE), "Topic.join"),
        (
            lambda: Topic(["t", "u"], value=VALUE, begin={0: 5}),
            "begin: of several topics it is {topic: {partition: offset}}",
        ),
        (lambda: Topic(["t", "u"], value=VALUE, begin={"t": {0: 5}}), "which names each of them"),
        (lambda: Topic("t", value=VALUE, begin={"t": {0: 5}}), "begin: of one topic it is {partition: offset}"),
        (
            lambda: Topic(["t", "u"], value=VALUE, begin={"t": {0: 5}, "u": 3}),
            "'u': 3 is not {partition: offset} of a topic",
        ),
        (lambda: Topic(["t", "u"], value=VALUE, begin={"t": {0: 5}, "u": {0: -3}}), "-3 is no offset of partition 0"),
        (lambda: Topic("t", value="id int"), r"Topic.value: it is a str; give a format such as Json\(…\)"),
        (lambda: Topic("t"), "Topic.value"),
        (lambda: Topic("t", value=VALUE, key="a int, b int"), "Topic.key"),
        (lambda: Topic("t", value=VALUE, key="name string"), "declared in value too"),
        (lambda: Topic("t", value=VALUE, tombstones="delete"), "needs key"),
        (lambda: Topic("t", value=VALUE, tombstones="ignore"), "Topic.tombstones"),
        (lambda: Topic("t", value=VALUE, begin="now"), 'Topic.begin: it is \'now\'; give "earliest", "latest", a date'),
        (
            lambda: Topic("t", value=VALUE, begin="2024-05-01T10:00:00Z"),
            "Topic.begin: it is '2024-05-01T10:00:00Z'; give",
        ),
        (lambda: Topic("t", value=VALUE, begin=None), "Topic.begin: it is None; give"),
        (
            lambda: Topic("t", value=VALUE, begin=datetime(2024, 5, 1)),
            "Topic.begin: 2024-05-01 00:00:00 has no time zone",
        ),
        (lambda: Topic("t", value=VALUE, begin=datetime(1, 1, 1, tzinfo=AHEAD)), "Topic.begin: .* is no time in UTC"),
        (lambda: Topic("t", value=VALUE, begin={}), "Topic.begin: no partition is named"),
        (lambda: Topic("t", value=VALUE, begin={"0": 5}), "Topic.begin: '0' is no number of a partition"),
        (lambda: Topic("t", value=VALUE, begin={True: 5}), "Topic.begin: True is no number of a partition"),
        (lambda: Topic("t", value=VALUE, begin={2**31: 5}), "Topic.begin: 2147483648 is no number of a partition"),
        (lambda: Topic("t", value=VALUE, begin={0: -1}), "Topic.begin: -1 is no offset of partition 0"),
        (lambda: Topic("t", value=VALUE, begin={0: 5.0}), "Topic.begin: 5.0 is no offset of partition 0"),
        (lambda: Topic("t", value=VALUE, begin={0: 2**63}), "Topic.begin: 9223372036854775808 is no offset of"),
        (lambda: Json("id bigint, id int"), "'id' is declared twice"),
        (lambda: Json("id serial"), "unknown type 'serial'"),
        (lambda: Json("id decimal(40,2)"), r"unknown type 'decimal\(40,2\)'.* p ≤ 38, .*\(seconds\|millis\|"),
        (lambda: Json("_offset bigint"), "not a legal column name"),
        (lambda: Append("t", columns="id int,"), "an empty column"),
        (lambda: Append("t"), "Append.columns"),
        (lambda: Append("T", columns="id int"), "not a legal table name"),
        (lambda: Append("a.b.c", columns="id int"), "not a legal table name"),
        (lambda: Append("public.t", columns="id int"), "'public.t' is the table 't'; leave public out"),
        (lambda: Append('x"; drop table y; --', columns="id int"), "not a legal table name"),
        (lambda: Append("t", columns='id int, "x" int'), "not a legal column name"),
        (lambda: Append("t" * 52, columns="id int"), "has 59 characters and may have 58, because"),
        (lambda: Upsert("t" * 52, key="k int", columns="v int"), "has 59 characters and may have 58, because"),
        (lambda: Accumulate(f"s.{'t' * 57}", key="k int", count="n"), "has 59 characters and may have 58, because"),
        (lambda: Accumulate("t", key="k int", sum=f"{'x' * 60} int"), "is too long: PostgreSQL's names end at 63"),
        (lambda: Accumulate("t", key=f"k{'y' * 63} int", count="n"), "not a legal column name; use up to 63"),
        (lambda: Accumulate("t", key="k string", sum="x double"), "cast it in the transform"),
        (lambda: Accumulate("t", key="k float", count="n"), "not exact"),
        (lambda: Accumulate("t", key="k string", sum="x string"), "integers or decimals"),
        (lambda: Accumulate("t", key="k string"), "at least one of"),
        (lambda: Json("a int", rows="lines"), "Json.rows"),
        (lambda: MessagePack("a serial"), "MessagePack.columns: column 'a' has the unknown type"),
        (lambda: Text("a int, b int"), r'Text.columns: a value is one column, .* for example Text\("line string"\)'),
        (lambda: Text("at timestamp from _timestamp"), "Text.columns: a value is one column"),
        (lambda: Text("a int from b"), "Text.columns: a value is one column, which comes from nothing within it"),
        (lambda: Text("a binary"), r'Text.columns: a text is no bytes; declare Bytes\("payload binary"\)'),
        (lambda: Bytes("a string"), "Bytes.columns: bytes are no text; declare a binary column, or Text"),
        (lambda: Bytes("a binary, b binary"), "Bytes.columns: a value is one column"),
        (lambda: Json("a int", registry=5), "Json.registry: Input should be a valid string"),
        (lambda: Avro("a int", registry=5), "Avro.registry: Input should be a valid string"),
        (lambda: Avro("a serial", registry="r"), "Avro.columns: column 'a' has the unknown type 'serial'"),
        (lambda: Arrivals(min_records=0), "Arrivals.min_records: Input should be greater than or equal to 1"),
        (lambda: Arrivals(max_wait=timedelta(0)), "Arrivals.max_wait: Input should be greater than 0"),
        (lambda: Arrivals(max_wait=timedelta.max), "Arrivals.max_wait: Input should be less than or equal to 365"),
        (lambda: Topic("t", value=Json("a int"), key="k int from b"), "Topic.key: column 'k' is the whole key"),
        (
            lambda: Topic("t", value=Json("a int"), key=Json("k int", rows="array")),
            r"Topic.key: a key gives one row, and this Json\(…\) may give",
        ),
        (lambda: Topic("t", value=VALUE, key=5), r"Topic.key: it is a int; give one column, or a format such as Json"),
        (
            lambda: Topic("t", value=Json("a int"), key=Json("k timestamp from _timestamp")),
            "Topic.key: column 'k' comes",
        ),
        (lambda: Topic("t", value=Json("a int"), key=Json("A int")), "key: column 'A' is declared in value too"),
        (lambda: Append("t", columns="a int from b"), "Append.columns: column 'a': from belongs to"),
        (lambda: Accumulate("t", key="k json", count="n"), "key: 'k' is a json, whose values have no order"),
        (lambda: Accumulate("t", key="k int", max="u uuid"), "max: 'u' is a uuid, of which PostgreSQL has no max"),
        (lambda: Upsert("t", key="k array<int>", columns="a int"), "key: 'k' is a array<int>"),
        (lambda: Upsert("t", key="k int", columns="a json", order="a"), "order: 'a' is a json"),
        (lambda: Accumulate("t", key="k string", count="n-1"), "count: 'n-1'"),
        (lambda: Accumulate("t", key="x_sum int", sum="x int"), "two columns have one name"),
        (lambda: Accumulate("t", key="k string", min="x double"), "min: 'x' is a double"),
        (lambda: Accumulate("t", key="k string", max="x float"), "max: 'x' is a float"),
        (lambda: Accumulate("t", key="k string", min="x boolean"), "min: 'x' is a boolean, of which PostgreSQL has no"),
        (lambda: Accumulate("t", key="k string", max="x boolean"), "max: 'x' is a boolean, of which PostgreSQL has no"),
        (lambda: Upsert("t", key="k int", columns="k int, v int"), "is in key too"),
        (lambda: Upsert("t", key="k serial", columns="v int"), "Upsert.key: column 'k' has the unknown type"),
        (lambda: Upsert("t", key="k int", columns="v serial"), "Upsert.columns: column 'v' has the unknown type"),
        (lambda: Upsert("t", key="k int", columns="v int", order="at"), "order: 'at'"),
        (lambda: Append("t", "id int"), "positional"),
        (lambda: Append("t", columns="id int", indexes=["id, at"]), "indexes: 'at' is not one of columns: id"),
        (lambda: Append("t", columns="id int", indexes=["id,"]), "indexes: '' is not one of columns"),
        (lambda: Append("t", columns="id int", existing="perhaps"), "Append.existing: Input should be a valid boolean"),
        (lambda: Append("t", columns="id int", keep="soon"), "Append.keep: Input should be a valid timedelta"),
        (lambda: Append("t", columns="id int", keep=timedelta(0)), "Append.keep: Input should be greater than 0"),
        (lambda: Append("t", columns="id int", keep=timedelta(1), existing=True), "keep: from a table of your own you"),
        (
            lambda: Append("t", columns="id int", indexes=["id"], existing=True),
            "indexes: a table of your own has those",
        ),
        (lambda: Append("t", columns="a int", renamed="a"), "Append.renamed: Input should be a valid tuple"),
        (lambda: Append("t", columns="a int", renamed={"x": "b"}), "renamed: 'x' is not one of its columns: a"),
        (
            lambda: Append("t", columns="a int, b int", renamed={"a": "b", "b": "a"}),
            "renamed: 'b' is a column of the s",
        ),
        (lambda: Append("t", columns="a int, b int", renamed={"a": "c", "b": "c"}), "renamed: two columns were 'c'"),
        (lambda: Append("t", columns="a int", renamed={"a": "_txid"}), "renamed: '_txid' is not a legal column name"),
        (lambda: Upsert("t", key="k int", columns="v int", renamed={"v": "k"}), "renamed: 'k' is a column of the spec"),
        (lambda: Accumulate("t", key="k int", count="n", renamed={"n": "k"}), "renamed: 'k' is a column of the spec"),
        (
            lambda: Accumulate("t", key="k int", sum="x int", count="a_sum", renamed={"x": "a"}),
            "renamed: 'a_sum' is a column of the table still",
        ),
    ],
)
def test_an_illegal_part_is_refused_with_the_reason(make, said):
    with pytest.raises(SpecError, match=said):
        make()


names = st.from_regex(r"[a-z][a-z0-9_]{0,62}", fullmatch=True)
lengths = st.integers(1, 63).flatmap(lambda n: names.map(lambda name: (name + "x" * 63)[:n]))
sinks = {
    "append": lambda name, column: Append(name, columns=f"{column} int"),
    "upsert": lambda name, column: Upsert(name, key=f"{column} int", columns="v_ int"),
    "accumulate": lambda name, column: Accumulate(
        name, key="k_ int", sum=f"{column} int", min=f"{column} int", max=f"{column} int", count="n_"
    ),
}


@pytest.mark.parametrize("kind", sinks)
@given(schema=st.none() | lengths, table=lengths, column=lengths)
@example(schema=None, table="t" * 51, column="c" * 59)
@example(schema=None, table="t" * 52, column="c")
@example(schema="s" * 28, table="t" * 29, column="c")
@example(schema="s", table="t", column="c" * 60)
def test_postgresql_can_hold_every_name_that_comes_from_a_spec(kind, schema, table, column):
    try:
        sink = sinks[kind](f"{schema}.{table}" if schema else table, column)
    except SpecError as error:
        assume("too long" not in str(error) and "two columns" not in str(error) and "declared twice" not in str(error))
        assume("is in key too" not in str(error))
        raise
    for part in sink.tables:
        derived = [part.schema, part.name, *(c.name for c in part.columns)]
        derived += [x.name for x in (*part.constraints, *part.indexes) if x.name]
        assert [name for name in derived if len(name.encode()) > 63] == []
        # What SQLAlchemy would shorten or refuse, it does so here.
        CreateTable(part).compile(dialect=postgresql.dialect())
        for index in part.indexes:
            CreateIndex(index).compile(dialect=postgresql.dialect())


@pytest.mark.parametrize("kind", sinks)
def test_the_longest_names_that_fit_are_legal(kind):
    sinks[kind]("t" * 51, "c" * 59)
    sinks[kind](f"{'s' * 28}.{'t' * 29}", "c")


def test_an_unknown_kind_of_sink_is_refused():
    with pytest.raises(SpecError, match=r"Pipeline\.sinks: number 1 is a dict; give an object such as Append"):
        pipeline(sinks=[{"kind": "mirror", "name": "orders"}])


@pytest.mark.parametrize("name", ["ratchet.orders", "ratchet_stage.orders", "pg_catalog.orders", "dead_letters"])
def test_a_sink_cannot_take_a_name_that_is_kept(name):
    with pytest.raises(SpecError, match="keeps for itself"):
        pipeline(sinks=[Append(name, columns="id int")])


def test_two_sinks_cannot_share_a_table():
    with pytest.raises(SpecError, match="declared twice"):
        pipeline(sinks=[Append("orders", columns="id int"), Append("orders", columns="id bigint")])


def test_what_is_no_destination_is_refused():
    to = Table("sales.orders", database="warehouse")
    for none in (5, "orders", [to, None]):
        with pytest.raises(SpecError, match=r"Append.to: it is a \w+; give an object such as Table\(…\)"):
            Append("orders", columns="id int", to=none)
    with pytest.raises(SpecError, match="to: a table of your own keeps no copy of what goes elsewhere"):
        Append("orders", columns="id int", existing=True, to=to)
    assert Append("orders", columns="id int", to=to).destinations == (to,) and to.address == "warehouse:sales.orders"
    for sinks in (
        [Append("orders", columns="id int", to=[to, to])],
        [Append("orders", columns="id int", to=to), Append("more", columns="id int", to=to)],
    ):
        with pytest.raises(SpecError, match="sinks: destination 'warehouse:sales.orders' is declared twice"):
            pipeline(sinks=sinks)
    with pytest.raises(SpecError, match="Table.name: 'Orders' is not a legal table name"):
        Table("Orders", database="warehouse")
    with pytest.raises(SpecError, match="Table.database: name the Airflow connection"):
        Table("orders", database="")
    # Where rows go besides changes nothing of what is prepared.
    assert pipeline(sinks=[Append("orders", columns="id int", to=to)]).code_hash == (
        pipeline(sinks=[Append("orders", columns="id int")]).code_hash
    )


def test_several_topics_and_a_sink_that_goes_by_places_are_refused():
    how = {"key": "id bigint", "value": Json("name string")}
    last = Upsert("last", key="id bigint", columns="name string")
    for topics in (Topic(["t", "u"], **how), Topic(pattern="t.*", **how)):
        with pytest.raises(SpecError, match="'last' keeps the last record of a key by its place in its partition"):
            pipeline(source=topics, sinks=[last], transform=None)
        ordered = Upsert("last", key="id bigint", columns="name string", order="name")
        assert pipeline(source=topics, sinks=[ordered], transform=None).sinks == [ordered]
    assert pipeline(source=Topic(["t"], **how), sinks=[last], transform=None).source.name == "t"


LAST = Upsert("last", key="id bigint", columns="name string")
OF_KEYS = {"key": "id bigint", "value": Json("name string"), "tombstones": "delete", "compacted": True}


@pytest.mark.parametrize(
    ("topic", "changes", "said"),
    [
        ({"compacted": "partly"}, {}, "Topic.compacted: Input should be a valid boolean"),
        ({"tombstones": "dead_letter"}, {}, "Topic.spec: compacted: there a record without a value deletes its key"),
        ({"reader": "spark"}, {}, "Topic.spec: compacted: Spark's own Kafka source"),
        ({"name": ["t", "u"]}, {}, "Topic.spec: compacted: it is one topic"),
        (
            {"value": Json("name string", rows="array")},
            {},
            "compacted: of a value this Json(\N{HORIZONTAL ELLIPSIS}) may give no row",
        ),
        (
            {"value": Debezium("name string"), "tombstones": "dead_letter"},
            {},
            "compacted: of a value this Debezium(\N{HORIZONTAL ELLIPSIS}) may give no row, or several",
        ),
        ({}, {"transform": "jobs.orders:transform"}, "Pipeline.spec: transform: topic is compacted"),
        ({}, {"sinks": [LAST, Append("rows", columns="name string")]}, "sinks: 'rows' of a compacted topic"),
        ({}, {"plan": "interval", "schedule": "@daily"}, "Pipeline.spec: plan: topic is compacted"),
    ],
)
def test_what_may_depend_on_when_kafka_compacts_is_refused(topic, changes, said):
    with pytest.raises(SpecError) as refused:
        pipeline(source=Topic(**{"name": "t", **OF_KEYS, **topic}), **{"sinks": [LAST], "transform": None, **changes})
    assert said in str(refused.value)


def test_the_last_value_of_each_key_of_a_compacted_topic_is_taken():
    one = pipeline(source=Topic("t", **OF_KEYS), sinks=[LAST], transform=None)
    assert one.source.subscription.compacted


def test_which_topics_there_are_is_no_part_of_the_plan_hash():
    one, other = (pipeline(source=Topic(names, value=VALUE)) for names in (["orders", "more"], ["orders", "others"]))
    assert one.plan_hash == other.plan_hash == pipeline().plan_hash


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


def test_a_sink_without_deletions_takes_no_tombstones_but_by_a_transform():
    topic = Topic("t", key="k string", value=Json("a int"), tombstones="delete")
    last = Upsert("last", key="k string", columns="a int")
    for sink in (Append("seen", columns="a int"), Accumulate("sums", key="k string", sum="a int")):
        with pytest.raises(SpecError, match=f"'{sink.name}' knows no deletions"):
            pipeline(source=topic, sinks=[last, sink], transform=None)
        assert pipeline(source=topic, sinks=[last, sink], transform="jobs.flights:transform").sinks[1] == sink


def test_limits_and_schedules_are_no_part_of_the_plan_hash():
    assert pipeline(schedule="@daily", max_records=10).plan_hash == pipeline().plan_hash
    assert pipeline(sinks=[Append("orders", columns="id bigint")]).plan_hash != pipeline().plan_hash
    assert pipeline(gates=[MaxDeadLetters(0.5)]).plan_hash != pipeline().plan_hash
    plain, indexed = (pipeline(sinks=[Append("orders", columns="id int", indexes=of)]) for of in ([], ["id"]))
    assert plain.plan_hash == indexed.plan_hash
    copied = pipeline(sinks=[Append("orders", columns="id int", existing=True)])
    assert copied.plan_hash != plain.plan_hash


def test_where_a_line_has_begun_is_no_part_of_the_plan_hash():
    rules = ["latest", datetime(2024, 5, 1, 12, tzinfo=AHEAD), {1: 7, 0: 5}]
    sources = [Topic("orders", value=VALUE, begin=rule) for rule in rules]
    assert {pipeline(source=source).plan_hash for source in sources} == {pipeline().plan_hash}
    assert [source.rule for source in sources] == ["latest", "2024-04-30T22:00:00+00:00", "{0: 5, 1: 7}"]
    assert Topic("orders", value=VALUE).rule == "earliest"


def test_what_columns_were_called_is_no_part_of_the_plan_hash():
    sinks = [Append("t", columns="b int"), Append("t", columns="b int", renamed={"b": "a"})]
    one, other = (pipeline(transform="m:f", sinks=[sink]) for sink in sinks)
    assert one.plan_hash == other.plan_hash


def test_an_unknown_pipeline_is_refused_with_the_known_ones():
    with pytest.raises(SpecError, match="aircraft, flights"):
        load_pipeline("flight")


def test_a_pipeline_is_read_alone_from_the_module_of_its_name_which_owns_that_name(tmp_path, monkeypatch):
    spec = (
        "from ratchet import *\nPIPELINE = Pipeline(name={!r}, source=Topic('t', value=Json('a bigint')), sinks={})\n"
    )
    (tmp_path / "given").mkdir()
    of = {
        "another": ("orders", "[Append('others', columns='a bigint')]"),
        "orders": ("orders", "[Append('orders', columns='a bigint')]"),
        "renamed": ("elsewhere", "[Append('rows', columns='a bigint')]"),
    }
    for module, written in of.items():
        (tmp_path / "given" / f"{module}.py").write_text(spec.format(*written))
    (tmp_path / "given" / "__init__.py").touch()
    (tmp_path / "given" / "broken.py").write_text("raise RuntimeError('by accident')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RATCHET_PIPELINES", "given")
    assert load_pipeline("orders").sinks[0].name == "orders"
    assert [name for name in sys.modules if name.startswith("given.")] == ["given.orders"]
    assert load_pipeline("elsewhere").sinks[0].name == "rows"
    specs, faults = read_specs()
    assert specs["orders"].sinks[0].name == "orders" and specs.keys() == {"orders", "elsewhere"}
    assert [fault.partition(": ")[0] for fault in faults] == ["given.broken", "given.another"]


def test_the_examples_are_valid():
    specs = load_pipelines()
    assert {"aircraft", "flights"} <= specs.keys()
    for spec in specs.values():
        assert spec.description
        assert len(spec.code_hash) == 16


def test_specs_are_read_without_airflow_spark_kafka_or_postgresql():
    program = (
        "import sys; from ratchet.spec.loading import load_pipelines; load_pipelines();"
        "print(*sorted({n.partition('.')[0] for n in sys.modules} & "
        "{'airflow', 'pyspark', 'kafka', 'psycopg', 'psycopg2', 'numba', 'pandas', 'pyarrow'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


KEYED = {
    "upsert": lambda key, to: Upsert("latest", key=key, columns="a bigint", order="a", to=to),
    "accumulate": lambda key, to: Accumulate("totals", key=key, count="n", to=to),
}


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize(
    ("key", "to", "said"),
    [
        ("k string", Table("x", database="w"), "to: key 'k' may be null, by which no destination finds a row; declare"),
        ("k string not null, l int", DeltaLake("/x"), "to: key 'l' may be null"),
        ("k string not null", Files("/x"), "to: files:/x: a row of a key cannot give way in files that readers list"),
        (
            "k string not null, l int not null",
            [Table("x", database="w"), KafkaTopic("x", key="k")],
            "to: kafka:x: the records' key is that of the sink: k, l; leave key out",
        ),
        ("k string not null", DeltaLake("/x", partition_by="b"), "to: delta:/x: partition_by 'b' is not one of"),
        ("_x string not null", 5, r"to: it is a int; give an object such as Table\(…\)"),
    ],
)
def test_a_key_by_which_no_destination_tells_rows_is_refused(kind, key, to, said):
    with pytest.raises(SpecError, match=f"{kind.title()}.*{said}"):
        KEYED[kind](key, to)


def test_a_key_whose_values_are_not_exact_is_sent_nowhere():
    with pytest.raises(SpecError, match="to: key 'k' is a double, which a destination may compare otherwise; cast it"):
        KEYED["upsert"]("k double not null", DeltaLake("/x"))
    assert KEYED["upsert"]("k double not null", ()).destinations == ()
