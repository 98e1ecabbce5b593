"""Statements in SQL: what is taken apart, where Spark finds it, and what is refused without Spark, with its place."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratchet import Accumulate, Append, Json, Pipeline, Sql, Topic
from ratchet.airflow.factory import describe
from ratchet.errors import SpecError
from ratchet.spark.numbering import Numbering
from ratchet.spec.functions import AGGREGATES
from ratchet.spec.statement import statement_of
from ratchet.transforms.kinds import Kind, kind_of

SINK = Append("rows", columns="id bigint, amount double")


def spec_of(transform: object, topic: str = "shop.orders", **more) -> Pipeline:
    value = Json("id bigint, amount double, user string, items array<struct<sku: string>>")
    return Pipeline(
        **{"name": "p", "source": Topic(topic, value=value), "transform": transform, "sinks": [SINK]} | more
    )


def test_a_statement_is_taken_apart():
    made = statement_of(
        """select id, r.amount * 2 as amount, case when id > 0 then 'x, from y' end
        from shop.orders as r lateral view outer posexplode(items) l as number, item
        lateral view stack(2, 1, 2) s two where amount > 0 and l.item.sku is not null and offset > 1;"""
    )
    assert [item.strip() for item in made.items] == [
        "id",
        "r.amount * 2 as amount",
        "case when id > 0 then 'x, from y' end",
    ]
    assert (made.relation, made.alias) == ("shop.orders", "r")
    assert [view.strip() for view in made.generators] == [
        "posexplode_outer(items) as (`number`, `item`)",
        "stack(2, 1, 2) as (`two`)",
    ]
    # Beside the other columns, those of a lateral view have no name before them.
    assert made.condition and made.condition.split() == ("amount > 0 and item.sku is not null and offset > 1".split())
    assert made.makes_rows and made.returns is None


@pytest.mark.parametrize(
    ("text", "returns"),
    [
        (
            "select id, r.amount, amount * 2 as `two times`, items[0].sku as Sku from records r",
            "id amount two·times sku",
        ),
        ("select inline(items) as (_n, sku) from records", "_n sku"),
        ("select * from records", None),
        ("select id, * except (id) from records", None),
        ("select id, cast(amount as int) from records", None),
        ("select id, amount * 2 twice from records", None),
    ],
)
def test_names_of_columns_are_known_only_where_they_are_written(text, returns):
    assert statement_of(text).returns == (returns and {name.replace("·", " ") for name in returns.split()})


@given(st.lists(st.sampled_from(["\n", " ", "/* a\n*/", "-- b\n", "\t"]), min_size=7, max_size=7))
def test_spark_finds_each_part_where_it_is_in_the_statement(gaps):
    text = "{}select{}\tid,{} amount * 2 as x{} from records\t{}where{} id > 0{}".format(*gaps)
    made = statement_of(text)
    for part, begins in [(made.items[0], "id"), (made.items[1], "amount"), (made.condition, "id > 0")]:
        assert part is not None
        at = text.index(begins)
        line, column = text.count("\n", 0, at), at - text.rfind("\n", 0, at) - 1
        assert part.count("\n", 0, part.index(begins)) == line
        assert part.index(begins) - part.rfind("\n", 0, part.index(begins)) - 1 == column


SUMS, TWICE = "sums and counts are an Accumulate's", "another try would give another"
NOTHING_ELSE = "a statement reads the records once and nothing else"
REFUSED = [
    ("select count(*) as n from records", "character 8: count: ", SUMS),
    ("select id,\n  `max` (amount) as m from records", "line 2, character 3: `max`: ", SUMS),
    ("select system.builtin.sum(amount) as m from records", "character 23: sum: ", SUMS),
    ("select id from records group by id", "character 24: group: ", SUMS),
    ("select id from records where id > 0 having id > 1", "character 37: having: ", SUMS),
    ("select distinct id from records", "character 8: distinct: ", "it looks at other records"),
    ("select row_number() over (order by id) as n from records", "character 8: row_number: ", "beside it"),
    ("select f(id) over (order by id) as n from records", "character 14: over: ", "a window looks at other records"),
    ("select id from records order by id", "character 24: order: ", "a table has no order"),
    ("select id from records where id > 0 limit 5", "character 37: limit: ", "all records are taken"),
    ("select id from records tablesample (3 rows)", "character 24: tablesample: ", "all records are taken"),
    ("select id from records union all select id from records", "character 24: union: ", "a generator such as stack"),
    ("select id from records except select id from records", "character 24: except: ", NOTHING_ELSE),
    ("select id from records join rates on true", "character 24: join: ", NOTHING_ELSE),
    ("select id from records r left join rates on true", "character 26: left: ", NOTHING_ELSE),
    ("select id from records, rates", "character 23: ,: ", NOTHING_ELSE),
    ("select id from records, lateral (select 1)", "character 34: select: ", NOTHING_ELSE),
    ("select id from (select * from records)", "character 17: select: ", NOTHING_ELSE),
    ("select id from (records)", "character 16: (: ", NOTHING_ELSE),
    ("select (select max(id) from records) as m from records", "character 9: select: ", NOTHING_ELSE),
    ("select id from records where id in (with a as (select 1) table a)", "character 37: with: ", NOTHING_ELSE),
    ("select id from records where id in (table a)", "character 37: table: ", NOTHING_ELSE),
    ("select id from records where id in (values (1))", "character 37: values: ", NOTHING_ELSE),
    ("with a as (select 1) select * from a", "character 1: with: ", "a statement is one `select"),
    ("insert into x select 1", "character 1: insert: ", "a statement is one `select"),
    ("select rand() as r from records", "character 8: rand: ", f"{TWICE} value"),
    ("select uuid() as r from records", "character 8: uuid: ", f"{TWICE} value"),
    ("select NOW() as r from records", "character 8: NOW: ", f"{TWICE} time; _txn_time is the transaction's"),
    ("select unix_timestamp() as r from records", "character 8: unix_timestamp: ", f"{TWICE} time"),
    ("select date 'today' as r from records", "character 13: 'today': ", f"{TWICE} time"),
    ("select cast('now' as timestamp) as r from records", "character 13: 'now': ", f"{TWICE} time"),
    ("select 'tomorrow'::date as r from records", "character 8: 'tomorrow': ", f"{TWICE} time"),
    (
        "select aes_encrypt(user, 'k') as r from records",
        "character 8: aes_encrypt: ",
        "gives another value in every try",
    ),
    ("select monotonically_increasing_id() as r from records", "character 8: mono", "_partition, _offset and _n say"),
    ("select current_user() as r from records", "character 8: current_user: ", "it depends on Spark's session"),
    ("select java_method('a', 'b') as r from records", "character 8: java_method: ", "use a function over DataFrames"),
    ("select window(at, '1 day') as r from records", "character 8: window: ", "date_trunc"),
    ("select identifier('ra' || 'nd')() as r from records", "character 8: identifier: ", "write the name itself"),
    ("select '${x}' as a, ${x} as r from records", "character 21: $: ", "a setting of Spark's session"),
    ("select /*+ repartition(3) */ id from records", "character 8: a hint may move rows", "leave it out"),
    ("select id as _offset from records", "character 14: _offset: ", "goes along with its rows by itself"),
    ("select id _partition from records", "character 11: _partition: ", "goes along with its rows by itself"),
    ("select id from records lateral view explode(items) i as _n", "character 57: _n: ", "select pos as _n"),
    ("select i.* from records lateral view explode(items) i", "character 8: i: ", "one by one"),
    ("select a from records lateral view outer stack(1, id) s as a", "character 42: stack: ", "leave outer out"),
    ("select a from records lateral view", "character 31: view: ", "a generator must follow"),
    ("select a from records lateral view explode(items)", "character 49: ): ", "a name must follow"),
    ("select id, from records", "character 12: from: ", "a column is missing, or a comma is too many"),
    ("select id from records where", "character 24: where: ", "the condition must follow"),
    ("select id from 5 + 5", "character 18: +: ", "only lateral view and where have a place"),
    ("select id", "it reads nothing", "write `from records`"),
    (" ; ", "it is empty", "write `select … from records`"),
    ("select id; select 2 from records", "character 10: ;: ", "a sink has one statement"),
    ("select 'id from records", "character 8: the ' is not closed", ""),
    ("select (id from records", "character 8: the ( is not closed", ""),
    ("select id) from records", "character 10: nothing is open that this ) closes", ""),
    ("select /* id from records", "character 8: the comment is not closed", ""),
]


@pytest.mark.parametrize(("text", "place", "said"), REFUSED, ids=[text for text, _, _ in REFUSED])
def test_what_has_no_place_in_a_statement_is_refused_with_its_place(text, place, said):
    with pytest.raises(SpecError) as raised:
        Sql(rows=text)
    message = str(raised.value)
    assert message.startswith("Sql.statements: statement 'rows', ")
    assert place in message and said in message


@pytest.mark.parametrize(
    "text",
    [
        "select user, `order`, offset, `select` from records where limit > 1 and union is not null",
        "select 'count(x) from y', \"a \\\" b\", r'\\', x'1F', 'it''s' from records -- group by\n where a /* /* */ */",
        "select extract(year from at) as y, trim(both 'x' from b) as b, map(a, b) as m, (values) as v from records",
        "select filter(items, i -> i.qty > 0) as f, exists(items, i -> i.qty > 0) as e from records",
        "select s.count, s.max as m, a like any ('x%', 'y%') as l, unix_timestamp(at) as u from records",
        "select aes_encrypt(a, b, 'GCM', 'DEFAULT', unhex(md5(a))) as c, 'now' as d from records where p = 'today'",
        "select all id from records",
    ],
)
def test_what_only_looks_like_it_is_taken(text):
    assert statement_of(text).relation == "records"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rows": "select id, amount from records", "lines": "select id from records"},
            "statement 'lines' is for no sink",
        ),
        ({"dead_letters": "select id from records"}, "sink 'rows' has no statement"),
        ({"rows": "select id, amount from orders"}, "statement 'rows', it reads 'orders'; write `from records`"),
        ({"rows": "select id, amount as amuont from records"}, "statement 'rows' does not return column 'amount'"),
        ({"rows": "select id, amount, session_user from records"}, "character 20: session_user: it depends on"),
        ({"rows": "select id, current_date as amount from records"}, "character 12: current_date: another try"),
    ],
)
def test_statements_that_do_not_fit_their_pipeline_are_refused(changes, said):
    with pytest.raises(SpecError) as raised:
        spec_of(Sql(changes))
    assert str(raised.value).startswith("Pipeline.spec: transform: ") and said in str(raised.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Sql(), "Sql.statements: Dictionary should have at least 1 item"),
        (lambda: Sql(rows=5), "Sql.statements.rows: Input should be a valid string"),
        (lambda: Sql({"rows": "select 1 from records"}, rows="select 2 from records"), "'rows' is given twice"),
        (lambda: spec_of(print), "Pipeline.transform: it is a builtin_function_or_method; name a function"),
        (lambda: spec_of("select 1 from records"), "Pipeline.transform: 'select 1 from records' is not"),
    ],
)
def test_what_is_no_transform_is_refused(make, said):
    with pytest.raises(SpecError) as raised:
        make()
    assert said in str(raised.value)


def test_records_may_be_called_by_their_topic_and_columns_as_the_session():
    text = "select id, amount from `shop.orders` where user is not null"
    assert kind_of(spec_of(Sql(rows=text))) is Kind.SQL
    spec_of(Sql(rows="select id, amount from Shop.Orders where user is not null"))
    spec_of(Sql(rows="select ID, amount as AMOUNT from RECORDS"))


def test_a_sink_with_a_schema_is_a_key_of_a_dict():
    sinks = [Append("shop.rows", columns="id bigint")]
    spec = spec_of(Sql({"shop.rows": "select id from records"}, dead_letters="select id from records"), sinks=sinks)
    assert str(spec.transform) == "Sql(shop.rows, dead_letters)"


def test_another_statement_is_another_version_of_the_code():
    one = spec_of(Sql(rows="select id, amount from records where id > 1"))
    other = spec_of(Sql(rows="select id, amount from records where id > 2"))
    assert one.plan_hash != other.plan_hash and one.code_hash != other.code_hash
    assert one.transform_hash == other.transform_hash == "" and one.load_transform() is None


def test_the_dag_s_page_shows_the_statements():
    said = describe(spec_of(Sql(rows="select id, amount from records where amount > 0")))
    assert "What `rows` is given:\n\n```sql\nselect id, amount from records where amount > 0\n```" in said


def test_a_statement_for_sums_gives_what_is_added_up_and_the_key():
    sinks = [Accumulate("totals", key="user string", sum="amount decimal(9,2)", count="n")]
    text = "select user, cast(amount as decimal(9,2)) as amount from records"
    assert spec_of(Sql(totals=text), sinks=sinks).sinks == sinks
    with pytest.raises(SpecError, match="does not return column 'user'"):
        spec_of(Sql(totals="select id, cast(amount as decimal(9,2)) as amount from records"), sinks=sinks)


PIECES = st.sampled_from(
    [
        *"select from where lateral view explode as records and , ( ) . * ; ' ` \" /* */ -- a _n r'x' :: $ {".split(),
        "\n",
        " ",
    ]
    + sorted(AGGREGATES)[:3]
)


@given(st.lists(PIECES, max_size=20).map(" ".join) | st.text())
@example("select \udc00 from records")
@example("select a from records where (")
def test_any_text_is_taken_or_refused(text):
    try:
        statement_of(text)
    except SpecError as error:
        assert str(error)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=6, unique=True),
    st.lists(st.integers(1, 4), min_size=6, max_size=6),
    st.lists(st.integers(0, 24), max_size=4),
)
def test_rows_of_a_record_are_numbered_wherever_batches_end(records, counts, cuts):
    places = [place for place, count in zip(records, counts, strict=False) for _ in range(count)]
    wanted = [n for _, count in zip(records, counts, strict=False) for n in range(count)]
    schema = pa.schema([("_partition", pa.int32()), ("_n", pa.int32()), ("_offset", pa.int64())])
    rows = pa.Table.from_pylist([{"_partition": p, "_offset": o, "_n": 7} for p, o in places], schema)
    edges = sorted({0, len(places), *(cut for cut in cuts if cut < len(places))})
    # An empty batch among them.
    parts = [rows.slice(a, b - a) for a, b in pairwise(edges)] + [rows.slice(0, 0)]
    given_rows = [batch for part in parts for batch in part.combine_chunks().to_batches()]
    made = pa.Table.from_batches(Numbering(False)(iter(given_rows)), schema)
    assert made.column("_n").to_pylist() == wanted
    assert made.drop_columns(["_n"]) == rows.drop_columns(["_n"])
